// What happened over time: four charts that share their time axis, and the delays of rewards.

import { debounce, faded, h, number, plural, savePicture, saveTable, saving, shareOf, span, table, tick, time, token, twin, whole } from "./dom.js";

export const RANGES = [
  { step: 5, slots: 180, title: "15 minutes", window: 12 },
  { step: 60, slots: 360, title: "6 hours", window: 5 },
  { step: 900, slots: 672, title: "7 days", window: 4 },
];

// Sums over a moving window of slots: single slots hold too few rewards to be read.
function moving(values, window) {
  const sums = new Array(values.length);
  let sum = 0;
  for (let k = 0; k < values.length; k++) {
    sum += values[k] - (k >= window ? values[k - window] : 0);
    sums[k] = sum;
  }
  return sums;
}
const ratio = (above, below, least = 1e-9) => above.map((value, k) => (below[k] > least ? value / below[k] : null));
const perMinute = (data, name) => data.sums[name].map((value) => (60 * value) / data.step);

const CHARTS = [
  {
    title: "Decisions and rewards",
    unit: "per minute",
    about: "How many decisions were made, and how many rewards came, in each minute.",
    series: [
      { title: "decisions", colour: "--first", of: (data) => perMinute(data, "decisions") },
      { title: "rewards", colour: "--second", dash: [5, 3], of: (data) => perMinute(data, "rewards") },
    ],
  },
  {
    title: "Mean reward",
    unit: "moving average",
    about: "What decisions earned, and what arms drawn at random would have earned, estimated from the decisions that explore.",
    floats: true,
    series: [
      { title: "chosen by the policy", colour: "--first", of: (data, w) => ratio(moving(data.sums.reward, w), moving(data.sums.matched, w)) },
      { title: "at random", colour: "--second", dash: [5, 3], of: (data, w) => ratio(moving(data.sums.weighted, w), moving(data.sums.weight, w), 0.5) },
    ],
  },
  {
    title: "What sharing is worth",
    unit: "squared error saved per reward, since the start",
    about: "", // the verdict
    band: true,
    series: [
      { title: "saved so far", colour: "--first", of: (data) => data.paid.mean },
      { title: "at least", colour: "--first", faint: true, of: (data) => data.paid.low },
      { title: "at most", colour: "--first", faint: true, of: (data) => data.paid.high },
    ],
  },
  {
    title: "Pairs that parted",
    unit: "per minute",
    about: "How many pairs of agents stopped sharing, and how many agents joined, in each minute.",
    series: [
      { title: "pairs parted", colour: "--first", of: (data) => perMinute(data, "cuts").map((value) => (data.sizes.cuts === null ? value || null : value)) }, // null: not recorded
      { title: "agents joined", colour: "--second", dash: [5, 3], of: (data) => perMinute(data, "joined") },
    ],
  },
];

// Axes say the time of day, and at midnight the day.
function clockTime(seconds) {
  const date = new Date(1000 * seconds), two = (value) => String(value).padStart(2, "0");
  if (date.getHours() + date.getMinutes() + date.getSeconds() === 0) return date.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  return `${two(date.getHours())}:${two(date.getMinutes())}${date.getSeconds() ? `:${two(date.getSeconds())}` : ""}`;
}

class Chart {
  constructor(kind, charts) {
    this.kind = kind;
    this.charts = charts;
    this.reading = h("p", { class: "reading", "aria-live": "off" });
    this.box = h("div", {
      class: "plot", tabindex: "0", role: "group",
      "aria-label": `${kind.title}: chart. Left and right arrow keys move the reading line; the table below has the same numbers.`,
      onkeydown: (event) => this.move(event),
    });
    this.twin = twin(() => this.table());
    this.node = h("figure", { class: "card chart" },
      h("header", {}, h("h3", {}, kind.title), h("span", { class: "note" }, kind.unit)),
      this.about = h("p", { class: "note" }, kind.about), this.reading, this.box,
      h("div", { class: "under" }, this.twin.details, saving(kind.title, { PNG: () => this.png(), CSV: () => this.csv() })));
    this.node.style.margin = 0;
  }

