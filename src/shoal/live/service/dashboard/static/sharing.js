// Who shares with whom: a graph of up to 150 agents, a matrix of up to 500, a heat map of many more, and a slider through time.

import * as api from "./api.js";
import { badge, blockName, calm, colourOf, COLOURS, debounce, h, letter, percent, plural, savePicture, saveTable, saving, shareOf, table, time, token, twin, whole } from "./dom.js";

const MOST_NODES = 150; // agents that are drawn as a graph
const MOST_EDGES = 6000; // drawn at once; a sample of more looks the same, and stays quick
const FADE = 4000; // milliseconds in which an edge that was cut disappears
const GOLDEN = Math.PI * (3 - Math.sqrt(5));

// Whether a pair is in the sample that is drawn: the same pairs each time.
function hashed(i, j) {
  let x = Math.imul(i + 1, 0x9e3779b1) ^ Math.imul(j + 1, 0x85ebca6b);
  x = Math.imul(x ^ (x >>> 15), 0x2c1b3c6d);
  return ((x ^ (x >>> 13)) >>> 0) / 2 ** 32;
}

function bytes(base64) {
  const text = atob(base64), found = new Uint8Array(text.length);
  for (let k = 0; k < text.length; k++) found[k] = text.charCodeAt(k);
  return found;
}

// Whether two agents share, by their places.
function sharing(data) {
  const together = bytes(data.edges), n = data.agents.length;
  const offset = (i) => i * (n - 1) - (i * (i - 1)) / 2; // where the pairs (i, i + 1), (i, i + 2), … start
  return (i, j) => {
    if (i === j) return false;
    const place = i < j ? offset(i) + j - i - 1 : offset(j) + i - j - 1;
    return Boolean(together[place >> 3] & (128 >> (place & 7)));
  };
}

// A colour for WebGL, which wants its parts multiplied by the opacity.
function thin(colour, opacity) {
  const [r, g, b] = colour.match(/[\d.]+/g).map((part) => Math.round(part * opacity));
  return `rgba(${r}, ${g}, ${b}, ${opacity})`;
}

// Blocks as discs of agents in the order of sunflower seeds; the discs are packed around the largest one.
function layout(labels, aspect) {
  const members = new Map();
  labels.forEach((label, agent) => members.set(label, [...(members.get(label) || []), agent]));
  const blocks = [...members].sort((one, two) => Math.min(0, two[0]) - Math.min(0, one[0]) || two[1].length - one[1].length || one[0] - two[0]);
  const x = new Float64Array(labels.length), y = new Float64Array(labels.length), discs = [];
  for (const [label, agents] of blocks) {
    const loose = label < 0 ? 1.7 : 1, radius = loose * (Math.sqrt(agents.length) + 0.9);
    const centre = discs.length ? free(discs, radius, aspect) : [0, 0];
    discs.push({ label, x: centre[0], y: centre[1], radius, size: agents.length });
    agents.forEach((agent, k) => {
      const reach = agents.length === 1 ? 0 : loose * Math.sqrt(k + 0.5), turn = k * GOLDEN;
      x[agent] = centre[0] + reach * Math.cos(turn);
      y[agent] = centre[1] + reach * Math.sin(turn);
    });
  }
  return { x, y, discs };
}

// Where a disc touches no other, and all of them together fit best into a box of this aspect.
function free(discs, radius, aspect) {
  const side = (sign, axis, at) => sign * Math.max(sign * at + radius, ...discs.map((disc) => sign * disc[axis] + disc.radius));
  let best = [0, 0], least = Infinity;
  for (const disc of discs) {
    for (let k = 0; k < 48; k++) {
      const turn = (k / 48) * 2 * Math.PI, reach = disc.radius + radius + 1.6;
      const x = disc.x + reach * Math.cos(turn), y = disc.y + reach * Math.sin(turn);
      const box = Math.max((side(1, "x", x) - side(-1, "x", x)) / aspect, side(1, "y", y) - side(-1, "y", y));
      const score = box + 0.01 * Math.hypot(x, y);
      if (score < least - 1e-9 && discs.every((other) => Math.hypot(other.x - x, other.y - y) > other.radius + radius + 1.5)) {
        best = [x, y];
        least = score;
      }
    }
  }
  return best;
}

