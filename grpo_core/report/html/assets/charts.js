// The curves of one or several runs: raw values, their moving mean, a band, held-out values.
import { address } from "./route.js";
import { button, el, heading, number, percent, visible } from "./dom.js";

const SMOOTH = 10; // steps of the moving mean
const TOTALS = /(^|\/)reward\/(mean|std|constant_share)$/;
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const endsWith = (...names) => (key) =>
  names.some((name) => key === name || (key.endsWith(`/${name}`) && !key.startsWith("eval/")));
const under = (prefix) => (key) =>
  !key.startsWith("eval/") && (key.startsWith(prefix) || key.includes(`/${prefix}`));

/** What is drawn: which metrics, and what the band around their moving mean shows. */
const CHARTS = [
  { id: "reward", title: "Reward", of: endsWith("reward/mean"), held: true, spread: "reward/std",
    note: "Band: one standard deviation of the rewards of a step." },
  { id: "pass", title: "Pass rate", of: endsWith("pass_rate"), held: true,
    not: /curriculum/ },
  { id: "parts", title: "Reward parts", of: (key) => under("reward/")(key) && !TOTALS.test(key),
    note: "Mean value of each part, without its weight." },
  { id: "audit", title: "Audits and the environment's metrics", of: under("env/"), held: true },
  { id: "kl", title: "KL to the reference, per token", of: endsWith("kl") },
  { id: "kl-sequence", title: "KL to the reference, per completion", of: endsWith("kl/sequence") },
  { id: "entropy", title: "Entropy of the sampled tokens", of: endsWith("entropy") },
  { id: "length", title: "Tokens of a completion", of: endsWith("completion_length/mean") },
  { id: "truncated", title: "Share that reached the token budget",
    of: endsWith("completion_length/clipped") },
  { id: "dead", title: "Groups: dead, distinct answers, refilled",
    of: endsWith("groups/dead", "groups/distinct", "groups/refilled"),
    note: "Dead: all scored rollouts of the group have the same reward; it teaches nothing." },
  { id: "errors", title: "Share that could not be judged", of: endsWith("verify/error_rate") },
  { id: "alarms", title: "Alarms", of: under("alarms/") },
  { id: "time", title: "Seconds of a step, by phase", of: (key) =>
      key.startsWith("time/") && key !== "time/load", log: true },
  { id: "verify-time", title: "Seconds inside each reward part", of: under("verify/seconds/"),
    log: true },
  { id: "memory", title: "Memory, MiB", of: under("memory/") },
  { id: "loss", title: "Loss", of: endsWith("loss", "policy_loss", "kl_penalty") },
  { id: "gradient", title: "Norm of the gradient", of: endsWith("grad_norm") },
  { id: "clip", title: "Share of clipped tokens", of: endsWith("clip_fraction") },
  { id: "staleness", title: "Age of the sampling weights, steps", of: under("staleness/") },
];

