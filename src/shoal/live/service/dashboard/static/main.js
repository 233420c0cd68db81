// The page: signing in, going from population to population, and keeping everything up to date.

import * as api from "./api.js";
import { AgentPanel } from "./agent.js";
import { Alarms, Contest } from "./alarms.js";
import { badge, debounce, exact, h, number, percent, plural, shareOf, table, time, whole } from "./dom.js";
import { Populations, VERDICTS } from "./populations.js";
import { Series, totals } from "./series.js";
import { Sharing } from "./sharing.js";

const content = document.getElementById("content");
const pulse = document.getElementById("pulse");
let shown = null; // what is on the page now: {close, recolour}
let who = null; // is signed in
const MOST_TABS = 12; // populations named at the top of the page
let visit = 0; // counts changes of the page, so that late answers are not shown on another one

function tell(text, late = false) {
  pulse.hidden = !text;
  pulse.classList.toggle("late", late);
  if (pulse.textContent !== text) pulse.textContent = text;
}

// Signing in

function askForKey(problem = "") {
  shown?.close();
  shown = null;
  tell("");
  document.getElementById("tabs").replaceChildren();
  document.getElementById("leave").hidden = true;
  const key = h("input", { type: "password", id: "key", name: "key", autocomplete: "current-password", required: true, "aria-describedby": "wrong" });
  const wrong = h("p", { class: "wrong", id: "wrong", role: "alert" }, problem);
  const form = h("form", { class: "card sign-in" }, h("h1", {}, "Sign in"),
    h("p", { class: "soft" }, "This service needs a key with the scope ", h("code", {}, "read"), "; ", h("code", {}, "shoal keys add STORE --scope read"), " makes one; STORE is what the server was started with."),
    h("input", { type: "text", name: "username", autocomplete: "username", value: "shoal", hidden: true }), // for password managers
    h("label", {}, "Key", key), wrong, h("button", { class: "main" }, "Sign in"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await api.signIn(key.value.trim());
      key.value = "";
      await start();
    } catch (error) {
      wrong.textContent = error.status === 401 || error.status === 403 || error.status === 422 ? "This key is not valid here: it is unknown, expired or revoked." : error.message;
      key.select();
    }
  });
  content.replaceChildren(form);
  key.focus();
}

function failed(error) {
  if (error.status === 401) return askForKey("Please sign in again.");
  content.replaceChildren(h("p", { class: "notice", role: "alert" }, error.message));
  tell("");
}

// All populations

function showAll(names, mine) {
  document.title = "Populations – shoal";
  if (!names.length) {
    content.replaceChildren(h("div", { class: "card empty" }, h("h2", {}, "No populations yet"),
      h("p", {}, "Make one with ", h("code", {}, "PUT /v1/populations/{name}"), ", or watch three simulated ones: ", h("code", {}, "shoal demo"))));
    return { close() {}, recolour() {} };
  }
  const all = new Populations(names, () => mine === visit, tell, failed);
  content.replaceChildren(h("div", { class: "headline" }, h("h1", {}, "Populations")), h("p", { class: "lede" }, "Each is a set of agents that may share what they learn. Those that need attention come first."), all.node);
  return all;
}

// One population

// The first page after a start may wait for compiled code rather than for records.
function waiting() {
  const said = h("p", { class: "waiting", role: "status" }, "Reading the journal");
  setTimeout(() => (said.textContent = "Reading the journal and, the first time on this machine, compiling its policy: up to a minute"), 3000);
  return said;
}

