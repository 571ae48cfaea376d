// The list of groups: filters, search, order, pages.
import { address, go } from "./route.js";
import { badge, button, el, heading, link, number, table, visible } from "./dom.js";

const ORDER = {
  log: "in the log",
  reward: "mean reward",
  tokens: "mean tokens",
  spread: "spread of rewards",
};
const ANSWERS = [
  ["", "any"],
  ["yes", "yes"],
  ["no", "no"],
];
const FLAGS = {
  passed: "Passed",
  truncated: "Truncated",
  duplicate: "Duplicate",
  error: "Not judged",
};

const field = (label, input) => el("label", { class: "field" }, el("span", {}, label), input);
const choice = (name, options, value) =>
  el(
    "select",
    { name },
    options.map(([key, text]) =>
      el("option", { value: key, selected: key === (value ?? "") }, text),
    ),
  );
const bounds = (label, name, parameters) =>
  el(
    "fieldset",
    { class: "bounds" },
    el("legend", {}, label),
    ["from", "to"].map((end) =>
      el("input", {
        type: "number",
        step: "any",
        placeholder: end,
        name: `${name}_${end}`,
        "aria-label": `${label} ${end}`,
        value: parameters[`${name}_${end}`] ?? "",
      }),
    ),
  );

function form(facts, parameters, apply) {
  const { facets } = facts;
  const fields = [
    bounds("Step", "steps", parameters),
    bounds("Reward", "reward", parameters),
    bounds("Tokens", "tokens", parameters),
    el(
      "fieldset",
      { class: "bounds" },
      el("legend", {}, "Part"),
      choice(
        "part",
        [["", "choose"], ...facets.parts.map((part) => [part, visible(part)])],
        parameters.part,
      ),
      ["from", "to"].map((end) =>
        el("input", {
          type: "number",
          step: "any",
          placeholder: end,
          name: `part_${end}`,
          "aria-label": `Part ${end}`,
          value: parameters[`part_${end}`] ?? "",
        }),
      ),
    ),
    field(
      "Split",
      choice("split", [["", "any"], ...facets.splits.map((one) => [one, one])], parameters.split),
    ),
    field(
      "Environment",
      choice(
        "environment",
        [["", "any"], ...facets.environments.map((one) => [one, visible(one)])],
        parameters.environment,
      ),
    ),
    field(
      "Task",
      el("input", { type: "number", name: "task", min: 0, value: parameters.task ?? "" }),
    ),
    Object.entries(FLAGS).map(([name, label]) =>
      field(label, choice(name, ANSWERS, parameters[name])),
    ),
  ];
  const filtered = Object.keys(parameters).some(
    (name) => !["run", "page", "text", "order", "descending"].includes(name),
  );
  const node = el(
    "form",
    {
      class: "filters",
      role: "search",
      on: {
        submit: (event) => {
          event.preventDefault();
          apply(new FormData(node));
        },
        change: () => apply(new FormData(node)),
      },
    },
    el(
      "div",
      { class: "first" },
      field(
        "Search in prompts and completions",
        el("input", {
          type: "search",
          name: "text",
          id: "search",
          minlength: 3,
          placeholder: "at least 3 characters",
          value: parameters.text ?? "",
        }),
      ),
      field("Order", choice("order", Object.entries(ORDER), parameters.order ?? "log")),
      field(
        "Direction",
        choice(
          "descending",
          [
            ["yes", "last or highest first"],
            ["no", "first or lowest first"],
          ],
          parameters.descending ?? "yes",
        ),
      ),
      button("Clear", () => go("groups", { run: facts.id })),
    ),
    el(
      "details",
      { open: filtered || matchMedia("(min-width: 60rem)").matches },
      el("summary", {}, "Filters"),
      el("div", { class: "fields" }, fields),
    ),
  );
  return node;
}

const flags = (row) => [
  row.dead && badge("dim", "dead", "All scored rollouts have advantage 0"),
  row.truncated > 0 && badge("warn", `${row.truncated} truncated`),
  row.duplicates > 0 && badge("warn", `${row.duplicates} duplicate`),
  row.errors > 0 && badge("bad", `${row.errors} not judged`),
];

/** Return the link to a group; it keeps the filter, so that next and previous follow the list. */
export const groupAddress = (run, row, parameters = {}) =>
  address("group", { ...parameters, run, at: `${row.step}/${row.split}/${row.number}` });

