// The result in words.

import { nats, percent } from "../kit/format.js";
import { ESTIMATORS } from "../kit/math.js";
import { TAIL_RANK } from "./model.js";

const CARRIES = 0.1;

export const whole = (value) => value.toLocaleString("en");

function tailSentence({ tail, k1, k3 }) {
  const from = `ranks from ${whole(TAIL_RANK)} on`;
  if (tail.q === 0) return `q never draws ${from}.`;
  const parts = [k3.variance && `${percent(tail.k3)} of k3’s variance`, k1.variance && `${percent(tail.k1)} of k1’s`];
  const kept = parts.filter(Boolean);
  const there = `q draws ${from} in ${percent(tail.q)} of its samples`;
  return kept.length ? `${there}, and from there comes ${kept.join(" and ")}.` : `${there}.`;
}

function lostSentence({ lost, tokens, k3 }) {
  if (lost === 0) return "";
  return (
    `Top-p keeps ${whole(tokens)} tokens: p(supp q) − 1 is ${nats(lost)}, ` +
    `so k3 is ${nats(-k3.bias)} nats too low on average and k1 is not.`
  );
}

function batchSentence({ n }, { carrier, running }) {
  const means = ESTIMATORS.map((name) => `${name} ${nats(running[name].at(-1))}`).join(", ");
  const drawn = `${n === 1 ? "This sample" : `This sample of ${whole(n)}`} says ${means}`;
  if (!carrier || n === 1) return `${drawn}.`;
  const share = percent(carrier.share);
  return carrier.share > CARRIES
    ? `${drawn}; one token, rank ${whole(carrier.rank)}, carries ${share} of the k3 mean.`
    : `${drawn}; no token carries more than ${share} of the k3 mean.`;
}

/** The state's result as text for everybody. */
export function reading(state, { exact, batch }) {
  if (exact.k2.mean === 0) return "q is p, so every sample of every estimator is exactly 0.";
  return [
    `KL(q‖p) is ${nats(exact.kl)} nats.`,
    tailSentence(exact),
    lostSentence(exact),
    batchSentence(state, batch),
  ]
    .filter(Boolean)
    .join(" ");
}

/** The rows of the table, as text. */
export const tableRows = ({ n }, { exact, batch }) =>
  ESTIMATORS.map((name) => ({
    name,
    cells: [
      nats(exact[name].mean),
      nats(Math.sqrt(exact[name].variance / n)),
      exact[name].variance ? percent(exact.tail[name]) : "–",
      nats(batch.running[name].at(-1)),
    ],
  }));

/** The pictures in words, for readers who do not see them. */
export function descriptions(state, { exact, batch }) {
  const largest = (values) => {
    const octave = values.indexOf(Math.max(...values));
    return `ranks ${whole(2 ** octave)} to ${whole(2 ** (octave + 1) - 1)}`;
  };
  const masses = exact.octaves.map(({ mean }) => mean.k3);
  const spread = ESTIMATORS.map((name) => `${name} at ${largest(exact.shares[name])}`).join(", ");
  return {
    law: `Probability against rank, both axes logarithmic: p almost a straight line; q has ${whole(exact.tokens)} tokens above 0.`,
    mean: `What each octave of ranks adds to KL(q‖p), ${nats(exact.kl)} in all: largest for k3 at ${largest(masses)}.`,
    variance: `Share of each octave of ranks in the variance; largest for ${spread}.`,
    running: `Averages after ${whole(state.n)} samples: ${ESTIMATORS.map((name) => `${name} ${nats(batch.running[name].at(-1))}`).join(", ")}; the exact KL is ${nats(exact.kl)}.`,
    carriers: batch.carrier
      ? `Share of each sample in the k3 mean, by rank: the largest is ${percent(batch.carrier.share)}, rank ${whole(batch.carrier.rank)}.`
      : "Every sample of k3 is 0.",
  };
}
