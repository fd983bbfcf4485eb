// What the figure knows about a formula, as a function of its state and without a DOM.

import { GRID, NARROWEST, REACH, combination, some, unclamped } from "./fit.js";
import { evaluate, parse, print, withSlope } from "./formula.js";

/** The pair on which means and gradients are summed: three tokens, as in the text. */
export const TOKENS = { q: [0.7, 0.2, 0.1], p: [0.4, 0.4, 0.2] };
export const FAR = 12; // nats: how far signs and flat stretches are looked for

const SCAN = (() => {
  const side = Array.from({ length: (FAR - REACH) * 32 }, (_, i) => REACH + (i + 1) / 32);
  const inside = GRID.filter((l) => Math.abs(l) <= REACH && Number.isInteger(l * 1024));
  return Float64Array.from([...side.map((l) => -l).reverse(), ...inside, ...side]);
})();
const MIDDLE = GRID.length / 2;

/** Remembers everything that does not depend on the marked sample. */
export class Model {
  #known = { key: null, entry: null };

  entry({ formula, usage }) {
    const key = `${usage} ${formula}`;
    if (this.#known.key !== key) this.#known = { key, entry: look(parse(formula), usage) };
    return this.#known.entry;
  }

  /** Everything that is drawn and said. */
  view(state) {
    const entry = this.entry(state);
    const { value, weight } = at(entry.tree, state.usage, Float64Array.of(state.l));
    return { ...entry, sample: { l: state.l, value: value[0], weight: weight[0], kl: -state.l } };
  }
}

/** The value of a sample, and the weight on its score, at each log r. */
function at(tree, usage, l) {
  const { value, slope } = withSlope(tree, l);
  return { value, slope, weight: value.map((v, i) => weigh[usage](v, slope[i])) };
}

const weigh = { loss: (v, s) => 0 - s, reward: (v) => v, both: (v, s) => v - s };

function look(tree, usage) {
  const { value, slope, weight } = at(tree, usage, GRID);
  const wanted = { loss: { slope }, reward: { value }, both: { value, slope } }[usage];
  const parts = {
    value: fit("value", { value }, value),
    gradient: fit("weight", wanted, weight),
  };
  const constant = 3 * around(weight, 1) - 3 * around(weight, 2) + around(weight, 3);
  const atOne = Math.abs(constant) > 1e-12 * largest(weight) ? constant : 0;
  const size = largest(value);
  const below = (v) => v < -1e-10 * size; // what is less is rounding
  const seen = withSlope(tree, SCAN);
  const where = (part, test, measure) => intervals(part, test, (l) => measure(Float64Array.of(l))[0]);
  const flat = (part, through) =>
    where(part, (slope) => slope === 0, (l) => withSlope(tree, l, { through }).slope);
  const pushes = flat(seen.slope, false);
  // The value is flat whatever autograd sees of it.
  const detaches = print(tree).includes("detach");
  const flats = detaches ? flat(withSlope(tree, SCAN, { through: true }).slope, true) : pushes;
  return {
    tree,
    parts,
    atOne,
    curve: { l: GRID, value, weight: weight.map((w) => w - atOne), f: generator(weight, atOne) },
    below: where(seen.value, below, (l) => evaluate(tree, l).value),
    flats: { value: flats, gradient: usage === "reward" ? flats : pushes },
    isConvex: falls(weight, parts.gradient),
    tokens: onTokens(tree, usage),
  };
}

const largest = (part) =>
  part.reduce((most, v) => (Number.isFinite(v) ? Math.max(most, Math.abs(v)) : most), 0);

/** The mean of what is `steps` left and right of r = 1: a number too where there is a jump. */
const around = (part, steps) => 0.5 * (part[MIDDLE - steps] + part[MIDDLE + steps - 1]);

function fit(kind, wanted, y) {
  const region = unclamped(wanted);
  const nothing = { verdict: "unknown", terms: {}, free: {}, residual: NaN, region };
  for (let i = region.from; i < region.to; i++) {
    if (!Number.isFinite(y[i])) return { ...nothing, why: "undefined" };
  }
  const points = some(region);
  if (points.length < 16) return { ...nothing, why: "narrow" };
  const pick = (part) => Float64Array.from(points, (i) => part[i]);
  const found = combination(kind, pick(GRID), pick(y));
  if (region.high - region.low < NARROWEST) {
    return { ...found, verdict: "unknown", terms: {}, region, why: "narrow" };
  }
  return { ...found, region, why: found.verdict === "unknown" ? "none" : "" };
}

/** f is convex where the weight falls as log r grows. */
function falls(weight, { region: { from, to } }) {
  let most = 0;
  for (let i = from; i < to; i++) most = Math.max(most, Math.abs(weight[i]));
  const slack = 64 * Number.EPSILON * most;
  for (let i = from + 1; i < to; i++) if (!(weight[i] - weight[i - 1] <= slack)) return false;
  return true;
}

/**
 * The f with f - r f' = weight - atOne, f(1) = f'(1) = 0, on GRID: -e^l times the integral from 0 to
 * l of e^-t (weight(t) - atOne), by trapezia, with a rectangle beside 0, where the weight may jump.
 */
function generator(weight, atOne) {
  const f = new Float64Array(GRID.length);
  const inside = (i) => Math.exp(-GRID[i]) * (weight[i] - atOne);
  for (const [start, step] of [[MIDDLE, 1], [MIDDLE - 1, -1]]) {
    let sum = 0;
    for (let i = start; i >= 0 && i < GRID.length; i += step) {
      const width = i === start ? GRID[i] : GRID[i] - GRID[i - step];
      sum += width * (i === start ? inside(i) : 0.5 * (inside(i) + inside(i - step)));
      f[i] = -Math.exp(GRID[i]) * sum;
    }
  }
  return f;
}

/** Where along SCAN `test` holds, as [from, to]; an end beyond ±12 is infinite. */
function intervals(part, test, measure) {
  const found = [];
  const edge = (outside, inside) => {
    for (let i = 0; i < 40; i++) {
      const middle = 0.5 * (outside + inside);
      if (test(measure(middle))) inside = middle;
      else outside = middle;
    }
    return inside;
  };
  let from = null;
  for (let i = 0; i <= part.length; i++) {
    const holds = i < part.length && test(part[i]);
    if (holds && from === null) from = i === 0 ? -Infinity : edge(SCAN[i - 1], SCAN[i]);
    if (!holds && from !== null) {
      found.push([from, i === part.length ? Infinity : edge(SCAN[i], SCAN[i - 1])]);
      from = null;
    }
  }
  return found;
}

/** Exact sums over three tokens: the mean, the gradient by the logits, and those of KL(q||p). */
function onTokens(tree, usage) {
  const { q, p } = TOKENS;
  const l = Float64Array.from(q, (mass, i) => Math.log(p[i] / mass));
  const { value, weight } = at(tree, usage, l);
  const mean = (part) => part.reduce((sum, v, i) => sum + q[i] * v, 0);
  const gradient = (part) => Array.from(part, (c, i) => q[i] * (c - mean(part)));
  const k1 = l.map((x) => -x);
  return { mean: mean(value), gradient: gradient(weight), kl: mean(k1), klGradient: gradient(k1) };
}
