// One attempt of a group: what was said, what it was paid and why.
import { badge, el, link, number, table, textBlock } from "./dom.js";
import { groupAddress } from "./groups.js";
import { tokenView } from "./tokens.js";

export const json = (value) => JSON.stringify(value, null, 2);

/** Show a message: who speaks, thoughts, the text, and calls of tools. */
function message({ role, content, thoughts, tool_calls: calls }, sought, label) {
  return el(
    "div",
    { class: `message ${["system", "user", "assistant", "tool"].includes(role) ? role : "other"}` },
    el("p", { class: "role" }, role),
    thoughts
      ? el(
          "details",
          sought && thoughts.toLowerCase().includes(sought.toLowerCase()) ? { open: "" } : {},
          el("summary", {}, "Thoughts"),
          textBlock(thoughts, { sought, className: "text small", label: `${label}: thoughts` }),
        )
      : "",
    content || !calls?.length
      ? textBlock(content ?? "", { sought, label: `${label}: ${role}` })
      : "",
    (calls ?? []).map((call) =>
      el(
        "div",
        { class: "call" },
        el("p", { class: "role" }, `calls ${call.name}`),
        textBlock(call.error ? `${call.error}\n${json(call.arguments)}` : json(call.arguments), {
          sought,
          label: `${label}: call of ${call.name}`,
        }),
      ),
    ),
  );
}

/** Show a text, or the messages of a chat. */
export const conversation = (messages, sought, label) =>
  typeof messages === "string"
    ? textBlock(messages, { sought, label })
    : messages.map((one) => message(one, sought, label));

function parts(verdict) {
  const rows = Object.entries(verdict.rewards ?? {}).map(([name, part]) => [
    name,
    `${number(part.value)} × ${number(part.weight)}`,
    number(part.value * part.weight),
    part.turns ? part.turns.map((value) => number(value)).join(", ") : "",
    part.note
      ? textBlock(part.note, { fold: 600, className: "text small", label: `Note of ${name}` })
      : "",
    part.seconds >= 0.001 ? `${number(part.seconds, 2)} s` : "",
  ]);
  if (!rows.length) return null;
  const given = [0, 1, 2, 3, 4, 5].filter((at) => at < 3 || rows.some((row) => row[at]));
  const keep = (row) => given.map((at) => row[at]);
  return table(
    "Reward parts",
    keep(["Part", "Value × weight", "Reward", "By turn", "Verifier's note", "Time"]),
    rows.map(keep),
    { class: "parts" },
  );
}

function pictures(shown) {
  return (shown ?? []).map(({ name, url, reason }) =>
    url
      ? el(
          "figure",
          {},
          el("img", { src: url, alt: name, loading: "lazy" }),
          el("figcaption", {}, name),
        )
      : el("p", { class: "hint" }, `Picture ${name}: ${reason}`),
  );
}

function further(rollout, verdict, sought) {
  const entries = [
    ["Printed by the verifier", verdict.output],
    ["Sandbox and details", verdict.detail],
    ["Metrics of the verdict", verdict.metrics],
    ["Returned by the agent", rollout.returned],
    ["Segments", rollout.segments],
  ].filter(([, value]) => value && Object.keys(value).length);
  return entries.map(([title, value]) =>
    el(
      "details",
      { open: title.startsWith("Sandbox") || title.startsWith("Printed") },
      el("summary", {}, title),
      details(value, sought, title),
    ),
  );
}

/** Show the entries of an object, texts as texts (a program's output keeps its lines). */
const details = (value, sought, title) =>
  Array.isArray(value) || typeof value !== "object"
    ? textBlock(typeof value === "string" ? value : json(value), {
        sought,
        className: "text small",
        label: title,
      })
    : el(
        "dl",
        { class: "details" },
        Object.entries(value).map(([name, entry]) => [
          el("dt", {}, name),
          el(
            "dd",
            {},
            typeof entry === "number"
              ? number(entry)
              : textBlock(typeof entry === "string" ? entry : json(entry), {
                  fold: 1500,
                  sought,
                  className: "text small",
                  label: name,
                }),
          ),
        ]),
      );

const advantage = (value) =>
  Array.isArray(value) ? value.map((one) => number(one)).join(", ") : number(value);

/** Show an attempt. */
export function attempt(rollout, options) {
  const { verdict, marks, sought, measure, vocabulary, run, row } = options(rollout);
  const facts = [
    ["Advantage", advantage(rollout.advantage)],
    ["Tokens", number(rollout.tokens)],
    ["End", rollout.finish],
    ["Answer", verdict.answer],
    [
      "Weights of step",
      rollout.versions?.length ? [...new Set(rollout.versions)].join(", ") : null,
    ],
    ["Turns", rollout.turns > 1 ? rollout.turns : null],
  ].filter(([, value]) => value !== null && value !== undefined);
  const title = `Attempt ${rollout.attempt}`;
  const said =
    measure && rollout.policy_tokens
      ? tokenView(rollout, vocabulary, measure)
      : rollout.messages === null || rollout.messages === undefined
        ? el("p", { class: "empty" }, "This run kept the verdict alone (log.rollouts).")
        : conversation(rollout.messages, sought, title);
  return el(
    "article",
    {
      class: `attempt ${verdict.error ? "unjudged" : verdict.passed ? "passed" : "failed"}`,
      id: `attempt-${rollout.attempt}`,
      tabindex: -1,
      "aria-labelledby": `title-${rollout.attempt}`,
    },
    el(
      "header",
      {},
      el(
        "h2",
        { id: `title-${rollout.attempt}` },
        link(groupAddress(run, row, { attempt: rollout.attempt }), title),
      ),
      el(
        "span",
        { class: "total", title: "Reward" },
        verdict.error ? "no reward" : number(verdict.total),
      ),
      verdict.error
        ? badge("bad", "not judged")
        : badge(verdict.passed ? "good" : "dim", verdict.passed ? "passed" : "not passed"),
      marks.map(([kind, text]) => badge(kind, text)),
    ),
    el(
      "dl",
      { class: "line" },
      facts.map(([name, value]) =>
        el(
          "div",
          {},
          el("dt", {}, name),
          el(
            "dd",
            {},
            name === "Answer"
              ? textBlock(String(value), {
                  fold: 300,
                  sought,
                  className: "text inline",
                  label: "Answer",
                })
              : value,
          ),
        ),
      ),
    ),
    verdict.error &&
      el(
        "div",
        { class: "error" },
        el("p", { class: "role" }, "could not be judged"),
        textBlock(verdict.error, { sought, label: "Error" }),
      ),
    el("div", { class: "said" }, said),
    parts(verdict),
    pictures(rollout.pictures),
    further(rollout, verdict, sought),
  );
}

/** Return for each attempt what is to be said of it beside its verdict. */
export function marksOf(rollouts) {
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
    if (rollout.messages?.length && texts.has(text))
      list.push(["warn", `same text as attempt ${texts.get(text)}`]);
    else texts.set(text, rollout.attempt);
    marks.set(rollout.attempt, list);
  }
  return marks;
}