class GraphView {
  constructor(stage, onpick) {
    this.stage = stage;
    this.onpick = onpick;
    this.plane = h("div", { class: "plane", tabindex: "0", role: "application" });
    this.letters = h("div", { class: "letters", "aria-hidden": "true" });
    this.plane.addEventListener("keydown", (event) => this.key(event));
    stage.replaceChildren(this.plane, this.letters, h("div", { class: "zoom" },
      h("button", { type: "button", "aria-label": "Zoom in", onclick: () => this.sigma?.getCamera().animatedZoom(1.6) }, "+"),
      h("button", { type: "button", "aria-label": "Zoom out", onclick: () => this.sigma?.getCamera().animatedUnzoom(1.6) }, "−"),
      h("button", { type: "button", "aria-label": "Show everything", onclick: () => this.sigma?.getCamera().animatedReset() }, "⤢")));
    this.graph = new graphology.Graph({ type: "undirected" });
    this.names = [];
    this.at = new Map();
    this.picked = null;
    this.hovered = null;
    this.fading = new Map();
  }

  // Drawn anew: WebGL keeps a picture only until the browser has shown it.
  layers() {
    this.sigma.refresh();
    return Object.values(this.sigma.getCanvases());
  }

  start() {
    const { graph } = this;
    this.sigma = new Sigma(graph, this.plane, {
      labelRenderedSizeThreshold: 0, labelDensity: 1, labelGridCellSize: 60, labelFont: "system-ui, sans-serif", labelSize: 12,
      labelColor: { color: token("--text") }, defaultEdgeColor: token("--edge"), minEdgeThickness: 0.6, zIndex: true, stagePadding: 34,
      allowInvalidContainer: true, minCameraRatio: 0.05, maxCameraRatio: 3,
      defaultDrawNodeLabel: (context, data, settings) => this.drawLabel(context, data, settings),
      defaultDrawNodeHover: (context, data, settings) => this.drawHover(context, data, settings),
      nodeReducer: (node, data) => this.reduceNode(node, data),
      edgeReducer: (edge, data) => this.reduceEdge(edge, data),
    });
    this.sigma.on("clickNode", ({ node }) => this.onpick(this.names[node]));
    this.sigma.on("clickStage", () => this.onpick(null));
    const hover = (node) => {
      this.hovered = node;
      this.plane.style.cursor = node === null ? "" : "pointer";
      if (this.picked === null) { this.setEdges(); this.sigma.scheduleRefresh(); }
    };
    this.sigma.on("enterNode", ({ node }) => hover(node));
    this.sigma.on("leaveNode", () => hover(null));
    this.sigma.on("beforeRender", () => { this.labelled = null; });
    this.sigma.on("afterRender", () => this.placeLetters());
  }

  // A name beside its agent, unless it would run into another name, another agent or out of the picture.
  drawLabel(context, data, settings) {
    if (!data.label) return;
    if (!this.labelled) this.labelled = this.graph.mapNodes((node, { x, y }) => ({ ...this.sigma.graphToViewport({ x, y }), node })).map(({ x, y, node }) => ({ x: x - 5, y: y - 5, width: 10, height: 10, node }));
    context.font = `${settings.labelSize}px ${settings.labelFont}`;
    const box = { x: data.x + data.size + 3, y: data.y - 8, width: context.measureText(data.label).width + 4, height: 16 };
    const hits = (other) => other.node !== data.key && box.x < other.x + other.width && other.x < box.x + box.width && box.y < other.y + other.height && other.y < box.y + box.height;
    if (box.x + box.width > this.plane.clientWidth || this.labelled.some(hits)) return;
    this.labelled.push(box);
    context.fillStyle = token("--text");
    context.fillText(data.label, box.x, data.y + settings.labelSize / 3);
  }