  show(data, between = this.between) {
    this.between = between;
    const { window } = RANGES.find((range) => range.step === data.step);
    this.data = data;
    if (this.kind.band) this.about.textContent = data.dividend.text;
    this.lines = this.kind.series.map((series) => series.of(data, window));
    // before the first record there is nothing, rather than zeros
    const first = data.sums.decisions.findIndex((value, k) => value || data.sums.rewards[k] || data.sums.observed[k]);
    let from = Math.max(0, (first < 0 ? data.starts.length - 2 : first) - 1);
    let end = data.starts.length - 1; // without the last slot, which is not over yet
    if (between) {
      from = Math.max(from, data.starts.findIndex((start) => start + data.step > between[0]));
      end = Math.min(end, data.starts.findLastIndex((start) => start < between[1]) + 1);
    }
    this.starts = data.starts.slice(from, end);
    this.lines = this.lines.map((line) => line.slice(from, end));
    const values = [this.starts, ...this.lines];
    if (!this.plot || this.step !== data.step) this.make(values);
    else this.plot.setData(values);
    this.step = data.step;
    this.box.dataset.void = this.lines.every((line) => line.every((value) => value === null)) ? "Nothing yet" : "";
    this.read();
    this.twin.renew();
  }

  make(values) {
    this.plot?.destroy();
    const soft = token("--soft"), line = token("--line");
    const axis = { stroke: soft, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "12px system-ui, sans-serif" };
    const { kind } = this;
    this.plot = new uPlot({
      width: this.width(), height: 180, cursor: { sync: { key: "time" }, y: false, points: { size: 7 } }, legend: { show: false },
      padding: [8, 26, 0, 12], // half a label of the time axis on either side
      scales: { y: { range: kind.band ? () => this.around() : kind.floats ? undefined : (_, low, high) => [0, Math.max(1, (high || 0) * 1.08)] } },
      axes: [{ ...axis, space: 74, size: 32, values: (_, ticks) => ticks.map(clockTime) }, { ...axis, size: 50, values: (_, ticks) => ticks.map(tick) }],
      series: [{}, ...kind.series.map((series) => ({
        stroke: faded(token(series.colour), series.faint ? 0.35 : 1), width: series.faint ? 1 : 2, dash: series.dash, spanGaps: true, points: { show: false },
      }))],
      bands: kind.band ? [{ series: [3, 2], fill: faded(token("--first"), 0.14) }] : [],
      hooks: { setCursor: [() => this.read()], draw: [(plot) => this.drawMarks(plot)], drawAxes: kind.band ? [(plot) => this.zero(plot)] : [] },
    }, values, this.box);
  }

  // Zero and the later intervals: the first ones are so wide that a picture of them would show nothing else.
  around() {
    const late = this.lines.flatMap((line) => line.slice(Math.floor(line.length / 5))).filter((value) => value !== null);
    const low = Math.min(0, ...late), high = Math.max(0, ...late), room = 0.08 * (high - low) || 1;
    return [low - room, high + room];
  }

  zero({ ctx, bbox, valToPos }) {
    ctx.fillStyle = token("--soft");
    ctx.fillRect(bbox.left, valToPos(0, "y", true), bbox.width, devicePixelRatio);
  }

  // Where settings changed (dashed), and the moment that the page shows.
  drawMarks({ ctx, bbox, valToPos, scales }) {
    ctx.save();
    ctx.lineWidth = 1.5 * devicePixelRatio;
    ctx.strokeStyle = token("--accent");
    for (const { at, dashed } of this.marks ?? []) {
      if (at < scales.x.min || at > scales.x.max) continue;
      const x = valToPos(at, "x", true);
      ctx.setLineDash(dashed ? [4 * devicePixelRatio, 4 * devicePixelRatio] : []);
      ctx.beginPath(); ctx.moveTo(x, bbox.top); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke();
    }
    ctx.restore();
  }

  mark(marks) {
    this.marks = marks;
    this.plot?.redraw(false);
  }

  // The picture with its title and legend, on the colour of the page.
  png() {
    const from = this.plot.ctx.canvas, scale = devicePixelRatio || 1, canvas = h("canvas", { width: from.width, height: from.height + 52 * scale }), c = canvas.getContext("2d");
    c.fillStyle = token("--card"); c.fillRect(0, 0, canvas.width, canvas.height);
    c.drawImage(from, 0, 52 * scale);
    c.scale(scale, scale);
    c.fillStyle = token("--text"); c.font = "600 14px system-ui, sans-serif"; c.fillText(this.kind.title, 10, 20);
    c.font = "12px system-ui, sans-serif";
    let x = 10;
    for (const { title, colour } of this.kind.series) {
      c.fillStyle = token(colour); c.fillRect(x, 37, 14, 3);
      c.fillStyle = token("--soft"); c.fillText(title, x + 19, 42);
      x += 34 + c.measureText(title).width;
    }
    savePicture(canvas, this.kind.title);
  }

  csv() {
    const rows = this.starts.map((start, k) => [new Date(1000 * start).toISOString(), ...this.lines.map((line) => line[k])]);
    saveTable(["from", ...this.kind.series.map(({ title }) => title)], rows, this.kind.title);
  }