async function showOne(name, mine, at) {
  document.title = `${name} – shoal`;
  content.replaceChildren(h("div", { class: "headline" }, h("h1", {}, name)), waiting());
  let [overview, described] = await Promise.all([api.overview(name, 5), api.settings(name)]);
  if (mine !== visit) return null;
  let sizes = overview.sizes, graph = null, seen = sizes;
  let past = null; // what is shown of an earlier moment: {graph, overview, arms, problem}
  const then = h("p", { class: "notice", role: "status", "aria-label": "The moment that is shown", hidden: true });
  const lede = h("p", { class: "lede" }), figures = h("dl", { class: "figures" });
  const panel = new AgentPanel(name, pick);
  const sharing = new Sharing(name, pick, (from, to, words) => panel.group(from, to, words).catch((error) => error.status === 401 && failed(error)), (data) => { turnTo(data).catch((error) => mine === visit && error.status === 401 && failed(error)); });
  const series = new Series(async (step) => { series.show(await api.overview(name, step)); head(); });
  const arms = h("section", { class: "card bars" }), agents = new AgentTable(name, pick), settings = new SettingsCard(), refusals = new RefusalsCard(), alarms = new Alarms(), contest = new Contest();
  const policy = h("span", { class: "chip" }), verdict = h("p", { class: "note" });
  content.replaceChildren(
    h("div", { class: "headline" }, h("h1", {}, name), policy),
    then, lede, figures,
    h("section", { class: "sharing", "aria-labelledby": "who-shares" }, sharing.node, panel.node),
    contest.node, series.node,
    h("section", { class: "band", "aria-labelledby": "in-detail" }, h("header", {}, h("h2", { id: "in-detail" }, "In detail")), h("div", { class: "cards wide" }, arms, agents.node, series.delays, refusals.node, settings.node, evaluationCard(name, described.candidates, verdict))));

  function pick(agent) {
    sharing.pick(agent);
    if (agent === null) panel.invite();
    else panel.show(agent);
  }

  // Show the moment of a graph, or now: figures, tables and the address follow the slider.
  async function turnTo(data) {
    const asked = sharing.at, was = past;
    history.replaceState(null, "", `#/${encodeURIComponent(name)}${asked === null ? "" : `?at=${asked}`}`);
    past = asked === null ? null : { ...was, graph: data };
    if (asked === null) graph = data;
    series.mark(described.changes, past && data.at);
    head();
    if (asked === null && was) await Promise.all([showArms(), agents.load(null)]);
    if (asked === null || (sharing.playing && sizes.agents > 500)) return; // a frame of many agents takes seconds
    let found;
    try {
      found = await api.moment(name, asked);
      if (sharing.at !== asked || mine !== visit) return;
      past = { graph: data, ...found };
      await Promise.all([showArms(), agents.load(asked)]);
    } catch (error) {
      if (error.status === 401) throw error;
      if (sharing.at === asked) past = { graph: data, problem: error.message };
    }
    if (mine === visit) head();
  }

  function sayWhen() {
    then.hidden = !past;
    if (!past) return;
    then.replaceChildren(`This is ${time(past.graph.at)}, after record ${whole(past.graph.sequence)} of ${whole(past.graph.last)}. `,
      past.problem ? `Only the picture and the number of pairs go back this far: ${past.problem}. ` : "Figures, blocks and tables show that moment; the charts run up to now. ",
      h("a", { href: location.hash }, "Link to this moment"), " · ", h("button", { type: "button", class: "link", onclick: () => sharing.now.click() }, "Back to now"));
  }

  // The sentence and the figures at the head.
  function head() {
    sayWhen();
    const drawn = past ? past.graph : graph, shown = past ? past.overview : series.data ?? overview;
    const all = shown ? shown.sizes : sizes, sums = shown ? totals(shown) : null;
    const count = past ? (drawn.kind === "graph" ? drawn.agents.length : drawn.n_agents) : sizes.agents;
    const parted = sizes.cuts !== null && past ? drawn.between.reduce((sum, [, , , some]) => sum + some, 0) : sizes.cuts;
    describe(drawn, count, parted, past ? all : sizes, sums);
  }

  function describe(graph, agents, cuts, sizes, sums) {
    if (sums) verdict.textContent = sums.dividend.text;
    const blocks = graph?.blocks.filter((block) => block.label >= 0) ?? [];
    const pairs = (agents * (agents - 1)) / 2;
    const sharePairs = !graph || !pairs ? null : graph.kind === "graph" ? graph.n_edges / ((graph.agents.length * (graph.agents.length - 1)) / 2) :
      graph.blocks.reduce((all, block) => all + block.agents * (((block.within ?? 0) * (block.agents - 1) + (block.beyond ?? 0) * (graph.n_agents - block.agents))), 0) / (graph.n_agents * (graph.n_agents - 1));
    lede.textContent = !graph ? "" : blocks.length > 1
      ? `${plural(agents, "agent")} now share in ${plural(blocks.length, "block")}${cuts === null ? "" : `; ${plural(cuts, "pair")} of agents have parted`}.`
      : cuts ? `${plural(agents, "agent")} mostly still share; ${plural(cuts, "pair")} of agents have parted.`
        : blocks.length && cuts === null && sharePairs < 1 ? `${plural(agents, "agent")} mostly share.`
          : blocks.length ? `${plural(agents, "agent")} all share what they learn: no pair has been told apart yet.` : `${plural(agents, "agent")}, none of which share.`;
    const gain = sums && sums.mean !== null && sums.random !== null ? sums.mean - sums.random : null, paid = sums?.dividend;
    const rows = [
      ["Agents", whole(agents), blocks.length ? `in ${plural(blocks.length, "block")}` : ""],
      ["Pairs that share", shareOf(sharePairs), cuts === null ? "partings are not recorded by this policy" : `${whole(cuts)} parted`],
      ...(sums ? [
        ["Decisions a minute", number(sums.perMinute), `${number(sums.rewardsPerMinute)} rewards`],
        ["Mean reward", number(sums.mean), gain === null ? "no baseline yet" : `${gain < 0 ? "" : "+"}${number(gain)} over random`],
        ["Sharing", VERDICTS[paid.verdict], paid.low === null ? plural(paid.count, "reward") : `${paid.verdict === "harms" ? `costs ${number(-paid.mean)} (${number(-paid.high)} to ${number(-paid.low)})` : `saves ${number(paid.mean)} (${number(paid.low)} to ${number(paid.high)})`}, since the start`],
        ["Awaiting rewards", whole(sizes.pending), `${plural(sizes.sequence, "record")}`],
      ] : []),
    ];
    figures.replaceChildren(...rows.map(([title, value, small]) => h("div", {}, h("dt", {}, title), h("dd", {}, value, h("small", {}, small)))));
  }

  async function showArms() {
    const found = past?.arms ?? (await api.arms(name));
    if (mine !== visit) return;
    const most = Math.max(1e-9, ...found.arms.map((arm) => arm.share));
    arms.replaceChildren(h("header", {}, h("h3", {}, "Arms"), h("span", { class: "note" }, plural(found.decisions, "choice"))),
      h("p", { class: "note" }, `How often each was chosen, and what it earned${found.since ? `, from record ${whole(found.since + 1)} on` : ""}.${found.others ? ` ${plural(found.others, "arm")} more.` : ""}`),
      table("Arms: share of choices and mean reward", [
        { title: "arm", value: (arm) => arm.name },
        { title: "share of choices", value: (arm) => arm.share, text: (share) => percent(share, 1), bar: (arm) => arm.share / most },
        { title: "chosen", value: (arm) => arm.chosen, text: whole },
        { title: "mean reward", value: (arm) => arm.mean_reward },
      ], found.arms));
  }

  function showSettings(found) {
    described = found;
    policy.textContent = found.settings.policy;
    settings.show(found);
    series.mark(found.changes, past && past.graph.at);
  }

  series.show(overview);
  showSettings(described);
  head();
  await Promise.all([sharing.load(), showArms(), agents.load(), refusals.load()]);
  if (at !== null && mine === visit) await sharing.go(at).catch((error) => { then.hidden = false; then.textContent = error.message; });
  if (mine !== visit) { sharing.close(); series.close(); return null; }

  // From now on once a second, what is new.
  const events = api.live(name);
  const wary = (error) => mine === visit && error.status === 401 && failed(error); // other errors may pass in a second
  let loadedAt = performance.now(), armsAt = performance.now(), asking = false;
  const ontick = (event) => {
    const { sizes: now, slots, refused, unmatched, changed, alarms: sounding, contest: standing } = JSON.parse(event.data);
    alarms.show(sounding);
    contest.show(standing);
    refusals.rewards(refused, unmatched);
    tell("live");
    sizes = now;
    if (document.hidden) return;
    series.tick(slots);
    head();
    if (changed !== described.changed && !asking) {
      asking = true;
      api.settings(name).then((found) => mine === visit && showSettings(found)).catch(wary).finally(() => (asking = false));
    }
    const parted = now.cuts !== seen.cuts || now.agents !== seen.agents;
    const pause = sharing.data?.kind === "heat" ? 10000 : sizes.agents > 100 ? 4000 : 2000;
    if (sharing.at === null && !sharing.playing && (parted || performance.now() - loadedAt > 15000) && performance.now() - loadedAt > pause && now.sequence !== seen.sequence) {
      loadedAt = performance.now();
      seen = now;
      sharing.load().catch(wary);
    } else if (sharing.at !== null && sharing.data) {
      sharing.slider.max = now.sequence;
    }
    if (performance.now() - armsAt > 10000) {
      armsAt = performance.now();
      if (!past) showArms().catch(wary);
      refusals.load().catch(wary);
      api.overview(name, series.range.step).then((data) => mine === visit && series.show(data)).catch(wary);
    }
  };
  events.addEventListener("tick", ontick);
  events.addEventListener("error", () => {
    tell("waiting for the service", true);
    // a stream that was refused, rather than cut off, is not tried again by the browser
    if (events.readyState === EventSource.CLOSED) api.who().then(() => setTimeout(() => mine === visit && route(), 3000)).catch((error) => error.status === 401 && failed(error));
  });
  return {
    close() { events.close(); sharing.close(); series.close(); },
    recolour() { series.recolour(); sharing.recolour(); panel.recolour(); },
  };
}