  drawHover(context, data, settings) {
    context.font = `600 ${settings.labelSize}px ${settings.labelFont}`;
    const width = context.measureText(data.label).width, { x, y, size } = data;
    context.fillStyle = token("--card");
    context.strokeStyle = token("--strong");
    context.beginPath();
    context.roundRect(x + size + 2, y - 11, width + 12, 22, 5);
    context.fill();
    context.stroke();
    context.fillStyle = token("--text");
    context.fillText(data.label, x + size + 8, y + settings.labelSize / 3);
  }

  show(data) {
    const n = data.agents.length;
    this.shares = sharing(data);
    this.data = data;
    if (!this.sigma) this.start();
    const before = this.names, { graph } = this;
    const same = before.length <= n && before.every((name, k) => name === data.agents[k]);
    if (!same) graph.clear();
    this.names = data.agents;
    this.at = new Map(data.agents.map((name, k) => [name, k]));
    const { x, y, discs } = layout(data.labels, this.aspect());
    this.discs = discs;
    const most = Math.max(1, ...data.samples), room = n > 200 ? 3.2 : n > 60 ? 5 : 8;
    const colours = new Map([...new Set(data.labels)].map((label) => [label, colourOf(label)]));
    this.colours = data.labels.map((label) => colours.get(label));
    for (let k = 0; k < n; k++) {
      if (!graph.hasNode(k)) graph.addNode(k, { x: x[k], y: y[k], size: room, label: data.agents[k], color: this.colours[k] });
    }
    for (let k = 0; k < n; k++) this.restyle("Node", k, { size: room * (0.6 + 0.6 * Math.sqrt(data.samples[k] / most)), color: this.colours[k] });
    const look = `${data.edges} ${data.labels} ${this.picked} ${token("--text")}`;
    if (look !== this.look) {
      this.look = look;
      this.fitBox(discs);
      this.setEdges();
      this.moveTo(x, y);
    }
    this.sigma.scheduleRefresh();
    this.describe();
  }

  aspect() {
    const { clientWidth, clientHeight } = this.plane;
    return Math.max(0.6, Math.min(3, clientWidth / Math.max(1, clientHeight)));
  }

  fitBox(discs) {
    const low = (axis) => Math.min(...discs.map((disc) => disc[axis] - disc.radius)), high = (axis) => Math.max(...discs.map((disc) => disc[axis] + disc.radius));
    if (discs.length) this.sigma.setCustomBBox({ x: [low("x"), high("x")], y: [low("y"), high("y")] });
  }

  // Changes attributes without telling sigma, which would handle each by itself; it refreshes all of them later.
  restyle(kind, key, attributes) {
    Object.assign(this.graph[`get${kind}Attributes`](key), attributes);
  }

  // Which edges to draw: a sample of those within blocks, and all edges of the agent that is picked or pointed at.
  wanted() {
    const { labels, agents } = this.data, n = agents.length, found = new Map(), within = [];
    const focus = this.picked ?? (this.hovered === null ? null : +this.hovered);
    for (let i = 0; i < n; i++) {
      for (let j = i + 1; j < n; j++) {
        if (!this.shares(i, j)) continue;
        if (focus === i || focus === j) found.set(`${i}-${j}`, { i, j, own: true });
        else if (labels[i] === labels[j] && labels[i] >= 0) within.push([i, j]);
      }
    }
    const keep = MOST_EDGES / Math.max(1, within.length);
    for (const [i, j] of within) if (hashed(i, j) < keep) found.set(`${i}-${j}`, { i, j, own: false });
    this.crowded = within.length > 3000;
    return found;
  }

  setEdges() {
    const { graph } = this, wanted = this.wanted(), gone = [];
    graph.forEachEdge((edge, attributes, source, target) => {
      if (wanted.has(edge) || this.fading.has(edge)) return;
      if (!this.shares(+source, +target) && this.fading.size + gone.length < 400) gone.push(edge);
      else graph.dropEdge(edge);
    });
    const focus = this.picked ?? this.hovered;
    for (const [key, { i, j, own }] of wanted) {
      const attributes = { color: thin(this.colours[own ? focus : i], own ? 0.8 : this.crowded ? 0.16 : 0.4), size: own ? 1.8 : 1.2, zIndex: own ? 2 : 0, own };
      this.fading.delete(key);
      if (!graph.hasEdge(key)) graph.addEdgeWithKey(key, i, j, attributes);
      else this.restyle("Edge", key, attributes);
    }
    const now = performance.now();
    for (const edge of gone) this.fading.set(edge, now);
    if (gone.length) this.fade();
  }

