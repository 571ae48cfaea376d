// Which curves a chart has, and how they are drawn: moving means, bands, held-out values.
import { SHORTEST, drawn, range } from "./axes.js";
import { number, visible } from "./dom.js";

export const SMOOTH = 10; // steps of the moving mean
const TOTALS = /(^|\/)reward\/(mean|std|constant_share)$/;
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const endsWith =
  (...names) =>
  (key) =>
    names.some((name) => key === name || (key.endsWith(`/${name}`) && !key.startsWith("eval/")));
const under = (prefix) => (key) =>
  !key.startsWith("eval/") && (key.startsWith(prefix) || key.includes(`/${prefix}`));

/** What is drawn: which metrics, and what the band around their moving mean shows. */
export const CHARTS = [
  {
    id: "reward",
    title: "Reward",
    of: endsWith("reward/mean"),
    held: true,
    spread: "reward/std",
    note: "Band: one standard deviation of the rewards of a step.",
  },
  {
    id: "pass",
    title: "Pass rate",
    of: endsWith("pass_rate"),
    held: true,
    not: /curriculum/,
    share: true,
  },
  { id: "entropy", title: "Entropy of the sampled tokens", of: endsWith("entropy") },
  {
    id: "alive",
    title: "Groups: alive, distinct answers, refilled",
    of: endsWith("groups/mixed", "groups/distinct", "groups/refilled"),
    share: true,
    note: "Alive: the rewards of the group differ; from the others nothing is learned.",
  },
  {
    id: "parts",
    title: "Reward parts",
    of: (key) => under("reward/")(key) && !TOTALS.test(key),
    note: "Mean value of each part, without its weight.",
  },
  {
    id: "audit",
    title: "Audits and the environment's metrics",
    of: under("env/"),
    held: true,
    mixed: true,
  },
  { id: "kl", title: "KL to the reference, per token", of: endsWith("kl") },
  { id: "kl-sequence", title: "KL to the reference, per completion", of: endsWith("kl/sequence") },
  { id: "length", title: "Tokens of a completion", of: endsWith("completion_length/mean") },
  {
    id: "truncated",
    title: "Share that reached the token budget",
    of: endsWith("completion_length/clipped"),
    share: true,
  },
  {
    id: "errors",
    title: "Share that could not be judged",
    of: endsWith("verify/error_rate"),
    share: true,
  },
  { id: "alarms", title: "Alarms", of: under("alarms/"), mixed: true },
  {
    id: "time",
    title: "Seconds of a step, by phase",
    note: `Less than ${1000 * SHORTEST} ms is drawn as that.`,
    of: (key) => key.startsWith("time/") && key !== "time/load",
    log: true,
  },
  {
    id: "verify-time",
    title: "Seconds inside each reward part",
    note: `Less than ${1000 * SHORTEST} ms is drawn as that.`,
    of: under("verify/seconds/"),
    log: true,
  },
  { id: "memory", title: "Memory, MiB", of: under("memory/") },
  { id: "loss", title: "Loss", of: endsWith("loss", "policy_loss", "kl_penalty") },
  { id: "gradient", title: "Norm of the gradient", of: endsWith("grad_norm") },
  { id: "clip", title: "Share of clipped tokens", of: endsWith("clip_fraction"), share: true },
  { id: "staleness", title: "Age of the sampling weights, steps", of: under("staleness/") },
];

/** Return mean and deviation of the last steps; values beyond the limits do not count. */
function moving(values, limits) {
  const recent = [];
  const mean = [];
  const deviation = [];
  for (const value of values) {
    const counts = !limits || (value >= limits.low && value <= limits.high);
    if (value !== null && counts) recent.push(value);
    if (recent.length > SMOOTH) recent.shift();
    if (!recent.length) {
      mean.push(null);
      deviation.push(null);
      continue;
    }
    const average = recent.reduce((sum, one) => sum + one, 0) / recent.length;
    const squares = recent.reduce((sum, one) => sum + (one - average) ** 2, 0) / recent.length;
    mean.push(value === null ? null : average);
    deviation.push(value === null ? null : Math.sqrt(squares));
  }
  return { mean, deviation };
}

const colour = (index) => style(`--series-${index % 8}`);

const hasValues = (values) => Boolean(values?.some((value) => value !== null));

