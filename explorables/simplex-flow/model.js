// What the figure knows, as a function of its state and without a DOM.
//
// Three tokens, q = softmax(z), p the reference, log r = log p − log q. A penalty h has, in the
// gradient of the minimised cost, the coefficient c = −h'(log r) as a loss, h(log r) as a reward,
// their sum as both; with a reward R the cost is −E[R] + β · penalty. Gradient flow is
// dz/dt = −q (a − E_q[a]), a = βc − R.

import { k1, k2, k3 } from "../kit/math.js";
import { flowTo } from "./flow.js";

export const TOKENS = ["A", "B", "C"];
export const USAGES = ["loss", "reward", "both"];

// Where |log r| has its kink a flow would switch without end. Rounding it there moves no point of
// the path by more than a few thousandths of a pixel.
const SOFT = 1e-4;

/** h and its first two derivatives with respect to log r. */
export const PENALTIES = {
  k1: { h: k1, slope: () => -1, bend: () => 0 },
  k2: { h: k2, slope: (l) => l, bend: () => 1 },
  k3: { h: k3, slope: Math.expm1, bend: Math.exp },
  abs: { h: Math.abs, slope: Math.sign, bend: () => 0 },
  flipped: { h: (l) => k3(-l), slope: (l) => -Math.expm1(-l), bend: (l) => Math.exp(-l) },
};

const ROUNDED_ABS = {
  h: (l) => Math.hypot(l, SOFT) - SOFT,
  slope: (l) => l / Math.hypot(l, SOFT),
  bend: (l) => SOFT ** 2 / Math.hypot(l, SOFT) ** 3,
};

/**
 * What E[c ∇log q] is the gradient of: { name: coefficient } of divergences and of E[h], written
 * `mean`; empty where it is 0. `kllab.gradients.dictionary` says the same.
 */
export const TARGETS = {
  k1: { loss: {}, reward: { kl_qp: 1 }, both: { kl_qp: 1 } },
  k2: { loss: { kl_qp: 1 }, reward: { mean: 1, kl_qp: -1 }, both: { mean: 1 } },
  k3: { loss: { kl_pq: 1 }, reward: { kl_qp: 1, kl_pq: -1 }, both: { kl_qp: 1 } },
  abs: { loss: { tv: 2 }, reward: { mean: 1, tv: -2 }, both: { mean: 1 } },
  flipped: {
    loss: { chi2_qp: 0.5 },
    reward: { chi2_qp: 0.5, kl_qp: -1 },
    both: { chi2_qp: 1, kl_qp: -1 },
  },
};

const TRUE = { penalty: "k2", usage: "loss" }; // whose gradient is that of KL(q‖p)

/** c and its derivative with respect to log r. */
export function coefficient({ h, slope, bend }, usage) {
  const [asReward, asLoss] = [usage !== "loss", usage !== "reward"];
  return {
    c: (l) => (asReward ? h(l) : 0) - (asLoss ? slope(l) : 0),
    dc: (l) => (asReward ? slope(l) : 0) - (asLoss ? bend(l) : 0),
  };
}

const rewards = ({ reward }) => (reward === "none" ? [0, 0, 0] : reward);
const price = ({ reward, beta }) => (reward === "none" ? 1 : beta);

/** The gradient of the minimised cost with respect to the logits, at a law q. */
export function gradient(state, q, { penalty, usage } = state) {
  const { c } = coefficient(PENALTIES[penalty], usage);
  const [beta, reward] = [price(state), rewards(state)];
  const a = q.map((share, i) => beta * c(Math.log(state.p[i] / share)) - reward[i]);
  return times(q, centred(q, a));
}

/** How fast q itself moves under dz/dt = −gradient: components that add up to 0. */
export const velocity = (q, slope) => times(q, centred(q, slope.map((g) => -g)));

const mean = (q, values) => q.reduce((sum, share, i) => sum + share * values[i], 0);
const centred = (q, values) => {
  const centre = mean(q, values);
  return values.map((value) => value - centre);
};
const times = (q, values) => q.map((share, i) => share * values[i]);

/** Gradient flow from q: { path: [{ t, q }], end, dead }, see flow.js. */
export function flow(state, { penalty, usage } = state) {
  const rounded = penalty === "abs" ? ROUNDED_ABS : PENALTIES[penalty];
  const logP = state.p.map(Math.log);
  return flowTo(state.q, coefficient(rounded, usage), logP, rewards(state), price(state));
}

/** π* ∝ p exp(R/β), where E[R] − β KL(q‖p) is largest; p itself without a reward. */
export function optimum(state) {
  const weights = state.p.map((share, i) => share * Math.exp(rewards(state)[i] / price(state)));
  const total = weights.reduce((sum, weight) => sum + weight);
  return weights.map((weight) => weight / total);
}

/** KL(q‖p) as the mean of k3, of which nothing cancels: a token with q = 0 adds p. */
export const kl = (q, p) =>
  q.reduce((sum, share, i) => sum + (share > 0 ? share * k3(Math.log(p[i] / share)) : p[i]), 0);