class AgentTable {
  constructor(population, onpick) {
    this.population = population;
    this.onpick = onpick;
    this.start = 0;
    this.search = h("input", { type: "search", placeholder: "Filter by name", "aria-label": "Filter agents by name", oninput: debounce(() => { this.start = 0; this.load(); }, 250) });
    this.place = h("div");
    this.node = h("section", { class: "card" }, h("header", {}, h("h3", {}, "Agents"), this.count = h("span", { class: "note" })), this.search, this.place);
  }

  // At an earlier moment, if `at` is a record; without it, at the moment that is shown.
  async load(at = this.at) {
    this.at = at ?? null;
    const page = await api.agents(this.population, { search: this.search.value, start: this.start, ...(this.at === null ? {} : { at: this.at }) });
    const most = Math.max(1, ...page.agents.map((agent) => agent.samples + agent.borrowed));
    this.count.textContent = plural(page.found, "agent");
    const end = this.start + page.agents.length;
    this.place.replaceChildren(
      table("Agents: their own and borrowed samples", [
        { title: "agent", value: (agent) => agent.name, text: (name) => h("button", { type: "button", class: "link", onclick: () => { this.onpick(name); document.getElementById("who-shares").scrollIntoView({ block: "start" }); } }, name) },
        { title: "block", value: (agent) => agent.block, text: badge },
        { title: "own samples", value: (agent) => agent.samples, text: whole },
        { title: "borrowed", value: (agent) => agent.borrowed, bar: (agent) => agent.borrowed / most },
        { title: "lenders", value: (agent) => agent.lenders, text: whole },
      ], page.agents, { empty: "No agents." }),
      h("div", { class: "pages" },
        h("button", { type: "button", disabled: !this.start, onclick: () => { this.start = Math.max(0, this.start - 100); this.load(); } }, "Previous"),
        h("button", { type: "button", disabled: end >= page.found, onclick: () => { this.start = end; this.load(); } }, "Next"),
        h("span", { class: "note" }, page.found ? `${whole(this.start + 1)} to ${whole(end)} of ${whole(page.found)}` : "")));
  }
}

