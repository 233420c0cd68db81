// All populations: a table with search and sort, those that need attention first.

import * as api from "./api.js";
import { blockName, debounce, h, letter, number, plural, table, whole } from "./dom.js";
import { sparkline } from "./series.js";

export const VERDICTS = { pays: "Pays", harms: "Harms", "too early": "Too early to say", "no difference": "No difference" };
const AT_ONCE = 4; // populations that are asked about together
const PAUSE = 5000; // milliseconds between one round of questions and the next

const sum = (values) => values.reduce((all, value) => all + value, 0);
const decisions = (one) => (one.decisions ? sum(one.decisions) : null);

// What is wrong with a population, the worst first: words, and how bad it is.
export function concerns(one) {
  if (one.error) return [{ words: one.error, weight: 5 }];
  if (!one.decisions) return [];
  const found = [];
  if (one.dividend.verdict === "harms") found.push({ words: "sharing harms", weight: 4 });
  if (one.refused) found.push({ words: `${plural(one.refused, "reward")} refused`, weight: 3 });
  if (one.unmatched) found.push({ words: `${plural(one.unmatched, "reward")} for unknown decisions`, weight: 2 });
  for (const alarm of one.alarms.filter(({ severity }) => severity === "fault")) found.push({ words: alarm.name.replaceAll("_", " "), weight: 2 });
  if (decisions(one) && !sum(one.rewards)) found.push({ words: "no rewards in the last hour", weight: 1 });
  return found;
}
const badness = (one) => concerns(one).reduce((all, { weight }) => all + 10 ** weight, 0);

const COLUMNS = [
  { title: "population", value: (one) => one.name, text: (name, one) => [h("a", { href: `#/${encodeURIComponent(name)}` }, name), h("small", {}, one.policy ?? "")] },
  { title: "attention", value: badness, down: true, wordy: true, text: (bad, one) => (bad ? concerns(one).map(({ words }) => h("div", { class: "concern" }, words)) : one.decisions ? "–" : h("span", { class: "soft" }, "Reading the journal …")) },
  { title: "sharing", value: (one) => one.dividend?.mean ?? null, text: (mean, one) => (one.dividend ? [VERDICTS[one.dividend.verdict], h("small", {}, one.dividend.low === null ? plural(one.dividend.count, "reward") : `${number(one.dividend.low)} to ${number(one.dividend.high)}`)] : "–") },
  { title: "mean reward", value: (one) => one.mean_reward ?? null, down: true },
  { title: "decisions", value: decisions, down: true, text: (count, one) => (one.decisions ? [count ? spark(one) : "", number(count)] : "–") },
  { title: "rewards", value: (one) => (one.rewards ? sum(one.rewards) : null), down: true, text: number },
  { title: "agents", value: (one) => one.sizes?.agents ?? null, down: true, text: (count, one) => (one.sizes ? [whole(count), blocksBar(one)] : "–") },
];

function spark(one) {
  const line = h("canvas", { class: "spark" });
  requestAnimationFrame(() => line.isConnected && sparkline(line, one.decisions, `Decisions in each minute of the last hour: at most ${whole(Math.max(...one.decisions))}`));
  return line;
}

// How many agents are in which block, as a bar.
function blocksBar(one) {
  const blocks = one.blocks.slice(0, 12), words = blocks.map((block) => `${plural(block.agents, "agent")} in ${blockName(block.label)}`).join(", ");
  return h("div", { class: "parts", role: "img", "aria-label": words }, blocks.map((block) => {
    const part = h("span", { class: "badge", "data-block": block.label < 0 ? "none" : block.label % 8 }, letter(block.label));
    part.style.flexGrow = block.agents;
    return part;
  }));
}

export class Populations {
  constructor(names, isShown, tell, failed) {
    Object.assign(this, { names, isShown, tell, failed });
    this.known = new Map(names.map((name) => [name, { name }]));
    this.order = { column: COLUMNS[1], down: true };
    this.search = h("input", { type: "search", placeholder: "Filter by name or policy", "aria-label": "Filter populations by name or policy", oninput: () => this.draw() });
    this.count = h("span", { class: "note", role: "status" });
    this.place = h("div", { class: "tall" });
    this.node = h("section", { class: "card" }, h("div", { class: "filter" }, this.search, this.count), this.place,
      h("p", { class: "note" }, "Decisions, rewards and mean reward cover the last hour; the verdict on sharing covers all rewards since the start; refused rewards are counted since the service started."));
    this.soon = debounce(() => this.draw(), 100);
    addEventListener("resize", this.soon);
    this.draw();
    this.load();
  }

  // One round after another, a few populations at a time.
  async load() {
    const left = [...this.names];
    const work = async () => {
      for (let name = left.shift(); name !== undefined && this.isShown(); name = left.shift()) {
        try {
          this.known.set(name, await api.summary(name));
          this.tell("live");
        } catch (error) {
          if (error.status === 401) return this.isShown() && this.failed(error);
          if (error.status) this.known.set(name, { name, error: error.message });
          else this.tell("waiting for the service", true);
        }
        this.soon();
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, work));
    const again = () => (document.hidden ? this.timer = setTimeout(again, 1000) : this.load());
    if (this.isShown()) this.timer = setTimeout(again, PAUSE);
  }

  sort(column) {
    this.order = { column, down: this.order.column === column ? !this.order.down : Boolean(column.down) };
    this.draw();
    this.place.querySelector("th[aria-sort] button").focus();
  }

  draw() {
    if (!this.isShown()) return;
    const wanted = this.search.value.toLowerCase(), { column, down } = this.order, sign = down ? -1 : 1;
    const rows = [...this.known.values()].filter((one) => `${one.name} ${one.policy ?? ""}`.toLowerCase().includes(wanted));
    // Unknown values come last in either direction.
    const rank = (one, two) => (one === null) - (two === null) || (typeof one === "string" ? one.localeCompare(two) : one - two) * sign;
    rows.sort((one, two) => rank(column.value(one), column.value(two)) || one.name.localeCompare(two.name));
    const at = document.activeElement, focused = this.place.contains(at) && at.matches("a") ? at.textContent : null, scrolled = this.place.firstChild?.scrollLeft ?? 0;
    this.place.replaceChildren(table("Populations", COLUMNS, rows, { empty: "No population matches.", order: this.order, sort: (chosen) => this.sort(chosen) }));
    this.place.firstChild.scrollLeft = scrolled;
    if (focused) [...this.place.querySelectorAll("a")].find((link) => link.textContent === focused)?.focus();
    const bad = rows.filter((one) => badness(one)).length;
    this.count.textContent = `${rows.length < this.names.length ? `${whole(rows.length)} of ` : ""}${plural(this.names.length, "population")}${bad ? `, ${whole(bad)} need${bad === 1 ? "s" : ""} attention` : ""}`;
  }

  recolour() { this.draw(); }
  close() { clearTimeout(this.timer); removeEventListener("resize", this.soon); }
}
