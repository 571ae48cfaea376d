// The page of curves: a summary of each run, and charts that zoom together.
import { beyondText, oneUnitEach, withoutOutliers } from "./axes.js";
import { address } from "./route.js";
import { button, el, heading, number, percent, textBlock } from "./dom.js";
import { CHARTS, SMOOTH, curvesOf, plotted } from "./plots.js";

const DEAD = 0.5; // share of groups with a signal below which the page says so
const LAST_WARNINGS = 3; // the others are on the page of the setup

/** Return the place of the last value in each row of a chart's data. */
const lastOf = (data) =>
  data.map((row) => row.findLastIndex((value) => value !== null && value !== undefined));

/** Say what a person has to know before the curves: dead groups and warnings. */
function noticesOf({ metrics, facts }) {
  const mixed = (metrics.steps.columns["groups/mixed"] ?? []).filter((value) => value !== null);
  const recent = mixed.slice(-SMOOTH);
  const alive = recent.reduce((sum, value) => sum + value, 0) / recent.length;
  const dead =
    recent.length && alive < DEAD
      ? `In the last ${recent.length} steps ${percent(1 - alive)} of the groups were dead: the ` +
        "rewards of all their attempts were the same, and nothing was learned from them."
      : "";
  const rest = facts.warnings.length - LAST_WARNINGS;
  const texts = [dead, ...facts.warnings.slice(-LAST_WARNINGS)].filter(Boolean);
  if (!texts.length) return "";
  return el(
    "div",
    { class: "notices", role: "note", "aria-label": "Warnings" },
    el(
      "ul",
      { class: "warnings" },
      texts.map((text) => el("li", {}, textBlock(text, { fold: 300, label: "Warning" }))),
    ),
    rest > 0 && el("a", { href: address("setup", {}) }, `${number(rest)} earlier warnings`),
  );
}

function summaryOf(runs) {
  const last = (columns, key) => columns[key]?.findLast((value) => value !== null);
  const tile = (label, value) =>
    el("div", { class: "tile" }, el("dt", {}, label), el("dd", {}, value));
  return runs.map(({ name, metrics, facts }) => {
    const { columns } = metrics.steps;
    const evaluations = metrics.evaluations.columns;
    const arrow = (key, show) => {
      const values = (evaluations[key] ?? []).filter((value) => value !== null);
      return values.length ? `${show(values[0])} → ${show(values.at(-1))}` : null;
    };
    const held = [
      ["Held-out reward", arrow("eval/reward/mean", number)],
      ["Held-out pass rate", arrow("eval/pass_rate", percent)],
    ];
    return el(
      "section",
      { "aria-label": `Summary of ${name}` },
      runs.length > 1 && el("h2", {}, name),
      el(
        "dl",
        { class: "tiles" },
        tile(
          "Steps",
          `${number(last(columns, "step") ?? 0)}${facts.planned ? ` of ${number(facts.planned)}` : ""}`,
        ),
        held.filter(([, value]) => value).map(([label, value]) => tile(label, value)),
        tile("Reward in training", number(last(columns, "reward/mean"))),
        columns["groups/mixed"] &&
          tile("Dead groups, last step", percent(1 - (last(columns, "groups/mixed") ?? 0))),
        tile("KL per token", number(last(columns, "kl"))),
        tile("Tokens of a completion", number(last(columns, "completion_length/mean"))),
        tile(
          "Alarms",
          el("a", { href: address("forensics", { run: facts.id }) }, number(facts.alarms.length)),
        ),
        tile(
          "State",
          [facts.signal.missing, facts.finished ? "finished" : "not finished"]
            .filter(Boolean)
            .join(", "),
        ),
      ),
      facts.signal.remark && el("p", { class: "hint", role: "note" }, facts.signal.remark),
      noticesOf({ metrics, facts }),
    );
  });
}