class SettingsCard {
  constructor() {
    this.values = h("div");
    [this.count, this.otherCount] = [h("summary"), h("summary")];
    [this.changes, this.others] = [h("div"), h("div")];
    this.node = h("section", { class: "card" }, h("header", {}, h("h3", {}, "Settings")), this.values,
      h("details", { class: "twin" }, this.count, this.changes), h("details", { class: "twin" }, this.otherCount, this.others));
  }

  show(found) {
    const show = (value) => (value === null ? "not set" : value === undefined ? "not used" : typeof value === "number" ? exact(value) : String(value));
    const when = (at, { sequence }) => [time(at), h("small", {}, `record ${whole(sequence)}`)];
    const words = (differences, { policy }) => (differences.length
      ? differences.map(({ name, before, after }) => h("div", {}, h("span", { class: "soft" }, `${name.replaceAll("_", " ")} `), `${show(before)} → ${show(after)}`))
      : `made with ${policy}`);
    const by = { title: "who", value: (row) => row.by || "–", wordy: true };
    this.values.replaceChildren(table("Settings of the population", [
      { title: "setting", value: ([key]) => key.replaceAll("_", " ") },
      { title: "value", value: ([, value]) => value, text: show },
    ], Object.entries(found.settings)));
    this.count.textContent = `History: ${plural(found.n_changes - 1, "change")}`;
    this.changes.replaceChildren(
      table("Changes of settings", [{ title: "when", value: (row) => row.at, text: when }, by, { title: "what", value: (row) => row.differences, text: words, wordy: true }], found.changes),
      found.n_changes > found.changes.length ? h("p", { class: "note" }, `The latest ${whole(found.changes.length)} of ${whole(found.n_changes)}.`) : "");
    this.otherCount.textContent = `Catalogue and versions: ${plural(found.events.length, "change")}`;
    this.others.replaceChildren(
      table("Changes of the catalogue, and of the version of shoal", [{ title: "when", value: (row) => row.at, text: when }, by, { title: "what", value: (row) => row.what, wordy: true }], found.events),
      found.since ? h("p", { class: "note" }, `Those up to record ${whole(found.since)} are not listed.`) : "");
  }
}

