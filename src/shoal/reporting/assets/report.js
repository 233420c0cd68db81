"use strict";
// Turns every <figure data-chart> into an interactive chart (uPlot). Without this script the static image stays.
(function () {
  const charts = JSON.parse(document.getElementById("chart-data").textContent);
  const hidden = new Set();
  const live = [];

  const shapes = {
    o: (c, x, y, r) => c.arc(x, y, r, 0, 2 * Math.PI),
    s: (c, x, y, r) => c.rect(x - r, y - r, 2 * r, 2 * r),
    D: (c, x, y, r) => polygon(c, x, y, 1.3 * r, 4, 0),
    "^": (c, x, y, r) => polygon(c, x, y, 1.3 * r, 3, -Math.PI / 2),
    v: (c, x, y, r) => polygon(c, x, y, 1.3 * r, 3, Math.PI / 2),
    "<": (c, x, y, r) => polygon(c, x, y, 1.3 * r, 3, Math.PI),
    ">": (c, x, y, r) => polygon(c, x, y, 1.3 * r, 3, 0),
    p: (c, x, y, r) => polygon(c, x, y, 1.25 * r, 5, -Math.PI / 2),
    h: (c, x, y, r) => polygon(c, x, y, 1.2 * r, 6, 0),
    H: (c, x, y, r) => polygon(c, x, y, 1.2 * r, 6, Math.PI / 6),
    8: (c, x, y, r) => polygon(c, x, y, 1.2 * r, 8, Math.PI / 8),
    d: (c, x, y, r) => { c.save(); c.translate(x, y); c.scale(0.6, 1); polygon(c, 0, 0, 1.5 * r, 4, 0); c.restore(); },
    P: (c, x, y, r) => { c.rect(x - r / 2, y - 1.2 * r, r, 2.4 * r); c.rect(x - 1.2 * r, y - r / 2, 2.4 * r, r); },
    "*": (c, x, y, r) => {
      for (let k = 0; k < 10; k++) {
        const reach = k % 2 ? 0.7 * r : 1.8 * r, turn = -Math.PI / 2 + (k * Math.PI) / 5;
        c[k ? "lineTo" : "moveTo"](x + reach * Math.cos(turn), y + reach * Math.sin(turn));
      }
      c.closePath();
    },
    x: (c, x, y, r) => { c.moveTo(x - r, y - r); c.lineTo(x + r, y + r); c.moveTo(x - r, y + r); c.lineTo(x + r, y - r); },
    X: (c, x, y, r) => shapes.x(c, x, y, r),
    "+": (c, x, y, r) => { c.moveTo(x - r, y); c.lineTo(x + r, y); c.moveTo(x, y - r); c.lineTo(x, y + r); },
  };
  const open = new Set(["x", "X", "+"]);

  function polygon(c, x, y, r, corners, start) {
    for (let k = 0; k < corners; k++) {
      const turn = start + (2 * Math.PI * k) / corners;
      c[k ? "lineTo" : "moveTo"](x + r * Math.cos(turn), y + r * Math.sin(turn));
    }
    c.closePath();
  }

  function drawMarker(c, series, x, y, r) {
    c.beginPath();
    (shapes[series.marker] || shapes.o)(c, x, y, r);
    c.fillStyle = c.strokeStyle = series.color;
    c.lineWidth = series.marker === "X" ? r : r / 2.5;
    open.has(series.marker) ? c.stroke() : c.fill();
  }

  // Thousands are separated as in the tables, whatever the reader's locale.
  const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
  const fine = new Intl.NumberFormat("en-US", { maximumFractionDigits: 2 });
  const number = (chart, value) => (chart.digits ? value.toFixed(chart.digits) : whole.format(value)).replace("-", "−");

  function element(tag, attributes, ...children) {
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes || {})) {
      key in node && key !== "list" ? (node[key] = value) : node.setAttribute(key, value);
    }
    node.append(...children);
    return node;
  }

  function swatch(series) {
    const canvas = element("canvas", { width: 68, height: 28, className: "swatch" });
    canvas.setAttribute("aria-hidden", "true");
    const c = canvas.getContext("2d");
    c.strokeStyle = series.color;
    c.lineWidth = 2 * series.width;
    c.setLineDash(series.dash.map((d) => 2 * d * series.width));
    c.beginPath(); c.moveTo(2, 14); c.lineTo(66, 14); c.stroke();
    c.setLineDash([]);
    drawMarker(c, series, 34, 14, 6);
    return canvas;
  }

  function build(figure) {
    const chart = charts[figure.dataset.chart];
    const state = { log: chart.log, plot: null };
    const box = element("div", { className: "plot", tabIndex: 0 });
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", chart.title + ": chart. Left and right arrow keys move the reading line.");
    const heading = element("p", { className: "reading" });
    const list = element("ul", { className: "methods" });
    const outputs = chart.series.map((series) => {
      const check = element("input", { type: "checkbox", checked: true });
      check.dataset.method = series.method;
      check.addEventListener("change", () => choose(series.method, check.checked));
      const value = element("output", {});
      list.append(element("li", {}, element("label", {}, check, swatch(series), element("span", {}, series.label)), value));
      return { check, value };
    });
    const reset = element("button", { type: "button", className: "reset" }, "Reset zoom");
    const all = element("button", { type: "button", className: "all" }, "Show all");
    const buttons = element("div", { className: "buttons" }, reset, all);
    reset.addEventListener("click", () => state.plot.setData(state.plot.data, true));
    all.addEventListener("click", () => [...hidden].forEach((method) => choose(method, true)));
    if (chart.switch) {
      const log = element("input", { type: "checkbox", checked: state.log, className: "log" });
      log.addEventListener("change", () => { state.log = log.checked; draw(); });
      buttons.append(element("label", {}, log, " " + chart.switch));
    }
    buttons.append(element("span", { className: "hint" }, "Drag to zoom; hover or use the arrow keys for values."));
    figure.prepend(buttons, box, heading, list);
    figure.classList.add("live");

    function read(index) {
      const at = index == null ? chart.x.length - 1 : index;
      heading.textContent = chart.reading + fine.format(chart.x[at]);
      heading.textContent += " — mean (95% interval)";
      chart.series.forEach((series, k) => {
        const mean = series.mean[at];
        outputs[k].value.textContent = mean == null ? "–"
          : number(chart, mean) + " (" + number(chart, series.low[at]) + " to " + number(chart, series.high[at]) + ")";
      });
    }

    function markers(u) {
      const c = u.ctx, ratio = devicePixelRatio, count = chart.x.length;
      const spacing = chart.every_point ? 1 : Math.max(Math.floor(count / 8), 1);
      c.save();
      c.beginPath(); c.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height); c.clip();
      chart.series.forEach((series, k) => {
        if (hidden.has(series.method)) return;
        const first = chart.every_point ? 0 : Math.floor((k * spacing) / chart.series.length);
        for (let i = first; i < count; i += spacing) {
          if (series.mean[i] == null) continue;
          drawMarker(c, series, u.valToPos(chart.x[i], "x", true), u.valToPos(u.data[3 * k + 1][i], "y", true), 3.2 * ratio);
        }
      });
      c.restore();
    }

    function draw() {
      if (state.plot) state.plot.destroy();
      // On a logarithmic axis a band that reaches below zero ends a little under the lowest mean.
      const floor = 0.5 * Math.min(...chart.series.flatMap((s) => s.mean.filter((v) => v != null && v > 0)));
      const positive = (values) => (state.log ? values.map((v) => (v == null ? null : Math.max(v, floor))) : values);
      const data = [chart.x], series = [{}], bands = [];
      chart.series.forEach((s) => {
        const show = !hidden.has(s.method), none = { show, stroke: "transparent", width: 0, spanGaps: true, points: { show: false } };
        series.push(
          { show, stroke: s.color, width: s.width, dash: s.dash.map((d) => d * s.width), spanGaps: true, points: { show: false } },
          none, { ...none });
        bands.push({ series: [series.length - 1, series.length - 2], fill: s.color + "26" });
        data.push(positive(s.mean), positive(s.low), positive(s.high));
      });
      const axis = { stroke: "#333", grid: { stroke: "#0001", width: 1 }, ticks: { stroke: "#0003", width: 1 }, font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif" };
      const fromZero = (u, low, high) => (low == null ? [0, 1] : [0, high * 1.04]);
      const marks = (u, splits) => splits.map((v) => (v == null ? "" : Math.abs(v) >= 10 ? whole.format(v) : fine.format(v)));
      state.plot = new uPlot({
        width: box.clientWidth, height: Math.round(Math.min(380, Math.max(260, box.clientWidth * 0.6))),
        legend: { show: false },
        cursor: { drag: { x: true, y: true, uni: 25 }, points: { show: false } },
        scales: {
          x: { time: false },
          y: state.log ? { distr: 3 } : { auto: true, range: chart.limits ? () => chart.limits : fromZero },
        },
        series, bands,
        axes: [
          { ...axis, label: chart.xlabel, size: 32, labelSize: 20, labelGap: 2, values: marks },
          { ...axis, label: chart.ylabel, size: 58, labelSize: 22, values: marks },
        ],
        hooks: { draw: [markers], setCursor: [(u) => read(u.cursor.idx)] },
      }, data, box);
      read(null);
    }

    box.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const u = state.plot, last = chart.x.length - 1;
      const now = u.cursor.idx == null ? last : u.cursor.idx;
      const next = Math.max(0, Math.min(last, now + step * Math.max(1, Math.round(last / 50))));
      u.setCursor({ left: u.valToPos(chart.x[next], "x"), top: u.over.clientHeight / 2 });
    });
    new ResizeObserver(() => {
      if (state.plot && Math.abs(box.clientWidth - state.plot.width) > 1) {
        state.plot.setSize({ width: box.clientWidth, height: state.plot.height });
      }
    }).observe(box);
    draw();
    live.push({
      show(method, visible) {
        chart.series.forEach((series, k) => {
          if (series.method !== method) return;
          outputs[k].check.checked = visible;
          for (const part of [1, 2, 3]) state.plot.setSeries(3 * k + part, { show: visible });
        });
      },
      plot: () => state.plot,
    });
  }

  // A method is chosen for the whole page: the same question is usually asked of every scenario.
  function choose(method, visible) {
    visible ? hidden.delete(method) : hidden.add(method);
    live.forEach((entry) => entry.show(method, visible));
  }

  // Tells the reader that a table or picture wider than the screen scrolls.
  function watch(box) {
    const said = element("p", { className: "sideways", hidden: true }, "Scroll sideways to see the rest \u2192");
    box.after(said);
    const look = () => {
      const wide = box.scrollWidth > box.clientWidth + 1;
      box.classList.toggle("wide", wide);
      box.classList.toggle("ended", box.scrollLeft + box.clientWidth >= box.scrollWidth - 2);
      said.hidden = !wide;
    };
    box.addEventListener("scroll", look, { passive: true });
    new ResizeObserver(look).observe(box);
    look();
  }

  document.querySelectorAll("figure[data-chart]").forEach(build);
  document.querySelectorAll(".scroll, .still").forEach(watch);
  document.documentElement.dataset.ready = String(live.length);
})();
