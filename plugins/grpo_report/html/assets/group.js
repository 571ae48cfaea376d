// One group: the prompt once, and its attempts side by side.
import { address } from "./route.js";
import { attempt, conversation, json, marksOf } from "./attempt.js";
import { el, heading, link, number, textBlock } from "./dom.js";
import { groupAddress } from "./groups.js";
import { MEASURES, measured } from "./tokens.js";

const LONG_PROMPT = 1200; // characters that leave room for the attempts on the first screen

async function neighbours(source, run, parameters, row) {
  const { at, attempt: _, view, tokens, ...filter } = parameters;
  const answer = await source.groups(run, filter);
  const index = answer.rows.findIndex((one) => `${one.step}/${one.split}/${one.number}` === at);
  return {
    before: answer.rows[index - 1],
    after: index < 0 ? undefined : answer.rows[index + 1],
    filter,
  };
}

/** Show a group. */
export async function group(main, source, parameters) {
  const run = Number(parameters.run ?? 0);
  const facts = source.page.runs[run];
  const [step, split, number_] = (parameters.at ?? "").split("/");
  const data = await source.group(run, Number(step), split, Number(number_));
  if (!data) {
    main.replaceChildren(
      heading("Group"),
      el(
        "p",
        { class: "empty" },
        facts.sample
          ? `This file holds a sample of the rollouts, without this group (${facts.sample})`
          : "This run has no such group.",
      ),
      link(address("groups", { run }), "All groups"),
    );
    return;
  }
  const row = { step: data.step, split: data.split, number: data.number };
  const marks = marksOf(data.rollouts);
  const known = [...new Set(data.rollouts.flatMap(measured))];
  const vocabulary = known.length ? await source.vocabulary(run) : null;
  const key = data.key;
  const total = (one) => (one.verdict && !one.verdict.error ? one.verdict.total : -Infinity);
  const state = {
    order: "attempt",
    view: parameters.view ?? "all",
    measure: known.includes(parameters.tokens) ? parameters.tokens : "",
  };
  const grid = el("div", { class: "attempts" });
  const legend = el("p", { class: "hint", role: "note" });
  const draw = () => {
    let shown = [...data.rollouts];
    if (state.order === "reward") shown.sort((a, b) => total(b) - total(a));
    if (state.view === "ends" && shown.length > 2) {
      const sorted = [...shown].sort((a, b) => total(b) - total(a));
      shown = [sorted[0], sorted.findLast((one) => total(one) > -Infinity) ?? sorted.at(-1)];
    }
    legend.textContent = state.measure
      ? `Tokens by ${MEASURES[state.measure].label}: ${MEASURES[state.measure].legend}.`
      : "";
    grid.classList.toggle("pair", state.view === "ends");
    grid.replaceChildren(
      ...shown.map((one) =>
        attempt(one, (rollout) => ({
          verdict: rollout.verdict ?? { error: "no verdict yet" },
          marks: marks.get(rollout.attempt),
          sought: parameters.text ?? "",
          measure: state.measure,
          vocabulary,
          run,
          row,
        })),
      ),
    );
  };
  const option = (label, name, options) =>
    el(
      "label",
      { class: "field" },
      el("span", {}, label),
      el(
        "select",
        {
          name,
          on: {
            change: (event) => {
              state[name] = event.target.value;
              draw();
            },
          },
        },
        options.map(([value, text]) =>
          el("option", { value, selected: state[name] === value }, text),
        ),
      ),
    );
  const length = [data.prompt ?? ""]
    .flat()
    .reduce((sum, part) => sum + (part.content ?? part).length, 0);
  const near = el("nav", { class: "pager", "aria-label": "Neighbouring groups" });
  const prompt =
    data.prompt === null
      ? el("p", { class: "empty" }, "The prompt was not logged; the key names the task.")
      : conversation(data.prompt, parameters.text ?? "", "Prompt");
  main.replaceChildren(
    heading(`Group ${data.number} of step ${data.step}, ${data.split}`),
    near,
    el(
      "p",
      { class: "hint" },
      `${key.env}, task ${key.index}, seed ${key.seed}, level ${number(key.level)}, draw ${data.draw}`,
    ),
    el(
      "details",
      { class: "prompt", open: length <= LONG_PROMPT },
      el(
        "summary",
        {},
        length <= LONG_PROMPT
          ? "Prompt"
          : `Prompt of ${number(length)} characters, closed so that the attempts come first`,
      ),
      prompt,
    ),
    data.tools?.length
      ? el(
          "details",
          { class: "prompt" },
          el("summary", {}, `${data.tools.length} tools`),
          textBlock(json(data.tools), { label: "Tools" }),
        )
      : "",
    el(
      "div",
      { class: "tools" },
      option("Show", "view", [
        ["all", "all attempts"],
        ["ends", "best and worst"],
      ]),
      option("Order", "order", [
        ["attempt", "as sampled"],
        ["reward", "best first"],
      ]),
      known.length
        ? option("Tokens", "measure", [
            ["", "as text"],
            ...known.map((name) => [name, `by ${MEASURES[name].label}`]),
          ])
        : "",
      legend,
    ),
    grid,
  );
  draw();
  const pointed = document.getElementById(`attempt-${parameters.attempt}`);
  if (pointed) {
    pointed.classList.add("pointed");
    pointed.scrollIntoView();
  }
  const { before, after, filter } = await neighbours(source, run, parameters, row);
  const way = (target, text, id) =>
    target ? el("a", { href: groupAddress(run, target, filter), id }, text) : "";
  near.append(
    ...[
      way(before, "← Previous group", "previous"),
      link(address("groups", { ...filter, run }), "Back to the list"),
      way(after, "Next group →", "next"),
    ].filter(Boolean),
  );
}