// This population's refused rewards; with a key to all populations, also everything else that the server refused.
class RefusalsCard {
  constructor() {
    this.counts = h("dl", { class: "pair" });
    this.place = h("div");
    this.node = h("section", { class: "card" }, h("header", {}, h("h3", {}, "Refused requests"), h("span", { class: "note" }, "since the service started")), this.counts, this.place);
  }

  rewards(refused, unmatched) {
    this.counts.replaceChildren(
      h("div", {}, h("dt", {}, "rewards refused"), h("dd", {}, whole(refused))),
      h("div", {}, h("dt", {}, "for unknown decisions"), h("dd", {}, whole(unmatched))));
  }

  async load() {
    if (who?.populations !== null) {
      this.place.replaceChildren(h("p", { class: "note" }, "Other refused requests are counted for the whole server; a key to all populations shows them."));
      return;
    }
    const requests = (found, row) => {
      const others = found.reduce((rest, [, count]) => rest - count, row.count);
      return [...found, ...(others ? [["others", others]] : [])].map(([request, count]) => h("div", {}, `${request} `, h("span", { class: "soft" }, whole(count))));
    };
    this.place.replaceChildren(h("p", { class: "note" }, "The whole server's answers of 400 and above:"), table("Refused requests, by status", [
      { title: "status", value: (row) => row.status, text: (status, row) => [String(status), h("small", {}, row.meaning)] },
      { title: "requests", value: (row) => row.requests, text: requests, wordy: true },
      { title: "answers", value: (row) => row.count, text: whole },
    ], await api.refusals(), { empty: "None." }));
  }
}