  fade() {
    if (this.ticking) return;
    const bad = token("--bad");
    const step = () => {
      const now = performance.now(), { graph } = this;
      for (const [edge, since] of this.fading) {
        if (!graph.hasEdge(edge)) this.fading.delete(edge);
        else if (calm() || now - since >= FADE) { this.fading.delete(edge); graph.dropEdge(edge); }
      }
      if (this.fading.size) {
        for (const [edge, since] of this.fading) this.restyle("Edge", edge, { color: thin(bad, 0.8 * (1 - (now - since) / FADE)), size: 1.6, zIndex: 3, own: true });
        this.sigma.scheduleRefresh();
      }
      this.ticking = this.fading.size && this.sigma ? setTimeout(step, 250) : 0;
    };
    step();
  }

  moveTo(x, y) {
    const from = this.graph.mapNodes((node, { x: fromX, y: fromY }) => [fromX, fromY]);
    const far = from.some(([a, b], k) => Math.hypot(a - x[k], b - y[k]) > 1e-6);
    cancelAnimationFrame(this.moving);
    if (!far) return;
    const began = performance.now(), length = calm() || document.hidden ? 1 : 700;
    const step = () => {
      const t = Math.min(1, (performance.now() - began) / length), ease = t * t * (3 - 2 * t);
      from.forEach(([a, b], k) => this.restyle("Node", k, { x: a + ease * (x[k] - a), y: b + ease * (y[k] - b) }));
      this.sigma.scheduleRefresh();
      if (t < 1) this.moving = requestAnimationFrame(step);
    };
    this.moving = requestAnimationFrame(step);
  }

  reduceNode(node, data) {
    const k = +node, focus = this.picked;
    if (focus === null) return data;
    if (k === focus) return { ...data, highlighted: true, zIndex: 2, size: data.size * 1.35, forceLabel: true };
    if (this.shares(k, focus)) return { ...data, zIndex: 1 };
    return { ...data, color: thin(this.colours[k], 0.22), label: "", zIndex: 0 };
  }

  reduceEdge(edge, data) {
    return this.picked === null || data.own ? data : { ...data, hidden: true };
  }

  placeLetters() {
    if (!this.discs) return;
    const several = this.discs.filter((disc) => disc.label >= 0).length > 1;
    this.letters.replaceChildren(...this.discs.filter((disc) => several && disc.label >= 0).map((disc) => {
      const at = this.sigma.graphToViewport({ x: disc.x, y: disc.y + disc.radius + 0.25 });
      const mark = h("span", {}, letter(disc.label));
      mark.style.left = `${at.x}px`;
      mark.style.top = `${at.y}px`;
      mark.style.color = colourOf(disc.label);
      return mark;
    }));
  }

  pick(name) {
    const picked = name !== null && this.at.has(name) ? this.at.get(name) : null;
    if (picked === this.picked || !this.sigma) return;
    this.picked = picked;
    this.setEdges();
    this.sigma.scheduleRefresh();
    this.describe();
  }

  // Arrow keys go to the nearest agent in that direction.
  key(event) {
    const turn = { ArrowRight: 0, ArrowUp: Math.PI / 2, ArrowLeft: Math.PI, ArrowDown: -Math.PI / 2 }[event.key];
    if (event.key === "Escape") return this.onpick(null);
    if (turn === undefined || !this.names.length) return;
    event.preventDefault();
    if (this.picked === null) return this.onpick(this.names[0]);
    const here = this.graph.getNodeAttributes(this.picked);
    let best = null, least = Infinity;
    this.graph.forEachNode((node, { x, y }) => {
      const dx = x - here.x, dy = y - here.y, reach = Math.hypot(dx, dy);
      const ahead = (dx * Math.cos(turn) + dy * Math.sin(turn)) / (reach || 1);
      if (reach > 0 && ahead > 0.5 && reach / ahead ** 2 < least) { least = reach / ahead ** 2; best = +node; }
    });
    if (best !== null) this.onpick(this.names[best]);
  }

