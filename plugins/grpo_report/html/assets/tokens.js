// The tokens that the policy wrote, coloured by log-prob, ratio or entropy.
import { el, number, visible } from "./dom.js";

export const MEASURES = {
  logprobs: {
    label: "log-prob",
    level: (value) => Math.min(1, -value / 5),
    legend: "the stronger the colour, the less likely (full at −5 nats)",
  },
  ratios: {
    label: "ratio",
    level: (value) => Math.max(-1, Math.min(1, Math.log(value) / Math.log(1.2))),
    legend: "orange: more likely after the update, blue: less (full at a factor of 1.2)",
  },
  entropies: {
    label: "entropy",
    level: (value) => Math.min(1, value / 3),
    legend: "the stronger the colour, the less certain (full at 3 nats)",
  },
};
const MOST_TOKENS = 20000; // elements at once; a button shows the others

/** Return the measures that a rollout has, by name. */
export function measured(rollout) {
  const has = {
    logprobs: rollout.policy_tokens?.some((segment) => segment?.logprobs),
    ratios: rollout.ratios?.some(Boolean),
    entropies: rollout.entropies?.some(Boolean),
  };
  return Object.keys(MEASURES).filter((name) => has[name]);
}

const valuesOf = (rollout, at, measure) =>
  measure === "logprobs" ? rollout.policy_tokens[at].logprobs : rollout[measure]?.[at];

/** Show the tokens of every segment and turn, each with its value in a title and a shade. */
export function tokenView(rollout, vocabulary, measure) {
  const { level, label } = MEASURES[measure];
  const view = el("div", { class: "tokens" });
  rollout.policy_tokens.forEach((segment, at) => {
    if (!segment) return;
    const values = valuesOf(rollout, at, measure);
    const ends = new Set();
    let total = 0;
    for (const count of segment.turns ?? []) ends.add((total += count));
    const text = el("p", { class: "text", dir: "auto" });
    const add = (from, to) => {
      for (let index = from; index < Math.min(to, segment.ids.length); index += 1) {
        const word = vocabulary?.[segment.ids[index]] ?? `⟨${segment.ids[index]}⟩`;
        const value = values?.[index] ?? null;
        const shade = value === null ? 0 : level(value);
        const token = el(
          "span",
          {
            class: `token ${shade < 0 ? "less" : "more"}`,
            title: `${label} ${number(value)}, id ${segment.ids[index]}`,
          },
          visible(word.replaceAll("\n", "↵")),
        );
        token.style.setProperty("--shade", `${Math.round(70 * Math.abs(shade))}%`);
        text.append(token);
        if (/[\n↵]/.test(word)) text.append("\n");
        if (ends.has(index + 1))
          text.append(el("span", { class: "turn-end", title: "end of a turn" }, "¶"));
      }
    };
    add(0, MOST_TOKENS);
    view.append(text);
    const rest = segment.ids.length - MOST_TOKENS;
    if (rest > 0) {
      const more = el(
        "button",
        {
          type: "button",
          class: "more",
          on: {
            click: () => {
              more.remove();
              add(MOST_TOKENS, segment.ids.length);
            },
          },
        },
        `Show the other ${rest.toLocaleString("en")} tokens`,
      );
      view.append(more);
    }
  });
  return view;
}