// The candidate "" is the population's own policy.
function evaluationCard(name, candidates, verdict) {
  const title = (one) => (one === "" ? "the policy as it is" : one === "independent" ? "independent: no sharing" : `${one} with its defaults`);
  const choice = h("select", { "aria-label": "Policy to evaluate" }, ["", ...candidates].map((value) => h("option", { value }, title(value))));
  const place = h("div", { role: "status", "aria-label": "Result of the evaluation" });
  const interval = (value, row) => (row.low === null ? "–" : `${number(row.low)} to ${number(row.high)}`);
  const evaluate = async () => {
    place.replaceChildren(h("p", { class: "waiting" }, "Reading the whole journal"));
    try {
      const asked = choice.value, found = await api.evaluation(name, asked);
      const rows = [{ ...found.logged, name: "what was earned" }, ...found.estimates, ...(found.difference ? [{ ...found.difference, name: "difference" }] : [])];
      place.replaceChildren(table(`Mean reward per decision that ${title(asked)} would have earned`, [
        { title: "estimate", value: (row) => row.name },
        { title: "mean reward", value: (row) => row.value },
        { title: "95 % interval", value: (row) => row.low, text: interval },
      ], rows), h("p", { class: "why" }, found.text));
    } catch (error) {
      if (error.status === 401) failed(error);
      else place.replaceChildren(h("p", { class: "notice", role: "alert" }, error.message));
    }
  };
  return h("section", { class: "card" }, h("header", {}, h("h3", {}, "Evaluation"), h("span", { class: "note" }, "from decisions that explored")),
    h("p", { class: "note" }, "What another policy would have earned from the same decisions."),
    h("div", { class: "pages" }, choice, h("button", { type: "button", onclick: evaluate }, "Evaluate")), place, h("h4", {}, "The dividend of sharing"), verdict);
}

// From page to page

async function route() {
  const mine = ++visit;
  shown?.close();
  shown = null;
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?"), name = decodeURIComponent(path);
  const at = Number(new URLSearchParams(query).get("at")) || null;
  try {
    const names = await api.populations();
    if (mine !== visit) return;
    // Nobody finds a name in a very long row of tabs: the table has a search.
    const tabs = names.length <= MOST_TABS ? names : names.filter((one) => one === name);
    document.getElementById("tabs").replaceChildren(
      ...(tabs.length < names.length ? [h("li", {}, h("a", { href: "#/", "aria-current": name ? null : "page" }, `All ${whole(names.length)} populations`))] : []),
      ...tabs.map((one) => h("li", {}, h("a", { href: `#/${encodeURIComponent(one)}`, "aria-current": one === name ? "page" : null }, one))));
    const next = name ? await showOne(name, mine, at) : showAll(names, mine);
    if (mine === visit) shown = next;
    else next?.close();
  } catch (error) {
    if (mine === visit) failed(error);
    if (!(error instanceof api.Problem)) throw error;
  }
}

async function start() {
  try {
    who = await api.who();
    document.getElementById("leave").hidden = who.id === "anybody";
  } catch (error) {
    return error.status === 401 ? askForKey() : failed(error);
  }
  await route();
}

document.getElementById("leave").addEventListener("click", async () => {
  await api.signOut();
  visit++;
  askForKey();
});

// Colours: the system's, light, dark

const THEMES = { "": "the system's", light: "light", dark: "dark" };
const button = document.getElementById("theme");
function paint() {
  const theme = document.documentElement.dataset.theme || "";
  button.setAttribute("aria-label", `Colours: ${THEMES[theme]}`);
  button.title = button.getAttribute("aria-label");
}
button.addEventListener("click", () => {
  const names = Object.keys(THEMES), theme = names[(names.indexOf(document.documentElement.dataset.theme || "") + 1) % names.length];
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  localStorage.setItem("shoal-theme", theme);
  paint();
  shown?.recolour();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => shown?.recolour());
paint();

addEventListener("hashchange", () => { route(); content.focus(); scrollTo(0, 0); });
start();
