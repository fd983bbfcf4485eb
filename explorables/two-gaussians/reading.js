// The result in words.

import { bare, nats, percent, signedPercent } from "../kit/format.js";

function below(share) {
  if (share < 0.0005) return "and almost never falls below 0";
  return `but falls below 0 in ${percent(share)} of runs`;
}

function spreadAgainst(sd, other) {
  const ratio = sd / other;
  return ratio < 1 ? `${percent(ratio)} of k1’s spread` : `${nats(ratio)} times k1’s spread`;
}

function verdict(name, exact) {
  const { bias, sd } = exact[name];
  if (name === "k1") return `k1 is right on average ${below(exact.k1.below)}`;
  if (name === "k2") {
    const off = Math.abs(bias / exact.kl);
    if (off > 2) return `k2 is ${nats(1 + off)} times the truth on average`;
    if (off < 0.0005) return "k2 is right on average";
    return `k2 is ${percent(off)} too ${bias > 0 ? "high" : "low"} on average`;
  }
  if (Number.isFinite(sd)) {
    return `k3 is right on average, never below 0, with ${spreadAgainst(sd, exact.k1.sd)}`;
  }
  return (
    "k3 is right on average and never below 0, but its variance is infinite because scale² is at" +
    " least 2: most runs come out too low and a rare one far too high"
  );
}

/** The estimator with the smallest root-mean-square error among those shown. */
export function smallestError(exact, show) {
  const error = (name) => Math.hypot(exact[name].bias, exact[name].sd);
  return show.reduce((best, name) => (error(name) < error(best) ? name : best));
}

/** The state's result as text for everybody, in the order of the estimators shown. */
export function reading({ n, show }, exact) {
  const { kl } = exact;
  const truth = `KL(q‖p) is ${nats(kl)} nats.`;
  if (kl === 0) return `${truth} p is q, so every sample of every estimator is exactly 0.`;
  const samples = n === 1 ? "With one sample" : `Averaged over ${n} samples`;
  const parts = show.map((name) => verdict(name, exact));
  const best =
    show.length > 1 ? ` The smallest root-mean-square error here is ${smallestError(exact, show)}’s.` : "";
  return `${truth} ${samples}, ${parts.join("; ")}.${best}`;
}

/** The rows of the table, as text: exact beside seen. */
export function tableRows(exact, seen, names) {
  const { kl } = exact;
  const relative = (value, format) => (kl === 0 ? "–" : bare(format(value / kl)));
  return names.map((name) => ({
    name,
    bias: [
      relative(exact[name].bias, signedPercent),
      relative(seen[name].mean - kl, signedPercent),
    ],
    sd: [relative(exact[name].sd, percent), relative(seen[name].sd, percent)],
    below: [name === "k1" ? percent(exact.k1.below) : "never", percent(seen[name].below)],
  }));
}
