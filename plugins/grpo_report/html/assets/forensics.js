// What may have been paid for the wrong reason.
import { address } from "./route.js";
import { badge, el, heading, link, number, table, textBlock } from "./dom.js";
import { sampleNote } from "./groups.js";

const at = (run, place, attempt) => address("group", { run, at: place, attempt });
const short = (text, label) =>
  textBlock(text ?? "", { fold: 300, className: "text inline", label });
const section = (title, explanation, content, empty) =>
  el(
    "section",
    {},
    el("h2", {}, title),
    el("p", { class: "hint" }, explanation),
    content ?? el("p", { class: "empty" }, empty),
  );
const filled = (rows, make) => (rows.length ? make(rows) : null);

function alarms(run, list) {
  return list.map((alarm) =>
    el(
      "article",
      { class: "alarm" },
      el(
        "h3",
        {},
        badge("bad", alarm.name),
        ` step ${alarm.step}, ${alarm.environment}`,
        alarm.subject ? ` (${alarm.subject})` : "",
      ),
      textBlock(alarm.message, { label: "Alarm" }),
      alarm.canary ? short(alarm.canary, "Canary") : "",
      el(
        "p",
        {},
        alarm.at ? link(at(run, alarm.at, alarm.attempt), "The group that shows it") : "",
        " ",
        Object.entries(alarm.values ?? {})
          .map(([name, value]) => `${name} ${number(value)}`)
          .join(", "),
      ),
    ),
  );
}

const trends = (rows) =>
  table(
    "Trends",
    ["Measure", "First fifth", "Last fifth", "Change", "Values", "Worth a look"],
    rows.map((row) => [
      row.name,
      number(row.first),
      number(row.last),
      `${row.last >= row.first ? "+" : "−"}${number(Math.abs(row.last - row.first))}`,
      number(row.steps),
      row.suspicious ? badge("warn", row.suspicious) : "",
    ]),
  );

const phrases = (found) => [
  el(
    "p",
    { class: "hint" },
    `Of ${number(found.groups)} random groups with different rewards: ${number(found.paid)} rollouts with the highest reward of their group against the other ${number(found.rest)}. ` +
      `z: log-odds over its standard error, with a prior of one half; beyond 3 it is hardly chance.`,
  ),
  table(
    "Phrases",
    ["Phrase", "Best paid", "Others", "z"],
    found.rows.map((row) => [
      short(row.phrase, "Phrase"),
      `${number((100 * row.paid) / found.paid)} %`,
      `${number((100 * row.rest) / found.rest)} %`,
      number(row.z),
    ]),
  ),
];

/** Show the forensics of a run. */
export async function forensics(main, source, parameters) {
  const run = Number(parameters.run ?? 0);
  const facts = source.page.runs[run];
  main.replaceChildren(heading("Forensics"), el("p", { role: "status" }, "Reading the rollouts …"));
  const found = await source.forensics(run);
  main.replaceChildren(
    ...[
      heading("Forensics"),
      sampleNote(facts),
      section(
        "Alarms",
        "What the run itself warned of while it trained.",
        filled(facts.alarms, (list) => alarms(run, list)),
        "No alarm was logged.",
      ),
      section(
        "Reward against other measures",
        "Means of the first and of the last fifth of the steps. A measure is marked where the reward rose and it went the wrong way, both by more than two standard errors.",
        filled(found.trends, trends),
        "Too few steps.",
      ),
      section(
        "Same answer, different reward",
        "Attempts of one group with the same extracted answer. Format, length and the judge may explain it, a verifier that is not deterministic too.",
        filled(found.disagreements, (rows) =>
          table(
            "Same answer",
            ["Group", "Environment", "Answer", "Rewards", "Attempts"],
            rows.map((row) => [
              link(at(run, row.at), row.at),
              row.environment,
              short(row.answer, "Answer"),
              `${number(row.low)} … ${number(row.high)}`,
              number(row.rollouts),
            ]),
          ),
        ),
        "None.",
      ),
      section(
        "Phrases of the best paid",
        "Sequences of one to four words, by the share of rollouts that hold them.",
        found.phrases.rows.length ? phrases(found.phrases) : null,
        "No phrase is more frequent among them.",
      ),
      section(
        "Verdict flips",
        "Tasks that passed once and failed later.",
        filled(found.flips, (rows) =>
          table(
            "Flips",
            ["Task", "Split", "Passed", "Failed"],
            rows.map((row) => [
              `${row.environment} ${row.task}, seed ${row.seed}, level ${number(row.level)}`,
              row.split,
              link(at(run, row.passed_at), row.passed_at),
              link(at(run, row.failed_at), row.failed_at),
            ]),
          ),
        ),
        "None.",
      ),
      found.cut ? el("p", { class: "note" }, found.cut) : null,
    ].filter(Boolean),
  );
}