  describe() {
    const { data } = this, pairs = (data.agents.length * (data.agents.length - 1)) / 2;
    const who = this.picked === null ? "" : ` ${this.names[this.picked]} is picked.`;
    this.plane.setAttribute("aria-label",
      `Graph of ${plural(data.agents.length, "agent")}: ${whole(data.n_edges)} of ${plural(pairs, "pair")} share.${who} Arrow keys go from agent to agent, Escape clears the choice. The table below shows the same.`);
  }

  recolour() {
    if (!this.sigma) return;
    this.sigma.setSetting("labelColor", { color: token("--text") });
    this.show(this.data);
  }

  close() {
    cancelAnimationFrame(this.moving);
    clearTimeout(this.ticking);
    this.sigma?.kill();
    this.sigma = null;
  }
}

class HeatView {
  layers() { return [this.canvas]; }

  constructor(stage, onpick, ongroup) {
    Object.assign(this, { onpick, ongroup });
    this.picked = h("div", { class: "row", hidden: true });
    this.canvas = h("canvas", { tabindex: "0", role: "img" });
    this.letters = h("div", { class: "letters", "aria-hidden": "true" });
    this.tip = h("p", { class: "tip", hidden: true });
    this.cursor = h("div", { class: "cursor", hidden: true });
    stage.replaceChildren(this.canvas, this.letters, this.picked, this.cursor, this.tip);
    this.canvas.addEventListener("mousemove", (event) => this.point(event));
    this.canvas.addEventListener("mouseleave", () => { this.tip.hidden = true; this.cursor.hidden = true; });
    this.canvas.addEventListener("click", (event) => { this.point(event); this.open(); });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.row = this.column = 0;
  }

  show(data) {
    this.data = data.kind === "graph" ? this.pairs(data) : { ...data, cells: bytes(data.cells) };
    const { labels, cells } = this.data, n = labels.length, rgb = (name) => token(name).match(/\d+/g).map(Number);
    this.n = n;
    this.canvas.width = this.canvas.height = n;
    const low = rgb("--heat-low"), high = rgb("--heat-high"), own = new Map([...new Set(labels)].map((label) => [label, rgb(label < 0 ? "--alone" : `--block-${label % COLOURS}`)]));
    const image = new ImageData(n, n);
    for (let k = 0; k < n * n; k++) {
      const row = labels[Math.floor(k / n)], full = data.kind === "graph" ? (row === labels[k % n] ? own.get(row) : rgb.grey ??= rgb("--edge")) : high, parted = cells[k] / 255;
      for (let c = 0; c < 3; c++) image.data[4 * k + c] = full[c] + parted * (low[c] - full[c]);
      image.data[4 * k + 3] = 255;
    }
    this.canvas.getContext("2d").putImageData(image, 0, 0);
    this.placeLetters();
    const blocks = data.blocks.filter((block) => block.label >= 0).length;
    this.canvas.setAttribute("aria-label",
      `Heat map of ${plural(this.data.n_agents, "agent")} in ${plural(blocks, "block")}: the fuller the colour, the more pairs share. Arrow keys move from group to group, Enter lists a group's agents. The table below has the blocks.`);
  }

  // Up to 500 agents have a row each, in the order of their blocks.
  pairs(data) {
    const rank = new Map(data.blocks.map((block, k) => [block.label, k])), n = data.agents.length;
    const order = data.agents.map((_, k) => k).sort((i, j) => rank.get(data.labels[i]) - rank.get(data.labels[j]) || i - j);
    this.shares = sharing(data);
    const parted = (row, column) => row !== column && !this.shares(order[row], order[column]);
    return {
      ...data, n_agents: n, names: order.map((k) => data.agents[k]), labels: order.map((k) => data.labels[k]),
      cells: Uint8Array.from({ length: n * n }, (_, k) => (parted(Math.floor(k / n), k % n) ? 255 : 0)),
    };
  }