function moving(values) {
  const recent = [];
  const mean = [];
  const deviation = [];
  for (const value of values) {
    if (value !== null) recent.push(value);
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
function curvesOf(chart, runs) {
  const curves = [];
  for (const { name, metrics } of runs) {
    const lead = runs.length > 1 ? `${name} · ` : "";
    const { columns } = metrics.steps;
    const { columns: held, intervals } = metrics.evaluations;
    // An evaluation has the metric KEY as "eval/KEY"; of a mixture, as "eval/ENVIRONMENT/KEY".
    const keys = new Set([...Object.keys(columns),
      ...(chart.held ? Object.keys(held).map((name) => name.replace(/^eval\//, "")) : [])]);
    for (const key of keys) {
      if (key === "step" || !chart.of(key) || chart.not?.test(key)) continue;
      const short = key.replace(/(^|\/)(reward|time|env|groups|alarms|memory)\//, "$1");
      // Of a mixture, "ENVIRONMENT/reward/mean" is a curve of its own.
      const environment = key.replace(/\/?(reward\/mean|pass_rate)$/, "");
      const label = lead + (chart.held ? `${environment} training`.trim() : short);
      const values = columns[key];
      if (hasValues(values) && !(key.endsWith("refilled") && values.every((value) => !value))) {
        const spread = chart.spread && columns[key.replace(/reward\/mean$/, chart.spread)];
        curves.push({ label, steps: columns.step, values, spread });
      }
      const measured = chart.held && held[`eval/${key}`];
      if (hasValues(measured)) {
        curves.push({ label: label.replace(/training$/, "held-out"), held: true,
          steps: held.step, values: measured, interval: intervals?.[key] });
      }
    }
  }
  return curves;
}

function plotted(chart, curves, width) {
  const x = [...new Set(curves.flatMap((curve) => curve.steps))].sort((a, b) => a - b);
  const place = new Map(x.map((step, position) => [step, position]));
  const data = [x];
  const series = [{ label: "step", value: (_, value) => number(value) }];
  const bands = [];
  const add = (curve, values, options) => {
    const row = new Array(x.length).fill(options.held ? undefined : null);
    curve.steps.forEach((step, at) => { row[place.get(step)] = values[at]; });
    data.push(row);
    series.push({ spanGaps: false, points: { show: false }, value: (_, v) => number(v), ...options });
    return data.length - 1;
  };
  curves.forEach((curve, index) => {
    const stroke = colour(index);
    const label = visible(curve.label).slice(0, 80);
    if (curve.held) {
      add(curve, curve.values, { label, stroke, width: 1.5, dash: [5, 4], spanGaps: true, held: true,
        points: { show: true, size: 7, fill: stroke } });
      if (curve.interval) {
        const high = add(curve, curve.interval.high, { stroke: "transparent", spanGaps: true, held: true, class: "aside" });
        const low = add(curve, curve.interval.low, { stroke: "transparent", spanGaps: true, held: true, class: "aside" });
        bands.push({ series: [high, low], fill: `${stroke}1f` });
      }
      return;
    }
    const { mean, deviation } = moving(curve.values);
    const width_ = curve.spread ? moving(curve.spread).mean : deviation;
    const floor = chart.log ? 1e-9 : -Infinity;
    const high = add(curve, mean.map((v, at) => (v === null ? null : v + (width_[at] ?? 0))),
      { stroke: "transparent", class: "aside" });
    const low = add(curve, mean.map((v, at) => (v === null ? null : Math.max(floor, v - (width_[at] ?? 0)))),
      { stroke: "transparent", class: "aside" });
    bands.push({ series: [high, low], fill: `${stroke}26` });
    add(curve, mean, { label, stroke, width: 2 });
    add(curve, curve.values, { stroke: `${stroke}66`, width: 1, class: "aside" });
  });
  const axis = { stroke: style("--muted"), grid: { stroke: style("--line"), width: 1 },
    ticks: { stroke: style("--line"), width: 1 }, font: "12px system-ui, sans-serif" };
  return { data, options: {
    width, height: 230, series, bands, legend: { live: true },
    scales: { x: { time: false }, y: chart.log ? { distr: 3 } : {} },
    axes: [{ ...axis, values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? tick : "")) },
      { ...axis, size: 58, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick))) }],
    cursor: { sync: { key: "steps" }, drag: { x: true, y: false }, focus: { prox: 24 } },
  } };
}

function summaryOf(runs) {
  const last = (columns, key) => columns[key]?.findLast((value) => value !== null);
  const tile = (label, value) => el("div", { class: "tile" }, el("dt", {}, label), el("dd", {}, value));
  return runs.map(({ name, metrics, facts }) => {
    const { columns } = metrics.steps;
    const evaluations = metrics.evaluations.columns;
    const arrow = (key, show) => {
      const values = (evaluations[key] ?? []).filter((value) => value !== null);
      return values.length ? `${show(values[0])} → ${show(values.at(-1))}` : null;
    };
    const held = [["Held-out reward", arrow("eval/reward/mean", number)],
      ["Held-out pass rate", arrow("eval/pass_rate", percent)]];
    return el("section", { "aria-label": `Summary of ${name}` },
      runs.length > 1 && el("h2", {}, name),
      el("dl", { class: "tiles" },
        tile("Steps", `${number(last(columns, "step") ?? 0)}${facts.planned ? ` of ${number(facts.planned)}` : ""}`),
        held.filter(([, value]) => value).map(([label, value]) => tile(label, value)),
        tile("Reward in training", number(last(columns, "reward/mean"))),
        tile("KL per token", number(last(columns, "kl"))),
        tile("Tokens of a completion", number(last(columns, "completion_length/mean"))),
        tile("Alarms", el("a", { href: address("forensics", { run: facts.id }) }, number(facts.alarms.length))),
        tile("State", facts.finished ? "finished" : "not finished")));
  });
}

/** Draw all charts that have values; return how the page takes them away again. */
export async function curves(main, source, parameters) {
  const runs = await Promise.all(source.page.runs.map(async (facts) =>
    ({ run: facts.id, name: facts.name, facts, metrics: await source.metrics(facts.id) })));
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
  const typed = () => zoom(first.value === "" ? null : Number(first.value),
    last.value === "" ? null : Number(last.value));
  for (const input of [first, last]) input.addEventListener("change", typed);
  const grid = el("div", { class: "charts" });
  main.replaceChildren(heading("Curves"), ...summaryOf(runs),
    el("div", { class: "tools" },
      el("label", { for: "first-step" }, "From step"), first,
      el("label", { for: "last-step" }, "to"), last,
      button("Whole run", () => zoom(null, null)),
      el("p", { class: "hint" },
        `Thick: mean of ${SMOOTH} steps; thin: each step; band: one standard deviation of these `
        + "steps, unless a chart says otherwise. Drag over a chart to zoom into all, double-click "
        + "to see the whole run, click a step to see its groups.")), grid);
  if (!runs.some(({ metrics }) => metrics.steps.columns.step?.length)) {
    grid.append(el("p", { class: "empty" }, "No step has been logged yet."));
    return () => {};
  }
  const draw = (chart, drawn, frame) => {
    const { data, options } = plotted(chart, drawn, Math.max(240, frame.clientWidth));
    options.hooks = {
      setScale: [(plot, scale) => {
        if (scale !== "x" || zooming || !plots.includes(plot)) return;
        const { min, max } = plot.scales.x;
        const whole = min <= plot.data[0][0] && max >= plot.data[0].at(-1);
        zoom(whole ? null : min, whole ? null : max);
      }],
    };
    frame.replaceChildren();
    const plot = new uPlot(options, data, frame);
    let pressed = 0;
    plot.over.addEventListener("mousedown", (event) => { pressed = event.clientX; });
    plot.over.addEventListener("click", (event) => {
      if (Math.abs(event.clientX - pressed) > 3 || plot.cursor.idx === null) return;
      const step = plot.data[0][plot.cursor.idx];
      location.hash = address("groups", { run: runs[0].run, steps_from: step, steps_to: step });
    });
    plots.push(plot);
    typed();
  };
  // A chart is drawn when it comes into sight, so that the first ones need not wait for all.
  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      seen.unobserve(target);
      draw(...waiting.get(target), target);
    }
  }, { rootMargin: "300px" });
  const waiting = new Map();
  for (const chart of CHARTS) {
    const drawn = curvesOf(chart, runs);
    if (!drawn.length) continue;
    const frame = el("div", { class: "plot" });
    grid.append(el("figure", { class: "chart", id: `chart-${chart.id}` },
      el("figcaption", {}, chart.title, chart.note && el("small", {}, chart.note)), frame));
    waiting.set(frame, [chart, drawn]);
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