  width() { return Math.max(220, this.box.clientWidth || 320); }
  resize() { this.plot?.setSize({ width: this.width(), height: 180 }); }
  recolour() { if (this.data) { this.step = null; this.show(this.data); } }

  read() {
    if (!this.starts) return;
    const at = this.plot?.cursor.idx ?? this.starts.length - 1;
    this.reading.replaceChildren(h("span", {}, at === this.starts.length - 1 ? "latest" : time(this.starts[at])),
      ...this.kind.series.map((series, k) => {
        const mark = h("i", { "aria-hidden": "true" });
        mark.style.background = token(series.colour);
        return h("span", {}, mark, `${series.title} `, h("b", {}, number(this.lines[k][at])));
      }));
  }

  move(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (!step || !this.plot) return;
    event.preventDefault();
    const last = this.starts.length - 1;
    const at = Math.max(0, Math.min(last, (this.plot.cursor.idx ?? last) + step));
    this.plot.setCursor({ left: this.plot.valToPos(this.starts[at], "x"), top: 10 });
    this.reading.setAttribute("aria-live", "polite");
  }

  table() {
    const rows = this.starts.map((start, k) => ({ start, k })).reverse();
    return table(this.kind.title, [
      { title: "from", value: (row) => time(row.start) },
      ...this.kind.series.map((series, s) => ({ title: series.title, value: (row) => this.lines[s][row.k] })),
    ], rows.slice(0, 400));
  }
}

function delayClasses(data) {
  const bounds = data.delay_bounds;
  const last = data.delays.findLastIndex((count) => count > 0);
  return data.delays.slice(0, Math.max(last + 1, 4)).map((count, k) => ({
    count,
    title: k === 0 ? `up to ${span(bounds[0])}` : k === bounds.length ? `over ${span(bounds.at(-1))}` : `${span(bounds[k - 1])} to ${span(bounds[k])}`,
  }));
}

export class Series {
  constructor(onrange) {
    this.charts = CHARTS.map((kind) => new Chart(kind));
    this.delays = h("section", { class: "card bars" });
    this.range = RANGES[0];
    this.buttons = RANGES.map((range) =>
      h("button", { type: "button", "aria-pressed": String(range === this.range), onclick: () => this.choose(range, onrange) }, range.title));
    this.since = h("p", {});
    this.custom = h("button", { type: "button", "aria-pressed": "false", onclick: () => this.choose(null, onrange) }, "Custom");
    [this.from, this.to] = ["From", "To"].map((label) => h("input", { type: "datetime-local", "aria-label": label, onchange: debounce(() => this.choose(null, onrange), 200) }));
    this.ends = h("div", { class: "ends", hidden: true }, this.from, "to", this.to);
    this.node = h("section", { class: "band", "aria-labelledby": "over-time" },
      h("header", {}, h("div", {}, h("h2", { id: "over-time" }, "Over time"), this.since),
        h("div", { class: "choices" }, this.ends, h("div", { class: "choice", role: "group", "aria-label": "How far back" }, this.buttons, this.custom))),
      h("div", { class: "cards wide" }, this.charts.map((chart) => chart.node)));
    this.resizing = new ResizeObserver(() => this.charts.forEach((chart) => chart.resize()));
    this.resizing.observe(this.node);
  }

  // One of the ranges, or what lies between two times, in the finest slots that reach as far back.
  choose(range, onrange) {
    this.custom.setAttribute("aria-pressed", String(!range));
    this.ends.hidden = Boolean(range);
    this.between = null;
    if (!range) {
      const local = (seconds) => new Date(1000 * seconds - 60000 * new Date().getTimezoneOffset()).toISOString().slice(0, 16), now = Date.now() / 1000;
      this.from.value ||= local(now - 3600);
      this.to.value ||= local(now + 60);
      this.between = [Date.parse(this.from.value) / 1000, Date.parse(this.to.value) / 1000];
      range = RANGES.find(({ step, slots }) => now - this.between[0] <= step * slots) ?? RANGES.at(-1);
    }
    this.range = range;
    this.buttons.forEach((button, k) => button.setAttribute("aria-pressed", String(!this.between && RANGES[k] === range)));
    onrange(range.step);
  }

  show(data) {
    this.data = data;
    this.since.textContent = !data.since ? "From the first record on."
      : `From record ${whole(data.since + 1)} on: ${data.since <= data.archived ? "earlier ones are archived" : "the page looks no further back"}.`;
    this.charts.forEach((chart) => chart.show(data, this.between ?? null));
    this.showDelays();
  }