  placeLetters() {
    const { labels } = this.data, spans = [];
    labels.forEach((label, k) => (spans.at(-1)?.label === label ? spans.at(-1).end++ : spans.push({ label, start: k, end: k + 1 })));
    this.letters.replaceChildren(...spans.filter((one) => one.end - one.start > this.n / 28).map((one) => {
      const mark = h("span", {}, letter(one.label)), at = `${(50 * (one.start + one.end)) / this.n}%`;
      mark.style.left = at;
      mark.style.top = at;
      mark.style.color = colourOf(one.label);
      return mark;
    }));
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect(), cell = (at, size) => Math.max(0, Math.min(this.n - 1, Math.floor((at / size) * this.n)));
    this.column = cell(event.clientX - box.left, box.width);
    this.row = cell(event.clientY - box.top, box.height);
    this.mark();
  }

  mark() {
    const { row, column, n } = this, size = 100 / n;
    Object.assign(this.cursor.style, { left: `${column * size}%`, top: `${row * size}%`, width: `max(6px, ${size}%)`, height: `max(6px, ${size}%)` });
    this.cursor.hidden = this.tip.hidden = false;
    this.tip.textContent = this.words();
    Object.assign(this.tip.style, { left: column < n / 2 ? `${column * size + 3}%` : "", right: column < n / 2 ? "" : `${100 - column * size}%`, top: `${Math.min(88, row * size + 3)}%` });
  }

  group(k) { return this.data.names ? `${this.data.names[k]} (${blockName(this.data.labels[k])})` : `${plural(this.data.bounds[k + 1] - this.data.bounds[k], "agent")} of ${blockName(this.data.labels[k])}`; }
  words() {
    const { cells, names } = this.data, level = cells[this.row * this.n + this.column], both = `${this.group(this.row)} and ${this.group(this.column)}`;
    if (names) return this.row === this.column ? this.group(this.row) : `${both} ${level ? "have parted" : "share"}`;
    const parted = 10 ** (((level - 255) * 8) / 254);
    return `${both}: ${!level ? "all pairs share" : parted < 0.01 ? `about 1 of ${whole(+(1 / parted).toPrecision(2))} pairs has parted` : `${shareOf(1 - parted)} of pairs share`}`;
  }

  open() { this.data.names ? this.onpick(this.data.names[this.row]) : this.ongroup(this.data.bounds[this.row], this.data.bounds[this.row + 1], this.group(this.row)); }

  key(event) {
    const [down, right] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key] || [0, 0];
    if (event.key === "Enter") this.open();
    else if (!down && !right) return;
    event.preventDefault();
    const step = event.shiftKey ? 10 : 1, inside = (at) => Math.max(0, Math.min(this.n - 1, at));
    this.row = inside(this.row + step * down);
    this.column = inside(this.column + step * right);
    this.mark();
    this.canvas.setAttribute("aria-label", this.words());
  }

  pick(name) {
    const row = this.data.names?.indexOf(name) ?? -1;
    this.picked.hidden = row < 0;
    Object.assign(this.picked.style, { top: `${(100 * row) / this.n}%`, height: `max(3px, ${100 / this.n}%)` });
  }

  recolour() { this.show(this.data); }
  close() {}
}

export class Sharing {
  constructor(population, onpick, ongroup, onload) {
    this.population = population;
    this.onpick = onpick;
    this.ongroup = ongroup;
    this.onload = onload;
    this.at = null;
    this.view = null;
    this.stage = h("div", { class: "stage" });
    this.note = h("p", { class: "note" });
    this.legend = h("ul", { class: "legend", "aria-label": "Blocks" });
    this.play = h("button", { type: "button", onclick: () => this.playing ? this.stop() : this.run() }, "▶ Play");
    this.now = h("button", { type: "button", disabled: true, onclick: () => { this.stop(); this.go(null); } }, "Now");
    this.slider = h("input", { type: "range", step: "1", "aria-label": "Point in time, by record number" });
    this.when = h("output", {});
    this.twin = twin(() => this.table());
    this.node = h("figure", { class: "card" },
      h("header", {}, h("h2", { id: "who-shares" }, "Who shares with whom"), this.note),
      this.stage, this.legend,
      this.through = h("div", { class: "through" }, this.play, this.slider, this.now, this.when),
      h("div", { class: "under" }, this.twin.details, saving("Who shares with whom", { PNG: () => this.png(), CSV: () => this.csv() })));
    this.node.style.margin = 0;
    const asked = debounce((at) => this.go(at), 90);
    this.slider.addEventListener("input", () => { this.stop(); asked(+this.slider.value); });
  }

