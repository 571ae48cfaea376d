// The vertical axes of charts: which values share one, how far it reaches, and what lies beyond it.
import { number } from "./dom.js";

export const SHORTEST = 1e-3; // seconds: what took less is drawn there, as a decade below says nothing
const MANY = 20; // values from which a few may be called outliers
const RARE = 0.02; // share of the values that may be outliers
const FAR = 5; // how much longer an axis has to become by them

const real = (curves) =>
  curves.flatMap(({ values }) => values.filter((value) => Number.isFinite(value)));
const isShare = (curve) => real([curve]).every((value) => value >= 0 && value <= 1);

/** Divide the curves of a chart without one unit into charts that have one: shares, and each other. */
export function oneUnitEach(chart, curves) {
  if (!chart.mixed) return [[chart, curves]];
  const shares = curves.filter(isShare);
  const others = curves.filter((curve) => !isShare(curve));
  const parts = [...new Set(others.map((curve) => curve.unit))].map((unit) => [
    { ...chart, id: `${chart.id}-${unit.replace(/\W+/g, "-")}`, title: `${chart.title}: ${unit}` },
    others.filter((curve) => curve.unit === unit),
  ]);
  return shares.length ? [[{ ...chart, share: true }, shares], ...parts] : parts;
}

/** Return the bounds within which all but a few far values lie, and what lies beyond; else null. */
export function withoutOutliers(chart, curves) {
  const sorted = real(curves).sort((a, b) => a - b);
  const few = Math.max(1, Math.floor(RARE * sorted.length));
  if (chart.log || chart.share || sorted.length < MANY) return null;
  const [lowest, highest] = [sorted[0], sorted.at(-1)];
  // Those at one end, or at the other, or at both.
  const ways = [
    [sorted[0], sorted.at(-1 - few)],
    [sorted[few], sorted.at(-1)],
    [sorted[few], sorted.at(-1 - few)],
  ];
  const bounds = ways.find(([low, high]) => high > low && highest - lowest > FAR * (high - low));
  if (!bounds) return null;
  const [low, high] = bounds;
  const beyond = curves.flatMap(({ steps, values }) =>
    steps
      .map((step, at) => [step, values[at]])
      .filter(([, value]) => Number.isFinite(value) && (value < low || value > high)),
  );
  return { low, high, beyond };
}

/** Say which values lie beyond an axis; "" if none do. */
export function beyondText(limits) {
  if (!limits) return "";
  const named = limits.beyond
    .slice(0, 3)
    .map(([step, value]) => `${number(value)} at step ${step}`);
  const more = limits.beyond.length - named.length;
  return `Beyond the axis, and not in the mean: ${named.join(", ")}${more > 0 ? ` and ${more} more` : ""}.`;
}

/** Return the function with which uPlot finds the ends of a chart's vertical axis. */
export function range(chart, limits) {
  return (_, lowest, highest) => {
    if (lowest === null || highest === null) return [0, 1];
    if (chart.log) return uPlot.rangeLog(SHORTEST, Math.max(highest, 10 * SHORTEST), 10, true);
    let low = Math.max(lowest, limits?.low ?? -Infinity);
    let high = Math.min(highest, limits?.high ?? Infinity);
    if (chart.share) return [0, high <= 0 ? 1 : Math.min(1, 1.1 * high)];
    if (low >= high) {
      // A constant: the axis has it in the middle, or begins with it if it is zero.
      if (high === 0) return [0, 1];
      low -= Math.abs(low) / 2;
      high += Math.abs(high) / 2;
    }
    return uPlot.rangeNum(low, high, 0.1, true);
  };
}

/** Return a value as it is drawn on a chart's axis. */
export function drawn(chart, value) {
  if (value === null || value === undefined) return value;
  if (chart.log) return Math.max(value, SHORTEST);
  return chart.share ? Math.min(1, Math.max(0, value)) : value;
}
