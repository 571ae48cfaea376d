// One group: the prompt once, and its attempts side by side.
import { address } from "./route.js";
import { badge, button, el, heading, link, number, table, textBlock } from "./dom.js";
import { groupAddress } from "./groups.js";
import { MEASURES, measured, tokenView } from "./tokens.js";

const json = (value) => JSON.stringify(value, null, 2);

/** Show a message: who speaks, the text, and calls of tools. */
function message({ role, content, tool_calls: calls }, sought, label) {
  return el("div", { class: `message ${["system", "user", "assistant", "tool"].includes(role) ? role : "other"}` },
    el("p", { class: "role" }, role),
    content || !calls?.length ? textBlock(content ?? "", { sought, label: `${label}: ${role}` }) : "",
    (calls ?? []).map((call) => el("div", { class: "call" },
      el("p", { class: "role" }, `calls ${call.name}`),
      textBlock(call.error ? `${call.error}\n${json(call.arguments)}` : json(call.arguments),
        { sought, label: `${label}: call of ${call.name}` }))));
}

const conversation = (messages, sought, label) =>
  typeof messages === "string"
    ? textBlock(messages, { sought, label })
    : messages.map((one) => message(one, sought, label));

function parts(verdict) {
  const rows = Object.entries(verdict.rewards ?? {}).map(([name, part]) => [
    name, `${number(part.value)} × ${number(part.weight)}`, number(part.value * part.weight),
    part.turns ? part.turns.map((value) => number(value)).join(", ") : "", part.note ? textBlock(part.note, { fold: 600, className: "text small", label: `Note of ${name}` }) : "",
    part.seconds >= 0.001 ? `${number(part.seconds, 2)} s` : ""]);
  if (!rows.length) return null;
  const given = [0, 1, 2, 3, 4, 5].filter((at) => at < 3 || rows.some((row) => row[at]));
  const keep = (row) => given.map((at) => row[at]);
  return table("Reward parts", keep(["Part", "Value × weight", "Reward", "By turn", "Verifier's note", "Time"]),
    rows.map(keep), { class: "parts" });
}

function pictures(shown) {
  return (shown ?? []).map(({ name, url, reason }) => url
    ? el("figure", {}, el("img", { src: url, alt: name, loading: "lazy" }), el("figcaption", {}, name))
    : el("p", { class: "hint" }, `Picture ${name}: ${reason}`));
}

function further(rollout, verdict, sought) {
  const entries = [
    ["Sandbox and details", verdict.detail], ["Metrics of the verdict", verdict.metrics],
    ["Returned by the agent", rollout.returned], ["Segments", rollout.segments],
  ].filter(([, value]) => value && Object.keys(value).length);
  return entries.map(([title, value]) => el("details", { open: title.startsWith("Sandbox") },
    el("summary", {}, title),
    details(value, sought, title)));
}

/** Show the entries of an object, texts as texts (a program's output keeps its lines). */
const details = (value, sought, title) => Array.isArray(value) || typeof value !== "object"
  ? textBlock(typeof value === "string" ? value : json(value), { sought, className: "text small", label: title })
  : el("dl", { class: "details" }, Object.entries(value).map(([name, entry]) => [
    el("dt", {}, name),
    el("dd", {}, typeof entry === "number" ? number(entry)
      : textBlock(typeof entry === "string" ? entry : json(entry), { fold: 1500, sought, className: "text small", label: name }))]));

const advantage = (value) => Array.isArray(value) ? value.map((one) => number(one)).join(", ") : number(value);

function attempt(rollout, options) {
  const { verdict, marks, sought, measure, vocabulary, run, row } = options(rollout);
  const facts = [["Advantage", advantage(rollout.advantage)], ["Tokens", number(rollout.tokens)],
    ["End", rollout.finish], ["Answer", verdict.answer],
    ["Weights of step", rollout.versions?.length ? [...new Set(rollout.versions)].join(", ") : null],
    ["Turns", rollout.turns > 1 ? rollout.turns : null]].filter(([, value]) => value !== null && value !== undefined);
  const title = `Attempt ${rollout.attempt}`;
  const said = measure && rollout.policy_tokens ? tokenView(rollout, vocabulary, measure)
    : rollout.messages === null || rollout.messages === undefined ? el("p", { class: "empty" }, "This run kept the verdict alone (log.rollouts).")
      : conversation(rollout.messages, sought, title);
  return el("article", { class: `attempt ${verdict.error ? "unjudged" : verdict.passed ? "passed" : "failed"}`,
    id: `attempt-${rollout.attempt}`, tabindex: -1, "aria-labelledby": `title-${rollout.attempt}` },
    el("header", {},
      el("h2", { id: `title-${rollout.attempt}` }, link(groupAddress(run, row, { attempt: rollout.attempt }), title)),
      el("span", { class: "total", title: "Reward" }, verdict.error ? "no reward" : number(verdict.total)),
      verdict.error ? badge("bad", "not judged") : badge(verdict.passed ? "good" : "dim", verdict.passed ? "passed" : "not passed"),
      marks.map(([kind, text]) => badge(kind, text))),
    el("dl", { class: "line" }, facts.map(([name, value]) => el("div", {}, el("dt", {}, name),
      el("dd", {}, name === "Answer" ? textBlock(String(value), { fold: 300, sought, className: "text inline", label: "Answer" }) : value)))),
    verdict.error && el("div", { class: "error" }, el("p", { class: "role" }, "could not be judged"), textBlock(verdict.error, { sought, label: "Error" })),
    el("div", { class: "said" }, said), parts(verdict), pictures(rollout.pictures), further(rollout, verdict, sought));
}