  mark(changes, moment) {
    const marks = changes.slice(0, -1).filter(({ at }) => at !== null).map(({ at }) => ({ at, dashed: true })); // the last is how it was made
    if (moment) marks.push({ at: moment });
    this.charts.forEach((chart) => chart.mark(marks));
  }

  // A second has passed: the last slots have grown, or a new one has begun.
  tick(slots) {
    const news = slots[this.range.step];
    if (!this.data || this.data.step !== news.step) return;
    const { starts, sums, paid } = this.data;
    this.data.dividend = news.dividend;
    news.starts.forEach((start, k) => {
      let at = starts.lastIndexOf(start);
      if (at < 0 && start > starts.at(-1)) {
        while (starts.at(-1) < start) {
          starts.push(starts.at(-1) + this.data.step);
          starts.shift();
          for (const values of Object.values(sums)) { values.push(0); values.shift(); }
          for (const values of Object.values(paid)) { values.push(values.at(-1)); values.shift(); }
        }
        at = starts.length - 1;
      }
      if (at < 0) return;
      for (const [name, values] of Object.entries(sums)) values[at] = news.sums[name][k];
      for (const [name, values] of Object.entries(paid)) values[at] = news.paid[name][k];
    });
    this.charts.forEach((chart) => chart.show(this.data));
  }

  showDelays() {
    const rows = delayClasses(this.data);
    const total = rows.reduce((sum, row) => sum + row.count, 0), most = Math.max(1, ...rows.map((row) => row.count));
    const missed = this.data.sums.missed.reduce((sum, value) => sum + value, 0);
    this.delays.replaceChildren(
      h("header", {}, h("h3", {}, "Delays of rewards"), h("span", { class: "note" }, plural(total, "reward"))),
      h("p", { class: "note" }, missed ? `From decision to reward. ${plural(missed, "reward")} did not come in time.` : "From decision to reward."),
      table("Rewards by their delay", [
        { title: "delay", value: (row) => row.title },
        { title: "share", value: (row) => row.count / Math.max(1, total), text: (value) => (total ? shareOf(value) : "–"), bar: (row) => row.count / most },
        { title: "rewards", value: (row) => row.count, text: whole },
      ], rows),
      saving("Delays of rewards", { CSV: () => saveTable(["delay", "rewards"], rows.map((row) => [row.title, row.count]), "Delays of rewards") }));
  }

  recolour() { this.charts.forEach((chart) => chart.recolour()); }
  close() { this.resizing.disconnect(); this.charts.forEach((chart) => chart.plot?.destroy()); }
}

// The figures at the head of the page, over the last minute (rates) and the last five (means), if slots are that short.
export function totals(data) {
  const last = (name, seconds) => {
    const count = Math.max(1, Math.round(seconds / data.step)), values = data.sums[name].slice(-count - 1, -1);
    return { sum: values.reduce((all, value) => all + value, 0), minutes: (count * data.step) / 60 };
  };
  const sum = (name) => last(name, 300).sum, rate = (name) => last(name, 60).sum / last(name, 60).minutes;
  const matched = sum("matched"), weight = sum("weight");
  return {
    perMinute: rate("decisions"), rewardsPerMinute: rate("rewards"),
    mean: matched ? sum("reward") / matched : null,
    random: weight > 0.5 ? sum("weighted") / weight : null,
    dividend: data.dividend,
  };
}

// A line without axes, for cards.
export function sparkline(canvas, values, label) {
  const ratio_ = devicePixelRatio || 1, box = canvas.getBoundingClientRect();
  canvas.width = Math.max(1, box.width * ratio_);
  canvas.height = Math.max(1, box.height * ratio_);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", label);
  if (values.at(-2)) values = values.slice(0, -1); // the last minute is not over yet
  const first = values.findIndex((value) => value > 0);
  values = values.slice(Math.max(0, Math.min(first < 0 ? 0 : first - 1, values.length - 10)));
  const c = canvas.getContext("2d"), high = Math.max(1, ...values), colour = token("--first");
  const x = (k) => (k / Math.max(1, values.length - 1)) * (canvas.width - 2 * ratio_) + ratio_, y = (value) => canvas.height - 2 * ratio_ - (value / high) * (canvas.height - 5 * ratio_);
  c.beginPath();
  values.forEach((value, k) => (k ? c.lineTo(x(k), y(value)) : c.moveTo(x(k), y(value))));
  c.strokeStyle = colour; c.lineWidth = 1.75 * ratio_; c.lineJoin = "round"; c.stroke();
  c.lineTo(x(values.length - 1), canvas.height); c.lineTo(x(0), canvas.height); c.closePath();
  c.fillStyle = faded(colour, 0.12); c.fill();
}