/** Collect the curves of a chart over all shown runs, on the union of their steps. */
export function curvesOf(chart, runs) {
  const curves = [];
  for (const { name, metrics } of runs) {
    const lead = runs.length > 1 ? `${name} · ` : "";
    const { columns } = metrics.steps;
    const { columns: held, intervals } = metrics.evaluations;
    // An evaluation has the metric KEY as "eval/KEY"; of a mixture, as "eval/ENVIRONMENT/KEY".
    const keys = new Set([
      ...Object.keys(columns),
      ...(chart.held ? Object.keys(held).map((name) => name.replace(/^eval\//, "")) : []),
    ]);
    for (const key of keys) {
      if (key === "step" || !chart.of(key) || chart.not?.test(key)) continue;
      const short = key.replace(/(^|\/)(reward|time|env|groups|alarms|memory)\//, "$1");
      // Of a mixture, "ENVIRONMENT/reward/mean" is a curve of its own.
      const environment = key.replace(/\/?(reward\/mean|pass_rate)$/, "");
      const label = lead + (chart.held ? `${environment} training`.trim() : short);
      const values = columns[key];
      if (hasValues(values) && !(key.endsWith("refilled") && values.every((value) => !value))) {
        const spread = chart.spread && columns[key.replace(/reward\/mean$/, chart.spread)];
        curves.push({ label, unit: short, steps: columns.step, values, spread });
      }
      const measured = chart.held && held[`eval/${key}`];
      if (hasValues(measured)) {
        curves.push({
          label: label.replace(/training$/, "held-out"),
          unit: short,
          held: true,
          steps: held.step,
          values: measured,
          interval: intervals?.[key],
        });
      }
    }
  }
  return curves;
}

/** Return the data of a chart as uPlot takes them, and its options; `limits` cut its axis. */
export function plotted(chart, curves, width, limits) {
  const x = [...new Set(curves.flatMap((curve) => curve.steps))].sort((a, b) => a - b);
  const place = new Map(x.map((step, position) => [step, position]));
  const data = [x];
  const series = [{ label: "step", value: (_, value) => number(value) }];
  const bands = [];
  const add = (curve, values, options) => {
    const row = new Array(x.length).fill(options.held ? undefined : null);
    curve.steps.forEach((step, at) => {
      row[place.get(step)] = drawn(chart, values[at]);
    });
    data.push(row);
    series.push({
      spanGaps: false,
      points: { show: false },
      value: (_, v) => number(v),
      ...options,
    });
    return data.length - 1;
  };
  curves.forEach((curve, index) => {
    const stroke = colour(index);
    const label = visible(curve.label).slice(0, 80);
    if (curve.held) {
      add(curve, curve.values, {
        label,
        stroke,
        width: 1.5,
        dash: [5, 4],
        spanGaps: true,
        held: true,
        points: { show: true, size: 7, fill: stroke },
      });
      if (curve.interval) {
        const high = add(curve, curve.interval.high, {
          stroke: "transparent",
          spanGaps: true,
          held: true,
          class: "aside",
        });
        const low = add(curve, curve.interval.low, {
          stroke: "transparent",
          spanGaps: true,
          held: true,
          class: "aside",
        });
        bands.push({ series: [high, low], fill: `${stroke}1f` });
      }
      return;
    }
    const { mean, deviation } = moving(curve.values, limits);
    const width_ = curve.spread ? moving(curve.spread).mean : deviation;
    const high = add(
      curve,
      mean.map((v, at) => (v === null ? null : v + (width_[at] ?? 0))),
      { stroke: "transparent", class: "aside" },
    );
    const low = add(
      curve,
      mean.map((v, at) => (v === null ? null : v - (width_[at] ?? 0))),
      { stroke: "transparent", class: "aside" },
    );
    bands.push({ series: [high, low], fill: `${stroke}26` });
    add(curve, mean, { label, stroke, width: 2 });
    add(curve, curve.values, { stroke: `${stroke}66`, width: 1, class: "aside" });
  });
  const axis = {
    stroke: style("--muted"),
    grid: { stroke: style("--line"), width: 1 },
    ticks: { stroke: style("--line"), width: 1 },
    font: "12px system-ui, sans-serif",
  };
  return {
    data,
    options: {
      width,
      height: 230,
      series,
      bands,
      legend: { live: true },
      scales: { x: { time: false }, y: { distr: chart.log ? 3 : 1, range: range(chart, limits) } },
      axes: [
        {
          ...axis,
          values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? tick : "")),
        },
        {
          ...axis,
          size: 58,
          values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick))),
        },
      ],
      cursor: { sync: { key: "steps" }, drag: { x: true, y: false }, focus: { prox: 24 } },
    },
  };
}
