// Alarms: what is wrong with a population, and what to do about it. Contests: how candidates stand.

import { h, number, percent, table, whole } from "./dom.js";

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

const signed = (value) => (value > 0 ? `+${number(value)}` : number(value));

export class Contest {
  constructor() {
    this.node = h("section", { class: "card", "aria-label": "Contest", hidden: true });
    this.seen = "";
  }

  show(standing) {
    const text = JSON.stringify(standing);
    if (text === this.seen) return;
    this.seen = text;
    this.node.hidden = !standing;
    if (!standing) return;
    const { candidates, level, policy, sequence, share, when } = standing;
    this.node.replaceChildren(h("header", {}, h("h3", {}, "Contest"), h("span", { class: "note" }, `since record ${whole(sequence)}, ${percent(share)} explored`)),
      h("p", { class: "note" }, `How much more per decision than ${policy} each candidate, learning in the shadow, would earn, with ${percent(level, 1)} confidence sequences: with 95 % confidence, all of them hold at all times. `,
        when ? "One that is surely better takes over by itself." : "None takes over by itself."),
      table("Candidates", [
        { title: "candidate", value: (one) => one.name },
        { title: "verdict", value: (one) => one.verdict },
        { title: "difference", value: (one) => one.difference, text: signed },
        { title: "interval", value: (one) => one.low, text: (low, one) => (low === null ? "–" : `${signed(low)} to ${signed(one.high)}`) },
        { title: "decisions", value: (one) => one.decisions, text: whole },
        { title: "differs in", value: (one) => one.differs, text: whole },
        { title: "of these tried", value: (one) => one.seen, text: whole },
      ], candidates));
  }
}