  async load() {
    if (this.busy) { this.again = true; return; }
    this.busy = true;
    try {
      const asked = this.at;
      const data = await api.graph(this.population, asked);
      if (this.closed) return;
      if (asked === this.at) this.show(data);
    } finally {
      this.busy = false;
      if (this.again && !this.closed) { this.again = false; this.load(); }
    }
  }

  async go(at) {
    this.at = at;
    await this.load();
  }

  show(data) {
    this.data = data;
    const Kind = data.kind === "graph" && data.agents.length <= MOST_NODES ? GraphView : HeatView;
    if (!(this.view instanceof Kind)) {
      this.view?.close();
      this.stage.classList.toggle("square", Kind === HeatView);
      this.twin.details.open = Kind === HeatView;
      this.view = new Kind(this.stage, this.onpick, this.ongroup);
    }
    if (!data.blocks.length) {
      this.note.textContent = "No agent has joined yet.";
    } else try {
      this.view.show(data);
      this.view.pick(this.picked ?? null);
    } catch (error) {
      if (!/webgl|null/i.test(String(error))) throw error;
      this.stage.replaceChildren(h("p", { class: "empty" }, "This browser cannot draw the graph (WebGL is off). The table below shows the same."));
      this.twin.details.open = true;
    }
    this.describe();
    this.twin.renew();
    this.onload(data);
  }

  describe() {
    const { data } = this, graph = data.kind === "graph", n = graph ? data.agents.length : data.n_agents;
    if (data.blocks.length) {
      const pairs = (n * (n - 1)) / 2;
      this.note.textContent = graph
        ? `${whole(data.n_edges)} of ${plural(pairs, "pair")} share${n > MOST_NODES ? "; agents in the order of their blocks" : data.between.length ? "; point at an agent for its lines" : ""}`
        : `${plural(n, "agent")} in the order of their blocks${data.asked < n ? `; shares estimated from ${whole(data.asked)} of them` : ""}`;
    }
    this.legend.replaceChildren(...data.blocks.slice(0, 12).map((block) =>
      h("li", {}, badge(block.label), `${plural(block.agents, "agent")}${block.label === -2 ? " undecided: they share with several blocks alike" : block.label < 0 ? " in no block" : ""}`)),
      ...(graph ? [] : [h("li", {}, "all share", h("span", { class: "ramp", "aria-hidden": "true" }), "all parted; halfway: 1 pair of 10,000")]));
    this.slider.min = data.first;
    this.slider.max = data.last;
    if (this.at === null) this.slider.value = data.last;
    else if (!this.dragging) this.slider.value = this.at;
    this.now.disabled = this.at === null;
    const still = data.first >= data.last;
    this.slider.disabled = this.play.disabled = still;
    const place = `record ${whole(data.sequence)} of ${whole(data.last)}`;
    this.when.textContent = still ? "This policy keeps no history of who shared with whom." :
      this.at === null ? `Now, after ${place.replace(/ of .*/, "")}. Move the slider to go back in time.` : `After ${place}, ${time(data.at)}`;
    this.slider.setAttribute("aria-valuetext", this.when.textContent);
  }

  async run() {
    this.playing = true;
    this.play.textContent = "❚❚ Pause";
    const { first, last } = this.data, start = this.at === null ? first : this.at;
    for (let k = 0; k <= 60 && this.playing && !this.closed; k++) {
      const began = performance.now();
      await this.go(Math.round(start + ((last - start) * k) / 60));
      await new Promise((done) => setTimeout(done, Math.max(0, 160 - (performance.now() - began))));
    }
    if (this.playing && !this.closed) { this.stop(); this.go(null); }
  }

