// What the page asks the service for.

export class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, { credentials: "same-origin", ...options });
  } catch {
    throw new Problem(0, "The service does not answer.");
  }
  if (answer.status === 204) return null;
  const content = await answer.json().catch(() => null);
  if (!answer.ok) throw new Problem(answer.status, content?.detail || content?.title || `The service answered ${answer.status}.`);
  return content;
}

const of = (population) => `/dashboard/${encodeURIComponent(population)}`;

export const who = () => ask("/session");
export const signIn = (key) =>
  ask("/session", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ key }) });
export const signOut = () => ask("/session", { method: "DELETE" });
export const populations = async () => (await ask("/v1/populations")).populations;
export const summary = (population) => ask(`${of(population)}/summary`);
export const overview = (population, step) => ask(`${of(population)}/overview?step=${step}`);
export const graph = (population, at) => ask(`${of(population)}/graph${at === null ? "" : `?at=${at}`}`);
export const moment = (population, at) => ask(`${of(population)}/moment?at=${at}`);
export const arms = (population) => ask(`${of(population)}/arms`);
export const settings = (population) => ask(`${of(population)}/settings`);
export const refusals = () => ask("/dashboard/refusals");
export const agent = (population, name) => ask(`${of(population)}/agents/${encodeURIComponent(name)}`);
export const agents = (population, asked) => ask(`${of(population)}/agents?${new URLSearchParams(asked)}`);
const api = (population) => `/v1/populations/${encodeURIComponent(population)}`;
export const evaluation = (population, policy) => ask(`${api(population)}/evaluation${policy ? `?policy=${encodeURIComponent(policy)}` : ""}`);
export const live = (population) => new EventSource(`${of(population)}/live`);
