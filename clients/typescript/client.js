// The service from JavaScript and TypeScript. `operations.js` and `index.d.ts` are generated from the OpenAPI
// document (`make clients`); this file is how a request is made: with an id, again if there was no answer,
// until a deadline.
import { operations } from "./operations.js";

const AGAIN = new Set([408, 429, 502, 503, 504]);
const LONGEST_PAUSE = 2_000;

/** The service refused a request; `kind` is the end of the problem's type, such as "conflict". */
export class ShoalError extends Error {
  constructor(problem) {
    super(problem.detail || problem.title);
    this.name = this.constructor.name;
    this.problem = problem;
    this.status = problem.status;
    this.kind = String(problem.type).replace("urn:shoal:problem:", "");
  }
}

/** No answer by the deadline. What was asked for may or may not be recorded: ask again with the same id. */
export class UnavailableError extends ShoalError {}

/** The service at a URL. It has a method for each operation of the OpenAPI document. */
export class Client {
  /**
   * @param {string} url
   * @param {{key?: string, deadline?: number, attempt?: number, fetch?: typeof fetch}} [options]
   *   A key; milliseconds for a call with all its attempts, and for one attempt.
   */
  constructor(url, { key, deadline = 10_000, attempt = 5_000, fetch = globalThis.fetch } = {}) {
    this.url = url.replace(/\/+$/, "");
    Object.assign(this, { key, deadline, attempt, fetch });
  }

  /** Choose an arm; with `fallback`, that arm if the service has not answered by the deadline. */
  async decide({ fallback, ...options }) {
    const body = withId(options.body);
    try {
      return await this.request("decide", { ...options, body });
    } catch (error) {
      if (fallback === undefined || !(error instanceof UnavailableError)) throw error;
      const { id, agent } = body;
      const arm = { arm: fallback, ranking: [fallback], greedy: fallback };
      return { id, agent, ...arm, probability: null, own: NaN, pooled: NaN, sequence: 0, scores: null };
    }
  }

  decideMany(options) {
    const requests = options.body.requests.map(withId);
    return this.request("decideMany", { ...options, body: { ...options.body, requests } });
  }

  observe(options) {
    return this.request("observe", { ...options, body: withId(options.body) });
  }

  /** Make a request by the name of its operation; what was answered, undefined if that has no content. */
  async request(name, { body, deadline = this.deadline, signal, ...names } = {}) {
    const { method, path, query, text: isText } = operations[name];
    const url = new URL(this.url + path.replace(/{(\w+)}/g, (_, part) => encodeURIComponent(names[part])));
    for (const part of query) if (names[part] !== undefined) url.searchParams.set(part, names[part]);
    const headers = { accept: "application/json" };
    if (this.key) headers.authorization = `Bearer ${this.key}`;
    if (body !== undefined) headers["content-type"] = "application/json";
    const request = { method, headers, body: body === undefined ? undefined : JSON.stringify(body) };
    const end = Date.now() + deadline;
    let last = { type: "urn:shoal:problem:unavailable", title: "Not available now", status: 503, detail: "" };
    for (let tries = 0; ; tries++) {
      const left = end - Date.now();
      if (left <= 0) throw new UnavailableError(last);
      let wait = 0;
      try {
        const own = AbortSignal.timeout(Math.min(left, this.attempt));
        const answer = await this.fetch(url, { ...request, signal: signal ? AbortSignal.any([signal, own]) : own });
        const text = await answer.text();
        if (answer.ok && (isText || !text)) return text || undefined;
        const found = JSON.parse(text); // half an answer, or a proxy's page, is no answer
        if (answer.ok) return found;
        const problem = { type: "about:blank", title: answer.statusText, status: answer.status, detail: "", ...found };
        if (!AGAIN.has(answer.status)) throw new ShoalError(problem);
        last = problem;
        wait = 1_000 * Number(answer.headers.get("retry-after") ?? 0) || 0;
      } catch (error) {
        if (error instanceof ShoalError || signal?.aborted) throw error;
        last = { ...last, detail: String(error.cause ?? error) };
      }
      const jitter = Math.random() * Math.min(LONGEST_PAUSE, 50 * 2 ** tries);
      const pause = Math.min(Math.max(wait, jitter), end - Date.now());
      await new Promise((wake) => setTimeout(wake, Math.max(pause, 0)));
    }
  }
}

for (const name of Object.keys(operations)) {
  Client.prototype[name] ??= function (options) {
    return this.request(name, options);
  };
}

function withId(request) {
  return { id: crypto.randomUUID(), ...request };
}
