// One agent: whom it shares with and why, in words, numbers and a picture.

import * as api from "./api.js";
import { badge, colourOf, faded, h, number, plural, table, time, token, whole } from "./dom.js";

const GOLDEN = Math.PI * (3 - Math.sqrt(5));

export class AgentPanel {
  constructor(population, onpick) {
    this.population = population;
    this.onpick = onpick;
    this.node = h("aside", { class: "card agent", "aria-label": "The picked agent", "aria-live": "polite" });
    this.search = h("input", { type: "search", placeholder: "Find an agent", "aria-label": "Find an agent by name", autocomplete: "off" });
    this.search.addEventListener("keydown", (event) => event.key === "Enter" && this.find(this.search.value, true));
    this.search.addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.search.value && this.find(this.search.value), 250);
    });
    this.place = h("div");
    this.node.append(h("div", { class: "finder" }, this.search), this.place);
    this.invite();
  }

  invite() {
    this.name = null;
    this.place.replaceChildren(h("p", { class: "empty" }, h("h2", {}, "Pick an agent"),
      "Click on one in the picture, or find it by name, to see whose samples it uses, and which agents it parted from, when and why."));
  }

  // Enter picks the only match, or the one of exactly this name.
  async find(text, picks = false) {
    clearTimeout(this.typing);
    const asked = (this.asked = {}), found = await api.agents(this.population, { search: text }), exact = found.agents.find(({ name }) => name === text);
    if (asked !== this.asked) return; // the answer to an earlier question would hide the agent that Enter has picked
    if (picks && (exact || found.found === 1)) this.onpick((exact ?? found.agents[0]).name);
    else this.list(found, found.found ? plural(found.found, "agent") : `No agent is called “${text}”`);
  }

  async group(from, to, words) {
    this.list(await api.agents(this.population, { from, to }), words);
  }

  list(page, title) {
    this.name = null;
    this.place.replaceChildren(h("h4", {}, title), h("ol", {}, page.agents.slice(0, 100).map((agent) =>
      h("li", {}, badge(agent.block),
        h("button", { type: "button", class: "link", onclick: () => this.onpick(agent.name) }, agent.name),
        h("span", { class: "note" }, plural(agent.samples, "sample"))))),
      ...(page.found > 100 ? [h("p", { class: "note" }, `The first 100 of ${whole(page.found)}.`)] : []));
  }

  async show(name) {
    this.name = name;
    try {
      const agent = await api.agent(this.population, name);
      if (this.name === name) this.draw(agent);
    } catch (error) {
      if (this.name === name) this.place.replaceChildren(h("p", { class: "notice", role: "alert" }, error.message));
    }
  }

  draw(agent) {
    this.agent = agent;
    const all = agent.samples + agent.borrowed, own = h("span"), borrowed = h("span");
    own.style.setProperty("--share", all ? agent.samples / all : 0);
    borrowed.style.setProperty("--share", all ? agent.borrowed / all : 0);
    const picture = h("canvas", { role: "img", "aria-label": `${agent.name} in the middle, ${plural(agent.n_lenders, "agent")} that lend to it around it${!agent.records_partings ? "" : `, and ${plural(agent.n_stopped, "agent")} that it has parted from outside`}. The lists below show the same.` });
    this.place.replaceChildren(
      h("header", {}, h("h3", { tabindex: "-1" }, badge(agent.block), agent.name),
        h("button", { type: "button", class: "plain", "aria-label": "Close", onclick: () => this.onpick(null) }, "✕")),
      agent.sharing === "both" ? "" : h("p", { class: "note" }, agent.sharing === "borrow" ? "Borrows, but does not lend." : "Neither lends nor borrows."),
      picture,
      h("dl", { class: "pair" },
        h("div", {}, h("dt", {}, "own samples"), h("dd", {}, whole(agent.samples))),
        h("div", {}, h("dt", {}, "borrowed"), h("dd", {}, number(agent.borrowed)))),
      h("div", { class: "stack", "aria-hidden": "true" }, own, borrowed),
      h("p", { class: "why" }, agent.text),
      ...this.arms(agent),
      h("h4", {}, `Borrows from ${plural(agent.n_lenders, "agent")}`),
      this.people(agent.lenders, agent.n_lenders, (one) => plural(Math.round(one.samples), "sample"), "No agent lends to it."),
      ...(!agent.records_partings ? [] : [h("h4", {}, `Parted from ${plural(agent.n_stopped, "agent")}`), this.people(agent.stopped, agent.n_stopped, (one) =>
        `${one.at === null ? "" : `${time(one.at)}, `}${number(one.margin)} × the threshold now`, "It has parted from none.")]));
    this.paint(picture);
  }

  // Why this arm: each arm's prediction from the agent's own samples, and with borrowed ones.
  arms({ name, samples, borrowed, opinions: [first, ...rest] }) {
    if (!first) return [];
    const next = rest[0], lead = !next ? "" : first.pooled >= next.pooled
      ? `, more than any other arm${first.bonus > next.bonus ? ", and less is known about it" : ""}`
      : `. ${next.arm} has ${number(next.pooled)}, but less is known about ${first.arm}, so it is worth a try`;
    const helped = !borrowed ? "It borrows nothing." : !samples ? `${name} has no samples of its own yet: this is what others have seen.` : `From its own ${plural(samples, "sample")} alone it would be ${number(first.own)}.`;
    return [h("h4", {}, "Which arm, and why"),
      h("p", {}, `Now ${name} would be shown `, h("b", {}, first.arm), `: its expected reward is ${number(first.pooled)}${lead}. ${helped}`),
      table("Predicted reward of each arm", [
        { title: "arm", value: (one) => one.arm },
        { title: "own samples", value: (one) => one.own },
        { title: "with borrowed", value: (one) => one.pooled },
        { title: "bonus", value: (one) => one.bonus },
      ], [first, ...rest])];
  }

  people(some, count, words, none) {
    if (!some.length) return h("p", { class: "note" }, none);
    const shown = some.slice(0, 8), rest = some.slice(8), blocks = new Map(this.agent.around.map(([name, block]) => [name, block]));
    const line = (one) => h("li", {}, badge(blocks.get(one.agent) ?? -1),
      h("button", { type: "button", class: "link", onclick: () => this.onpick(one.agent) }, one.agent), h("span", { class: "note" }, words(one)));
    const more = count - some.length ? `, of ${whole(count)}` : "";
    return h("div", {}, h("ol", {}, shown.map(line)),
      rest.length ? h("details", { class: "twin" }, h("summary", {}, `${whole(rest.length)} more${more}`), h("ol", {}, rest.map(line))) : null);
  }

  // The agent in the middle; around it those it shares with, nearer the more they lend; outside, hollow, those it left.
  paint(canvas) {
    const ratio = devicePixelRatio || 1, box = canvas.getBoundingClientRect(), c = canvas.getContext("2d");
    const width = (canvas.width = Math.max(1, box.width * ratio)), height = (canvas.height = Math.max(1, box.height * ratio));
    const near = this.agent.around.filter((one) => !one[3]), far = this.agent.around.filter((one) => one[3]);
    const middle = [width / 2, height / 2], radius = Math.min(width, height) / 2 - 8 * ratio;
    const inner = radius * (far.length ? 0.62 : 0.95) * Math.min(1, 0.45 + Math.sqrt(near.length) / 12);
    const dot = Math.max(1.3, Math.min(5, 30 / Math.sqrt(near.length + far.length + 1))) * ratio;
    const own = colourOf(this.agent.block), spoke = Math.min(0.5, 12 / Math.sqrt(near.length + 1) / 10);
    c.lineWidth = ratio;
    near.forEach(([, block], k) => {
      const reach = Math.max(14 * ratio, inner * Math.sqrt((k + 1) / near.length)), turn = k * GOLDEN;
      const x = middle[0] + reach * Math.cos(turn), y = middle[1] + reach * Math.sin(turn);
      c.strokeStyle = faded(own, spoke);
      c.beginPath(); c.moveTo(...middle); c.lineTo(x, y); c.stroke();
      c.fillStyle = colourOf(block);
      c.beginPath(); c.arc(x, y, dot, 0, 2 * Math.PI); c.fill();
    });
    const rings = Math.max(1, Math.ceil(far.length / 90));
    far.forEach(([, block], k) => {
      const ring = k % rings, turn = (2 * Math.PI * k) / far.length - Math.PI / 2, reach = radius * (0.8 + (0.18 * (ring + 0.5)) / rings);
      c.strokeStyle = colourOf(block);
      c.lineWidth = 1.4 * ratio;
      c.beginPath(); c.arc(middle[0] + reach * Math.cos(turn), middle[1] + reach * Math.sin(turn), Math.max(1.2 * ratio, dot * 0.8), 0, 2 * Math.PI); c.stroke();
    });
    c.fillStyle = own;
    c.strokeStyle = token("--card");
    c.lineWidth = 2 * ratio;
    c.beginPath(); c.arc(...middle, 8 * ratio, 0, 2 * Math.PI); c.fill(); c.stroke();
  }

  recolour() { if (this.name && this.agent) this.draw(this.agent); }
}
