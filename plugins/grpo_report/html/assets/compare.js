// Two runs on the same held-out tasks.
import { address } from "./route.js";
import { badge, el, heading, link, number, table } from "./dom.js";

const signed = (value) => `${value < 0 ? "−" : "+"}${number(Math.abs(value))}`;

function flips(title, rows, first, second) {
  if (!rows.length)
    return el("section", {}, el("h2", {}, title), el("p", { class: "empty" }, "None."));
  return el(
    "section",
    {},
    el("h2", {}, `${title} (${number(rows.length)})`),
    table(
      title,
      ["Task", "Passes in A", "Passes in B", "Groups"],
      rows.map((row) => [
        `${row.environment} ${row.task}, seed ${row.seed}, level ${number(row.level)}`,
        `${number(100 * row.a)} %`,
        `${number(100 * row.b)} %`,
        [
          row.a_at ? link(address("group", { run: first, at: row.a_at }), "A") : "",
          " ",
          row.b_at ? link(address("group", { run: second, at: row.b_at }), "B") : "",
        ],
      ]),
    ),
  );
}

function withInterval(mean) {
  const interval = mean.low === null ? "" : ` (${number(mean.low)} … ${number(mean.high)})`;
  return `${number(mean.value)}${interval}`;
}

function means(groups) {
  if (!groups.some((group) => group.runs.length > 1)) return "";
  return el(
    "section",
    {},
    el("h2", {}, "Means over seeds"),
    el(
      "p",
      { class: "hint" },
      "Finished runs that differ in their seed alone; held-out, with the 95 % interval of Student's t over runs.",
    ),
    table(
      "Means over seeds",
      ["Settings", "Runs", "Reward", "Pass rate"],
      groups.map((group) => [
        group.label || "all",
        number(group.reward.runs),
        withInterval(group.reward),
        withInterval(group.pass_rate),
      ]),
    ),
  );
}

/** Show the comparison of every further run with the first one. */
export async function compare(main, source, parameters) {
  const { runs } = source.page;
  const second = Number(parameters.with ?? 1);
  main.replaceChildren(heading("Comparison"), means(source.page.means));
  const answer = await source.comparison(0, second);
  const select = el(
    "select",
    {
      id: "with",
      on: {
        change: () => {
          location.hash = address("compare", { with: select.value });
        },
      },
    },
    runs
      .slice(1)
      .map((facts) => el("option", { value: facts.id, selected: facts.id === second }, facts.name)),
  );
  main.append(
    el(
      "div",
      { class: "tools" },
      el("p", {}, "A: ", runs[0].name),
      el("label", { for: "with" }, "B:"),
      select,
    ),
  );
  if (answer.error) {
    main.append(el("p", { class: "empty" }, answer.error));
    return;
  }
  main.append(
    el(
      "p",
      { class: "hint" },
      `${number(answer.tasks)} held-out tasks that both have, paired by task; interval of 95 %; p of a sign-flip test.` +
        (answer.only_one
          ? ` ${number(answer.only_one)} tasks that only one of them has were left out.`
          : ""),
    ),
    table(
      "Differences",
      ["", "A", "B", "B − A", "95 % interval", "p", ""],
      answer.rows.map((row) => [
        row.name,
        number(row.before),
        number(row.after),
        signed(row.mean),
        `${signed(row.low)} … ${signed(row.high)}`,
        number(row.p, 2),
        row.low > 0
          ? badge("good", "B is better")
          : row.high < 0
            ? badge("bad", "A is better")
            : badge("dim", "no clear difference"),
      ]),
    ),
    flips("B passes more often", answer.better, 0, second),
    flips("A passes more often", answer.worse, 0, second),
  );
}
