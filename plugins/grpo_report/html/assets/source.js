// Where the data come from: chunks inside this file, or the server that `grpo watch` runs.
// Both give the same objects, so the views do not know which of them it is.
import { matching } from "./filter.js";

const inside = (id) => document.getElementById(id)?.textContent;

async function unpacked(id) {
  const bytes = Uint8Array.from(atob(inside(id)), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

/** The data of `grpo report`: a summary of all rollouts, and the groups in compressed chunks. */
class Embedded {
  constructor(page) {
    this.page = page;
    this.live = false;
    this.cache = new Map();
  }

  part(id) {
    if (!this.cache.has(id)) this.cache.set(id, unpacked(id));
    return this.cache.get(id);
  }

  async metrics(run) {
    return this.page.metrics[run];
  }

  forensics(run) {
    return this.part(`forensics-${run}`);
  }

  async summary(run) {
    if (!this.cache.has(`rows-${run}`)) {
      const { groups, rollouts } = await this.part(`summary-${run}`);
      for (const group of groups) group.members = [];
      for (const rollout of rollouts) groups[rollout.group].members.push(rollout);
      this.cache.set(`rows-${run}`, groups);
    }
    return this.cache.get(`rows-${run}`);
  }

  async groups(run, filter, progress = () => {}) {
    const groups = await this.summary(run);
    const texts = filter.text ? (chunk) => this.searched(run, chunk, filter.text) : null;
    return matching(groups, filter, texts, progress);
  }

  /** The ids of the groups of a chunk, and the attempts in each that hold the text. */
  async searched(run, chunk, text) {
    const sought = text.toLowerCase();
    const holds = (value) => (value ? JSON.stringify(value).toLowerCase().includes(sought) : false);
    const written = ({ content, thoughts = "", thought_marks: marks = ["", ""] }) =>
      `${marks[0]}${thoughts}${marks[1]}${content}`;
    const said = (messages) =>
      (typeof messages === "string" ? [messages] : (messages ?? []).map(written)).some((text) =>
        text.toLowerCase().includes(sought),
      ) ||
      (Array.isArray(messages) && messages.some((one) => one.tool_calls && holds(one.tool_calls)));
    const hits = new Map();
    for (const group of await this.part(`chunk-${run}-${chunk}`)) {
      const inPrompt = said(group.prompt);
      const attempts = group.rollouts
        .filter((rollout) => inPrompt || said(rollout.messages))
        .map((rollout) => rollout.attempt);
      if (attempts.length)
        hits.set(`${group.step}/${group.split}/${group.number}`, new Set(attempts));
    }
    return hits;
  }

  async group(run, step, split, number) {
    const groups = await this.summary(run);
    const row = groups.find(
      (one) => one.step === step && one.split === split && one.number === number,
    );
    if (!row) return null;
    const chunk = await this.part(`chunk-${run}-${row.chunk}`);
    return chunk.find((one) => one.step === step && one.split === split && one.number === number);
  }

  async vocabulary(run) {
    return inside(`vocabulary-${run}`) ? this.part(`vocabulary-${run}`) : null;
  }

  async comparison(first, second) {
    return this.page.comparisons.find((one) => one.first === first && one.second === second);
  }
}

/** The data of `grpo watch`, asked of its server when a view needs them. */
class Served {
  constructor(page) {
    this.page = page;
    this.live = true;
  }

  async ask(path, parameters = {}) {
    const response = await fetch(`api/${path}?${new URLSearchParams(parameters)}`, {
      cache: "no-store",
    }).catch((error) => {
      const message = "The server of this page is gone; start `grpo watch` again.";
      throw Object.assign(new Error(message, { cause: error }), { gone: true });
    });
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error);
    return answer;
  }

  metrics(run) {
    return this.ask("metrics", { run });
  }

  forensics(run) {
    return this.ask("forensics", { run });
  }

  /** The rows come at once; `count` is a promise, because a frequent text takes seconds to count. */
  async groups(run, filter) {
    const given = Object.entries(filter).filter(([, value]) => value !== undefined && value !== "");
    const asked = { run, ...Object.fromEntries(given) };
    const answer = await this.ask("groups", asked);
    return { ...answer, count: () => this.ask("count", asked) };
  }

  group(run, step, split, number) {
    return this.ask("group", { run, step, split, number });
  }

  vocabulary(run) {
    this.words ??= new Map();
    if (!this.words.has(run)) this.words.set(run, this.ask("vocabulary", { run }));
    return this.words.get(run);
  }

  comparison(first, second) {
    return this.ask("comparison", { first, second });
  }

  async refresh() {
    this.page = await this.ask("page");
  }
}

/** Return the source that this page was made with. */
export async function openSource() {
  const page = JSON.parse(inside("page-data"));
  if (!page.served) return new Embedded(page);
  const source = new Served(page);
  await source.refresh();
  return source;
}