/** Draw all charts that have values; return how the page takes them away again. */
export async function curves(main, source, parameters) {
  const runs = await Promise.all(
    source.page.runs.map(async (facts) => ({
      run: facts.id,
      name: facts.name,
      facts,
      metrics: await source.metrics(facts.id),
    })),
  );
  const plots = [];
  let zooming = false;
  const first = el("input", { type: "number", id: "first-step", value: parameters.from ?? "" });
  const last = el("input", { type: "number", id: "last-step", value: parameters.to ?? "" });
  const zoom = (from, to) => {
    zooming = true;
    for (const plot of plots) {
      const steps = plot.data[0];
      plot.setScale("x", { min: from ?? steps[0], max: to ?? steps.at(-1) });
    }
    zooming = false;
    first.value = from === null ? "" : Math.ceil(from);
    last.value = to === null ? "" : Math.floor(to);
    const here = address("curves", { from: first.value, to: last.value });
    if (location.hash && location.hash !== here) history.replaceState(null, "", here);
  };
  const typed = () =>
    zoom(
      first.value === "" ? null : Number(first.value),
      last.value === "" ? null : Number(last.value),
    );
  for (const input of [first, last]) input.addEventListener("change", typed);
  const grid = el("div", { class: "charts" });
  main.replaceChildren(
    heading("Curves"),
    ...summaryOf(runs),
    el(
      "div",
      { class: "tools" },
      el("label", { for: "first-step" }, "From step"),
      first,
      el("label", { for: "last-step" }, "to"),
      last,
      button("Whole run", () => zoom(null, null)),
      el(
        "p",
        { class: "hint" },
        `Thick: mean of ${SMOOTH} steps; thin: each step; band: one standard deviation of these ` +
          "steps, unless a chart says otherwise. Drag over a chart to zoom into all, double-click " +
          "to see the whole run, click a step to see its groups.",
      ),
    ),
    grid,
  );
  if (!runs.some(({ metrics }) => metrics.steps.columns.step?.length)) {
    grid.append(el("p", { class: "empty" }, "No step has been logged yet."));
    return () => {};
  }
  const draw = (chart, drawn, limits, frame) => {
    const { data, options } = plotted(chart, drawn, Math.max(240, frame.clientWidth), limits);
    options.hooks = {
      // Without a cursor the legend has the last value of each curve.
      setCursor: [
        (plot) => {
          if (plot.cursor.idx === null) plot.setLegend({ idxs: lastOf(plot.data) }, false);
        },
      ],
      setScale: [
        (plot, scale) => {
          if (scale === "y") {
            const ends = [plot.scales.y.min, plot.scales.y.max].map((end) => number(end));
            const label = `${chart.title}, on an axis from ${ends.join(" to ")}`;
            plot.ctx.canvas.setAttribute("role", "img");
            plot.ctx.canvas.setAttribute("aria-label", label);
          }
          if (scale !== "x" || zooming || !plots.includes(plot)) return;
          const { min, max } = plot.scales.x;
          const whole = min <= plot.data[0][0] && max >= plot.data[0].at(-1);
          zoom(whole ? null : min, whole ? null : max);
        },
      ],
    };
    frame.replaceChildren();
    const plot = new uPlot(options, data, frame);
    plot.setLegend({ idxs: lastOf(data) }, false);
    let pressed = 0;
    plot.over.addEventListener("mousedown", (event) => {
      pressed = event.clientX;
    });
    plot.over.addEventListener("click", (event) => {
      if (Math.abs(event.clientX - pressed) > 3 || plot.cursor.idx === null) return;
      const step = plot.data[0][plot.cursor.idx];
      location.hash = address("groups", { run: runs[0].run, steps_from: step, steps_to: step });
    });
    plots.push(plot);
    typed();
  };
  // A chart is drawn when it comes into sight, so that the first ones need not wait for all.
  const seen = new IntersectionObserver(
    (entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        seen.unobserve(target);
        draw(...waiting.get(target), target);
      }
    },
    { rootMargin: "300px" },
  );
  const waiting = new Map();
  const charts = CHARTS.flatMap((chart) => oneUnitEach(chart, curvesOf(chart, runs)));
  for (const [chart, drawn] of charts) {
    if (!drawn.length) continue;
    const limits = withoutOutliers(chart, drawn);
    const frame = el("div", { class: "plot" });
    grid.append(
      el(
        "figure",
        { class: "chart", id: `chart-${chart.id}` },
        el(
          "figcaption",
          {},
          chart.title,
          chart.note && el("small", {}, chart.note),
          limits && el("small", { class: "beyond" }, beyondText(limits)),
        ),
        frame,
      ),
    );
    waiting.set(frame, [chart, drawn, limits]);
    seen.observe(frame);
  }
  const resized = new ResizeObserver(() => {
    for (const plot of plots) {
      const width = plot.root.parentElement.clientWidth;
      if (width && width !== plot.width) plot.setSize({ width, height: plot.height });
    }
  });
  resized.observe(grid);
  return () => {
    resized.disconnect();
    seen.disconnect();
    for (const plot of plots) plot.destroy();
  };
}
