// The result in words.

import { coefficient, nats, percent } from "../kit/format.js";

export const TARGETS = {
  kl_qp: "KL(q‖p)",
  kl_pq: "KL(p‖q)",
  chi2_pq: "χ²(p‖q)",
  chi2_qp: "χ²(q‖p)",
  hellinger2: "squared Hellinger distance",
  js: "Jensen–Shannon divergence",
  jeffreys: "Jeffreys divergence",
  tv: "total variation",
};

export const FORMULAS = {
  kl_qp: "−log r",
  kl_pq: "r log r",
  chi2_pq: "(r − 1)²",
  chi2_qp: "1/r − 1",
  hellinger2: "(√r − 1)²",
  js: "½[r log r − (r + 1) log((r + 1)/2)]",
  jeffreys: "(r − 1) log r",
  tv: "½|r − 1|",
};

function gap({ r }, value) {
  if (r === 1) return "At r = 1 curve and line meet: this sample is worth 0.";
  const side = value < 0 ? "below" : "above";
  const worth = `At r = ${r} the curve lies ${nats(Math.abs(value))} ${side} the line`;
  return value < 0
    ? `${worth}: this sample is worth ${nats(value)} nats, and no divergence is negative.`
    : `${worth}, and that is what this sample is worth, in nats.`;
}

const share = ({ share: below }) =>
  below === 0 ? "no sample is ever below 0" : `${percent(below)} of samples are below 0`;

function slope({ lambda, isTangent, variance, below }, f) {
  const name = isTangent
    ? `λ = ${coefficient(lambda)} makes the line ${f === "tv" ? "a support line at the kink" : "the tangent"}`
    : `With λ = ${coefficient(lambda)}`;
  return `${name}${isTangent ? ":" : ","} ${share(below)}, and the variance of one sample is ${nats(variance)}.`;
}

function comparison({ yours, lines, exact }) {
  const tangent = lines.find((line) => line.isTangent);
  if (yours.isBest && yours.isTangent) return "No other λ has less: the tangent is the best line here.";
  if (yours.isBest) {
    const factor = tangent.variance / yours.variance;
    const gain = yours.below.share > 0 ? ", and no sample below 0" : "";
    return `No λ has less. The tangent, λ = ${coefficient(tangent.lambda)}, has ${nats(factor)} times as much${gain}.`;
  }
  const best = lines.find((line) => line.isBest);
  const saved = 1 - exact.least / yours.variance;
  const price = best.below.share > yours.below.share ? `, with ${percent(best.below.share)} of samples below 0` : "";
  return `λ* = ${coefficient(exact.best)} has ${percent(saved)} less variance${price}.`;
}

/** The state's result as text for everybody. */
export function reading(state, view) {
  const { divergence } = view.exact;
  const mean = `The mean is ${nats(divergence)}, the ${TARGETS[state.f].replace(/^(KL|χ)/, "exact $1")}, for every λ.`;
  return [gap(state, view.value), slope(view.yours, state.f), comparison(view), mean].join(" ");
}

/** The rows of the table, as text. */
export const tableRows = ({ lines, yours, exact }) =>
  [...lines, ...(yours.kind === "yours" ? [{ ...yours, name: "yours" }] : [])].map((line) => ({
    name: line.name,
    kind: line.kind,
    current: line.lambda === yours.lambda,
    cells: [
      coefficient(line.lambda),
      nats(line.variance),
      nats(Math.sqrt(line.variance) / exact.divergence),
      line.below.share === 0 ? "never" : percent(line.below.share),
    ],
  }));

/** The pictures in words, for readers who do not see them. */
export function descriptions(state, view) {
  const { exact, yours, rows } = view;
  const named = view.lines.map((line) => `${nats(line.variance)} at ${line.name}`).join(", ");
  return {
    strip: rows
      .map(({ line, values }) => {
        const negative = values.filter((value) => value < 0).length;
        return `λ = ${coefficient(line.lambda)}: ${negative} of ${values.length} samples are below 0.`;
      })
      .concat(`The truth is ${nats(exact.divergence)}.`)
      .join(" "),
    variance: `Variance of one sample, a parabola in λ: ${named}; now ${nats(yours.variance)}.`,
  };
}
