// Alarms: what is wrong with a population, and what to do about it.

import { h } from "./dom.js";

export class Alarms {
  constructor() {
    this.node = h("section", { class: "alarms", role: "status", "aria-label": "Alarms" });
    this.seen = "";
  }

  show(alarms) {
    const text = JSON.stringify(alarms);
    if (text === this.seen) return; // so that nothing is read aloud twice
    this.seen = text;
    this.node.replaceChildren(...alarms.map((one) =>
      h("details", { class: `notice ${one.severity}` }, h("summary", {}, h("strong", {}, one.name), ` – ${one.sentence}`), h("p", {}, one.advice))));
  }
}