  stop() {
    this.playing = false;
    this.play.textContent = "▶ Play";
  }

  pick(name) {
    this.picked = name;
    this.view?.pick(name);
  }

  // What the stage shows, with the letters that lie over it.
  png() {
    const scale = devicePixelRatio || 1, box = this.stage.getBoundingClientRect();
    const canvas = h("canvas", { width: Math.round(box.width * scale), height: Math.round(box.height * scale) }), c = canvas.getContext("2d");
    c.fillStyle = token("--card"); c.fillRect(0, 0, canvas.width, canvas.height);
    c.scale(scale, scale);
    c.translate(-box.left, -box.top);
    c.imageSmoothingEnabled = false;
    for (const layer of this.view.layers()) {
      const { left, top, width, height } = layer.getBoundingClientRect();
      c.drawImage(layer, left, top, width, height);
    }
    c.font = "600 14px system-ui, sans-serif"; c.textAlign = "center"; c.textBaseline = "middle";
    for (const mark of this.view.letters.children) {
      const { left, top, width, height } = mark.getBoundingClientRect();
      c.fillStyle = mark.style.color; c.fillText(mark.textContent, left + width / 2, top + height / 2);
    }
    savePicture(canvas, "Who shares with whom");
  }

  csv() {
    const { data } = this, name = (label) => (label < 0 ? "" : letter(label));
    if (data.kind === "graph") saveTable(["agent", "block", "samples"], data.agents.map((agent, k) => [agent, name(data.labels[k]), data.samples[k]]), "Who shares with whom");
    else saveTable(["block", "agents", "samples", "share within"], data.blocks.map((block) => [name(block.label), block.agents, block.samples, block.within]), "Who shares with whom");
  }

  table() {
    const { data } = this, parts = [];
    parts.push(table("Blocks of agents that share", [
      { title: "block", value: (block) => block.label, text: (label) => (label === -2 ? "undecided" : label < 0 ? "in none" : letter(label)) },
      { title: "agents", value: (block) => block.agents, text: whole },
      { title: "samples", value: (block) => block.samples, text: whole },
      { title: "pairs within it that share", value: (block) => block.within, text: shareOf },
      { title: "pairs with others that share", value: (block) => block.beyond, text: shareOf },
    ], data.blocks));
    const name = (label) => (label === -2 ? "undecided" : label < 0 ? "in none" : letter(label));
    parts.push(table("Pairs of blocks, and how many pairs of their agents have parted", [
      { title: "blocks", value: ([one, two]) => (one === two ? `within ${name(one)}` : `${name(one)} and ${name(two)}`) },
      { title: "pairs", value: ([, , pairs]) => pairs, text: whole },
      { title: "parted", value: ([, , , parted]) => Math.round(parted), text: whole },
      { title: "share", value: ([, , pairs, parted]) => parted / pairs, text: (share) => (share < 0.01 ? `1 of ${whole(1 / share)}` : percent(share)) },
    ], data.between, { empty: "No pair has parted." }));
    if (data.kind === "graph") {
      const n = data.agents.length;
      const rows = data.agents.map((name, k) => {
        let shares = 0;
        for (let other = 0; other < n; other++) shares += this.view.shares(k, other);
        return { name, label: data.labels[k], samples: data.samples[k], shares };
      });
      parts.push(table("Agents, and how many others each shares with", [
        { title: "agent", value: (row) => row.name, text: (name) => h("button", { type: "button", class: "link", onclick: () => this.onpick(name) }, name) },
        { title: "block", value: (row) => row.label, text: letter },
        { title: "own samples", value: (row) => row.samples, text: whole },
        { title: "shares with", value: (row) => row.shares, text: whole },
      ], rows));
    }
    return h("div", {}, parts);
  }

  recolour() { if (this.data?.blocks.length) this.view.recolour(); }
  close() { this.closed = true; this.stop(); this.view?.close(); }
}