function listed(facts, answer, parameters) {
  const rows = answer.rows.map((row) =>
    el(
      "tr",
      {},
      el(
        "td",
        {},
        link(groupAddress(facts.id, row, parameters), `${row.step} · ${row.split} · ${row.number}`),
      ),
      el("td", { class: "wide" }, `${row.environment} ${row.task}`),
      el("td", {}, bar(row, facts.scale)),
      el("td", {}, number(row.reward_mean)),
      el("td", {}, number(row.reward_low), " … ", number(row.reward_high)),
      el("td", {}, `${row.passed} of ${row.rollouts}`),
      el("td", {}, number(Math.round(row.tokens_mean))),
      el("td", {}, flags(row)),
    ),
  );
  return table(
    "Groups",
    [
      "Step · split · group",
      "Task",
      "",
      "Mean reward",
      "Worst … best",
      "Passed",
      "Tokens",
      "Notes",
    ],
    rows,
    { class: "groups" },
  );
}

/** Draw the range and the mean of a group's rewards on the run's scale. */
function bar(row, scale) {
  if (row.reward_mean === null || !scale || scale.high <= scale.low) return "";
  const place = (value) => 1 + (98 * (value - scale.low)) / (scale.high - scale.low);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "range");
  svg.setAttribute("viewBox", "0 0 100 10");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const line = (name, from, to, top, height) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    for (const [key, value] of Object.entries({
      class: name,
      x: from,
      y: top,
      height,
      width: Math.max(1.5, to - from),
    }))
      node.setAttribute(key, value);
    svg.append(node);
  };
  line("whole", 0, 100, 4, 2);
  line("spread", place(row.reward_low), place(row.reward_high), 3, 4);
  line("mean", place(row.reward_mean) - 0.75, place(row.reward_mean) + 0.75, 0, 10);
  return svg;
}

function pager(facts, answer, parameters, groups) {
  const page = Number(parameters.page ?? 0);
  const pages = groups === null ? null : Math.max(1, Math.ceil(groups / answer.page_size));
  const last = pages === null ? answer.rows.length < answer.page_size : page + 1 >= pages;
  const to = (target) => () => go("groups", { ...parameters, page: target || "" });
  return el(
    "nav",
    { class: "pager", "aria-label": "Pages of groups" },
    button("Previous", to(page - 1), { disabled: page <= 0 }),
    el("span", {}, pages === null ? `Page ${page + 1}` : `Page ${page + 1} of ${number(pages)}`),
    button("Next", to(page + 1), { disabled: last }),
  );
}

/** Say what the single file holds of a run, where it does not hold all. */
export const sampleNote = (facts) => facts.sample && el("p", { class: "note" }, facts.sample);

/** Show the list of groups. */
export async function groups(main, source, parameters) {
  const facts = source.page.runs[Number(parameters.run ?? 0)];
  const apply = (data) => {
    const wanted = Object.fromEntries([...data].filter(([, value]) => value !== ""));
    if (wanted.order === "log") delete wanted.order;
    if (wanted.descending === "yes") delete wanted.descending;
    if (wanted.text?.length < 3) delete wanted.text;
    history.replaceState(null, "", address("groups", { run: facts.id, ...wanted }));
    show({ run: facts.id, ...wanted });
  };
  const results = el("div", { class: "results" });
  const count = el("p", { class: "count", role: "status" });
  let asked = 0;
  const show = async (wanted) => {
    const number_ = ++asked;
    count.textContent = "Searching …";
    const answer = await source.groups(facts.id, wanted, (share) => {
      if (number_ === asked) count.textContent = `Searching … ${Math.round(100 * share)} %`;
    });
    if (number_ !== asked) return;
    let pages = pager(facts, answer, wanted, null);
    results.replaceChildren(
      answer.rows.length
        ? listed(facts, answer, wanted)
        : el(
            "p",
            { class: "empty" },
            facts.facets.groups ? "No group matches." : "No rollout has been logged yet.",
          ),
      pages,
    );
    count.textContent = "Counting …";
    const { groups: all, rollouts } = await answer.count();
    if (number_ !== asked) return;
    count.textContent = `${number(all)} groups, ${number(rollouts)} matching rollouts`;
    pages.replaceWith((pages = pager(facts, answer, wanted, all)));
  };
  main.replaceChildren(
    ...[
      heading("Groups"),
      sampleNote(facts),
      form(facts, parameters, apply),
      count,
      results,
    ].filter(Boolean),
  );
  const { text, ...others } = parameters;
  await show(text?.length < 3 ? others : parameters); // the index finds nothing shorter
}