/** Return for each attempt what is to be said of it beside its verdict. */
function marksOf(rollouts) {
  const scored = rollouts.filter((one) => one.verdict && !one.verdict.error);
  const totals = scored.map((one) => one.verdict.total);
  const [best, worst] = [Math.max(...totals), Math.min(...totals)];
  const texts = new Map();
  const marks = new Map();
  for (const rollout of rollouts) {
    const list = [];
    const total = rollout.verdict && !rollout.verdict.error ? rollout.verdict.total : null;
    if (total !== null && best > worst && total === best) list.push(["good", "best"]);
    if (total !== null && best > worst && total === worst) list.push(["dim", "worst"]);
    if (rollout.finish === "length") list.push(["warn", "truncated"]);
    const text = json(rollout.messages ?? null);
    if (rollout.messages?.length && texts.has(text)) list.push(["warn", `same text as attempt ${texts.get(text)}`]);
    else texts.set(text, rollout.attempt);
    marks.set(rollout.attempt, list);
  }
  return marks;
}

async function neighbours(source, run, parameters, row) {
  const { at, attempt: _, view, tokens, ...filter } = parameters;
  const answer = await source.groups(run, filter);
  const index = answer.rows.findIndex((one) => `${one.step}/${one.split}/${one.number}` === at);
  return { before: answer.rows[index - 1], after: index < 0 ? undefined : answer.rows[index + 1], filter };
}

/** Show a group. */
export async function group(main, source, parameters) {
  const run = Number(parameters.run ?? 0);
  const facts = source.page.runs[run];
  const [step, split, number_] = (parameters.at ?? "").split("/");
  const data = await source.group(run, Number(step), split, Number(number_));
  if (!data) {
    main.replaceChildren(heading("Group"), el("p", { class: "empty" }, facts.sample
      ? `This file holds a sample of the rollouts, without this group (${facts.sample})` : "This run has no such group."),
      link(address("groups", { run }), "All groups"));
    return;
  }
  const row = { step: data.step, split: data.split, number: data.number };
  const marks = marksOf(data.rollouts);
  const known = [...new Set(data.rollouts.flatMap(measured))];
  const vocabulary = known.length ? await source.vocabulary(run) : null;
  const key = data.key;
  const total = (one) => (one.verdict && !one.verdict.error ? one.verdict.total : -Infinity);
  const state = { order: "attempt", view: parameters.view ?? "all", measure: known.includes(parameters.tokens) ? parameters.tokens : "" };
  const grid = el("div", { class: "attempts" });
  const legend = el("p", { class: "hint", role: "note" });
  const draw = () => {
    let shown = [...data.rollouts];
    if (state.order === "reward") shown.sort((a, b) => total(b) - total(a));
    if (state.view === "ends" && shown.length > 2) {
      const sorted = [...shown].sort((a, b) => total(b) - total(a));
      shown = [sorted[0], sorted.findLast((one) => total(one) > -Infinity) ?? sorted.at(-1)];
    }
    legend.textContent = state.measure ? `Tokens by ${MEASURES[state.measure].label}: ${MEASURES[state.measure].legend}.` : "";
    grid.classList.toggle("pair", state.view === "ends");
    grid.replaceChildren(...shown.map((one) => attempt(one, (rollout) => ({
      verdict: rollout.verdict ?? { error: "no verdict yet" }, marks: marks.get(rollout.attempt),
      sought: parameters.text ?? "", measure: state.measure, vocabulary, run, row }))));
  };
  const option = (label, name, options) => el("label", { class: "field" }, el("span", {}, label),
    el("select", { name, on: { change: (event) => { state[name] = event.target.value; draw(); } } },
      options.map(([value, text]) => el("option", { value, selected: state[name] === value }, text))));
  const near = el("nav", { class: "pager", "aria-label": "Neighbouring groups" });
  const prompt = data.prompt === null ? el("p", { class: "empty" }, "The prompt was not logged; the key names the task.")
    : conversation(data.prompt, parameters.text ?? "", "Prompt");
  main.replaceChildren(
    heading(`Group ${data.number} of step ${data.step}, ${data.split}`), near,
    el("p", { class: "hint" }, `${key.env}, task ${key.index}, seed ${key.seed}, level ${number(key.level)}, draw ${data.draw}`),
    el("details", { class: "prompt", open: true }, el("summary", {}, "Prompt"), prompt),
    data.tools?.length ? el("details", { class: "prompt" }, el("summary", {}, `${data.tools.length} tools`), textBlock(json(data.tools), { label: "Tools" })) : "",
    el("div", { class: "tools" },
      option("Show", "view", [["all", "all attempts"], ["ends", "best and worst"]]),
      option("Order", "order", [["attempt", "as sampled"], ["reward", "best first"]]),
      known.length ? option("Tokens", "measure", [["", "as text"], ...known.map((name) => [name, `by ${MEASURES[name].label}`])]) : "", legend),
    grid);
  draw();
  const pointed = document.getElementById(`attempt-${parameters.attempt}`);
  if (pointed) {
    pointed.classList.add("pointed");
    pointed.scrollIntoView();
  }
  const { before, after, filter } = await neighbours(source, run, parameters, row);
  const way = (target, text, id) => target ? el("a", { href: groupAddress(run, target, filter), id }, text) : "";
  near.append(...[way(before, "← Previous group", "previous"), link(address("groups", { ...filter, run }), "Back to the list"),
    way(after, "Next group →", "next")].filter(Boolean));
}