/** The angle between two vectors in degrees; NaN where one of them is 0. */
export function angle(u, v) {
  const dot = u.reduce((sum, x, i) => sum + x * v[i], 0);
  const [a, b] = [Math.hypot(...u), Math.hypot(...v)];
  if (a < NOTHING || b < NOTHING) return NaN;
  const cosine = dot / (a * b);
  // Near 0° and 180° the arc cosine loses half of its digits; the chord does not.
  const sign = cosine < 0 ? -1 : 1;
  const chord = Math.hypot(...u.map((x, i) => x / a - (sign * v[i]) / b));
  const small = (360 / Math.PI) * Math.asin(Math.min(chord / 2, 1));
  return cosine < 0 ? 180 - small : small;
}

export const NOTHING = 1e-14; // a gradient below it is a rounding

// ---- moving a law, in hundredths ---------------------------------------------------------------

/** A law whose share i is `value`; the other two keep their ratio. */
export function withShare(law, i, value) {
  const counts = law.map((share) => Math.round(100 * share));
  const [j, k] = [0, 1, 2].filter((other) => other !== i);
  const own = Math.min(Math.max(Math.round(100 * value), 1), 98);
  const rest = 100 - own;
  const first = Math.round((rest * counts[j]) / (counts[j] + counts[k]));
  counts[i] = own;
  counts[j] = Math.min(Math.max(first, 1), rest - 1);
  counts[k] = rest - counts[j];
  return counts.map((count) => count / 100);
}

/** A law some steps to the right, from A to B, and up, from both to C. */
export function stepped(law, right, up) {
  let [a, b, c] = law.map((share) => Math.round(100 * share));
  if (right > 0) [a, b] = pour(a, b, right);
  else [b, a] = pour(b, a, -right);
  if (up > 0) {
    [a, c] = pour(a, c, up);
    [b, c] = pour(b, c, up);
  } else {
    const given = Math.min(-2 * up, c - 1);
    [c, a] = pour(c, a, Math.ceil(given / 2));
    [c, b] = pour(c, b, Math.floor(given / 2));
  }
  return [a, b, c].map((count) => count / 100);
}

/** Moves what is asked for from one count to another, and leaves at least 1. */
const pour = (from, to, amount) => {
  const moved = Math.min(amount, from - 1);
  return [from - moved, to + moved];
};

// ---- what is shown -----------------------------------------------------------------------------

const ROWS = 9;
/** Where arrows stand: one in each small triangle that points up, as laws. */
export const LATTICE = Array.from({ length: ROWS }, (_, i) =>
  Array.from({ length: ROWS - i }, (_, j) => {
    const [a, b] = [(i + 1 / 3) / ROWS, (j + 1 / 3) / ROWS];
    return [a, b, 1 - a - b];
  }),
).flat();

/** Everything that is drawn and said. */
export function view(state) {
  const best = optimum(state);
  const side = (which) => {
    const slope = gradient(state, state.q, which);
    const run = flow(state, which);
    return {
      gradient: slope,
      step: velocity(state.q, slope),
      field: LATTICE.map((q) => velocity(q, gradient(state, q, which))),
      ...run,
      distance: run.path.map(({ q }) => kl(q, best)),
      left: kl(run.end, best),
    };
  };
  const [own, truth] = [side(state), side(TRUE)];
  const { h } = PENALTIES[state.penalty];
  const [length, other] = [own, truth].map(({ step }) => Math.hypot(...step));
  return {
    own,
    truth,
    best,
    kl: kl(state.q, state.p),
    value: mean(state.q, state.q.map((share, i) => h(Math.log(state.p[i] / share)))),
    target: TARGETS[state.penalty][state.usage],
    angle: angle(own.step, truth.step),
    ratio: other < NOTHING ? NaN : length / other,
  };
}

// ---- time ----------------------------------------------------------------------------------------

export const START = 0.1; // at the left end of the axis

/** The time by which both paths have all but arrived, a power of ten. */
export function lastTime({ own, truth }) {
  const start = Math.max(own.distance[0], 1e-3);
  const arrival = ({ path, distance, left }) => {
    const late = distance.findLastIndex((value) => Math.abs(value - left) > 0.01 * start);
    return late < 0 ? 0 : path[Math.min(late + 1, path.length - 1)].t;
  };
  const time = Math.max(arrival(own), arrival(truth), 10);
  return 10 ** Math.min(Math.ceil(Math.log10(time)), 5);
}

/** The time that a share of the axis stands for. */
export const timeAt = (view, progress) => START * (lastTime(view) / START) ** progress;

/** Where a flow is at a time, on the straight line between two states of its path. */
export function lawAt({ path }, time) {
  const { i, share } = between(path, time);
  const [from, to] = [path[i].q, path[Math.min(i + 1, path.length - 1)].q];
  return from.map((part, token) => part + share * (to[token] - part));
}

/** KL(q‖π*) at a time, likewise. */
export function distanceAt({ path, distance }, time) {
  const { i, share } = between(path, time);
  return distance[i] + share * (distance[Math.min(i + 1, path.length - 1)] - distance[i]);
}

function between(path, time) {
  const next = path.findIndex(({ t }) => t >= time);
  if (next < 0) return { i: path.length - 1, share: 0 };
  if (next === 0) return { i: 0, share: 0 };
  const [from, to] = [path[next - 1].t, path[next].t];
  return { i: next - 1, share: (time - from) / (to - from) };
}

/** Remembers the view of the latest state; a frame of an animation asks again. */
export class Model {
  #latest = { state: null, value: null };

  view(state) {
    if (this.#latest.state !== state) this.#latest = { state, value: view(state) };
    return this.#latest.value;
  }
}
