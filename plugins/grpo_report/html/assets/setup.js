// What the run was: settings, environments, versions, warnings.
import { el, heading, number, table, textBlock } from "./dom.js";

const shown = (value) =>
  value === null ? "–" : typeof value === "string" ? value : JSON.stringify(value);
const cell = (value) =>
  textBlock(shown(value) ?? "", { fold: 400, className: "text inline", label: "Value" });

function flat(value, lead = "") {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return [[lead, value]];
  const entries = Object.entries(value);
  return entries.length
    ? entries.flatMap(([key, item]) => flat(item, lead ? `${lead}.${key}` : key))
    : [[lead, value]];
}

function settings(runs, only) {
  const columns = runs.map((facts) => new Map(flat(facts.config)));
  const keys = [...new Set(columns.flatMap((column) => [...column.keys()]))];
  return keys
    .filter((key) => !key.startsWith("provenance.") === !only)
    .map((key) => {
      const values = columns.map((column) => column.get(key));
      const differs = values.some((value) => shown(value) !== shown(values[0]));
      return el(
        "tr",
        { class: differs ? "differs" : null, "data-key": key.toLowerCase() },
        el("td", {}, el("code", {}, key.replace(/^provenance\./, ""))),
        values.map((value) => el("td", {}, value === undefined ? "–" : cell(value))),
      );
    });
}

/** Show settings, cards, versions and warnings of every run. */
export async function setup(main, source) {
  const { runs } = source.page;
  const names = runs.length > 1 ? runs.map((facts) => facts.name) : ["Value"];
  const rows = settings(runs, false);
  const search = el("input", {
    type: "search",
    id: "search",
    placeholder: "part of a key",
    "aria-label": "Search in settings",
    on: {
      input: () => {
        for (const row of rows) row.hidden = !row.dataset.key.includes(search.value.toLowerCase());
      },
    },
  });
  main.replaceChildren(
    heading("Setup"),
    el(
      "section",
      {},
      el("h2", {}, "Versions and provenance"),
      table("Versions", ["", ...names], settings(runs, true)),
    ),
    ...runs
      .filter((facts) => facts.first_prompt)
      .map((facts) =>
        el(
          "section",
          {},
          el("h2", {}, `First prompt${runs.length > 1 ? ` of ${facts.name}` : ""}`),
          textBlock(facts.first_prompt, { fold: 600, label: "First prompt" }),
        ),
      ),
    ...runs.flatMap((facts) =>
      Object.entries(facts.cards).map(([name, card]) =>
        el(
          "section",
          {},
          el("h2", {}, `Environment ${name}${runs.length > 1 ? ` of ${facts.name}` : ""}`),
          table(
            `Card of ${name}`,
            ["", ""],
            flat(card).map(([key, value]) => [el("code", {}, key), cell(value)]),
          ),
        ),
      ),
    ),
    el(
      "section",
      {},
      el("h2", {}, "Settings"),
      runs.length > 1 ? el("p", { class: "hint" }, "Marked: what differs.") : "",
      search,
      table("Settings", ["Setting", ...names], rows),
    ),
    ...runs.map((facts) =>
      el(
        "section",
        {},
        el("h2", {}, `Warnings${runs.length > 1 ? ` of ${facts.name}` : ""}`),
        facts.warnings.length
          ? el(
              "ul",
              { class: "warnings" },
              facts.warnings.map((text) =>
                el("li", {}, textBlock(text, { fold: 600, label: "Warning" })),
              ),
            )
          : el("p", { class: "empty" }, `None in log.txt (${number(facts.log_lines)} lines).`),
      ),
    ),
  );
}
