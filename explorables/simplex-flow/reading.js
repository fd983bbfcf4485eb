// The result in words.

import { fixed, nats } from "../kit/format.js";
import { SYMBOLS, sumOf } from "../kit/terms.js";
import { NOTHING, TOKENS } from "./model.js";

export const PENALTY_NAMES = { k1: "k1", k2: "k2", k3: "k3", abs: "|log r|", flipped: "k3 upside down" };

export const FORMULAS = {
  k1: "k1 = −log r",
  k2: "k2 = ½(log r)²",
  k3: "k3 = r − 1 − log r",
  abs: "|log r|",
  flipped: "k3 upside down: 1/r − 1 + log r",
};

export const PLACES = { loss: "as loss", reward: "in the reward", both: "in loss and reward" };

export const placed = ({ penalty, usage }) => `${PENALTY_NAMES[penalty]} ${PLACES[usage]}`;

/** A law or a reward as text: (0.70, 0.20, 0.10). */
export const triple = (values, digits = 2) =>
  `(${values.map((value) => fixed(value, digits)).join(", ")})`;

/** What is followed, as a sum: KL(q‖p) − KL(p‖q). */
export const targetName = (terms, penalty) =>
  sumOf(
    Object.fromEntries(
      Object.entries(terms).map(([name, size]) => [name === "mean" ? `E[${PENALTY_NAMES[penalty]}]` : name, size]),
    ),
  );

const isKl = (terms) => targetName(terms) === SYMBOLS.kl_qp;
const rewarded = ({ reward }) => reward !== "none";
/** The optimum's name: p itself where there is no reward. */
export const bestName = (state) => (rewarded(state) ? "π*" : "p");
/** What is wanted. */
export const goalName = (state) => (rewarded(state) ? "−E[R] + β KL(q‖p)" : "KL(q‖p)");

const near = (u, v) => u.every((x, i) => Math.abs(x - v[i]) < 1e-3);

/** Where a flow ends: { kind, text }; kinds are still, best, corner, edge and point. */
export function ending(side, state, best) {
  const { end, dead, path } = side;
  const alive = TOKENS.filter((_, i) => !dead[i]);
  if (near(end, best) && alive.length === 3) return { kind: "best", text: bestName(state) };
  if (path.length === 1) return { kind: "still", text: "where it is" };
  if (alive.length === 1) return { kind: "corner", text: `${alive[0]} alone` };
  if (alive.length === 2) return { kind: "edge", text: `${alive.join(" and ")} alone` };
  return { kind: "point", text: triple(end) };
}

function target(state, { target: terms, value, kl }) {
  const name = placed(state);
  const exact = ["k1", "k3"].includes(state.penalty);
  const worth = exact
    ? `its mean is KL(q‖p), ${nats(kl)} nats`
    : `its mean is ${nats(value)} nats and KL(q‖p) is ${nats(kl)}`;
  if (Object.keys(terms).length === 0) {
    return `${name} has no expected gradient, though ${worth}.${rewarded(state) ? " Only the reward pulls." : ""}`;
  }
  if (isKl(terms)) return `${name} follows KL(q‖p), ${exact ? "and" : "though"} ${worth}.`;
  return `${name} follows ${targetName(terms, state.penalty)}, not KL(q‖p), though ${worth}.`;
}

/** The true step in words. */
const wanted = (state) => (rewarded(state) ? "the true step" : "−∇KL(q‖p)");

function step(state, { own, truth, angle, ratio, target: terms }) {
  const still = Math.hypot(...own.step) < NOTHING;
  const best = bestName(state);
  if (Math.hypot(...truth.step) < NOTHING) return `q is at ${best}${still ? ", and nothing pulls" : ", and it steps away"}.`;
  if (still) return "So nothing moves q on average.";
  if (isKl(terms)) return `From q it takes ${wanted(state)}.`;
  const far = `${nats(ratio)} times as far`;
  if (angle > 179.5) return `From q it steps against ${wanted(state)}, ${far}.`;
  if (angle < 0.5) return `From q it steps along ${wanted(state)}, ${far}.`;
  return `From q it steps ${angleName(angle)} off ${wanted(state)}, ${far}.`;
}

const angleName = (angle) =>
  Number.isNaN(angle) ? "–" : `${angle.toFixed(angle < 10 && angle >= 0.05 ? 1 : 0)}°`;

function end(state, { own, truth, best }) {
  const [here, there] = [own, truth].map((side) => ending(side, state, best));
  const optimum = rewarded(state) ? `π* = ${triple(best)}` : "p";
  if (here.kind === "best") return `Gradient flow from q ends at ${optimum}.`;
  const goal = there.kind === "best" ? optimum : there.text;
  const truly = `the true gradient leads to ${goal}`;
  if (here.kind === "still") return `Gradient flow leaves q where it is; ${truly}.`;
  const where = here.kind === "point" ? `at ${here.text}` : `with ${here.text}`;
  return `Gradient flow from q ends ${where}, where KL(q‖${bestName(state)}) is ${nats(own.left)}; ${truly}.`;
}

/** The state's result as text for everybody. */
export const reading = (state, view) =>
  [target(state, view), step(state, view), end(state, view)].join(" ");

/** The rows of the table, as text: what is followed beside what is wanted. */
export function tableRows(state, view) {
  const { own, truth, best } = view;
  const sides = [own, truth];
  const both = (text) => sides.map(text);
  return [
    { name: "mean of the penalty", cells: [nats(view.value), nats(view.kl)] },
    ...TOKENS.map((token, i) => ({
      name: `gradient, logit of ${token}`,
      cells: both(({ gradient }) => fixed(clean(gradient[i]), 3)),
    })),
    { name: "angle of the step at q", cells: [angleName(view.angle), "0°"] },
    { name: "flow ends at", cells: both((side) => ending(side, state, best).text) },
    { name: `KL(q‖${bestName(state)}) there`, cells: both((side) => nats(clean(side.left))) },
  ];
}

// −0.000 and 1e−26 are roundings of nothing.
const clean = (value) => (Math.abs(value) < 1e-9 ? 0 : value);

/** The pictures in words, for readers who do not see them. */
export function descriptions(state, view) {
  const { own, truth, best } = view;
  const place = `q is at ${triple(state.q)}, p at ${triple(state.p)}`;
  const goal = rewarded(state) ? `, π* at ${triple(best)}` : "";
  const lengths = own.field.map((v) => Math.hypot(...v));
  const none = lengths.every((length) => length < NOTHING);
  const towards = (side) => ending(side, state, best).text;
  return {
    own: none
      ? `The triangle of laws over three tokens, without an arrow. ${place}${goal}.`
      : `The triangle of laws over three tokens with the steps of ${placed(state)}. ${place}${goal}; the path from q ends: ${towards(own)}.`,
    truth: `The same triangle with the steps of −∇(${goalName(state)}); the path from q ends: ${towards(truth)}.`,
    distance: `KL(q‖${bestName(state)}) along both paths, from ${nats(clean(own.distance[0]))}: to ${nats(clean(own.left))} on the left path and ${nats(clean(truth.left))} on the right one.`,
  };
}
