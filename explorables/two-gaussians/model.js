// What the figure knows, as a function of its state and without a DOM.

import { tickStep } from "d3-array";

import {
  ESTIMATORS,
  PER_SAMPLE,
  binProbabilities,
  cdf,
  k3,
  klQP,
  logRatio,
  moments,
  quantile,
  runningMeans,
  samplingDistribution,
  summary,
} from "../kit/math.js";
import { Rng } from "../kit/rng.js";

const GHOSTS = 12;
const BINS = 44;

/** Remembers draws and averages between states that share them. */
export class Model {
  #samples = { seed: null, n: 0, runs: [] };
  #means = { key: null, runs: 0, values: null };
  #exact = { key: null, value: null };

  /** The samples x ~ q of one run: the first n of stream `run`, so a larger n extends them. */
  samples({ seed, n }, run) {
    if (this.#samples.seed !== seed || this.#samples.n < n) this.#samples = { seed, n, runs: [] };
    const all = (this.#samples.runs[run] ??= new Rng(seed, run).normals(this.#samples.n));
    return all.length === n ? all : all.subarray(0, n);
  }

  /** The averages of the first `state.runs` runs: { k1, k2, k3 }, each a Float64Array. */
  means(state) {
    const { mean, scale, n, seed, runs } = state;
    const key = [mean, scale, n, seed].join();
    if (this.#means.key !== key || this.#means.values.k1.length < runs) {
      const kept = this.#means.key === key ? this.#means : { runs: 0, values: null };
      const room = Math.max(runs, 256);
      const values = Object.fromEntries(
        ESTIMATORS.map((name) => {
          const array = new Float64Array(room);
          if (kept.values) array.set(kept.values[name].subarray(0, kept.runs));
          return [name, array];
        }),
      );
      this.#means = { key, runs: kept.runs, values };
    }
    const { values } = this.#means;
    const ratio = logRatio(state);
    for (; this.#means.runs < runs; this.#means.runs++) {
      const run = this.#means.runs;
      let [first, second, third] = [0, 0, 0];
      const samples = this.samples(state, run);
      for (let i = 0; i < n; i++) {
        const logR = ratio(samples[i]);
        first -= logR;
        second += 0.5 * logR * logR;
        third += k3(logR);
      }
      values.k1[run] = first / n;
      values.k2[run] = second / n;
      values.k3[run] = third / n;
    }
    return Object.fromEntries(ESTIMATORS.map((name) => [name, values[name].subarray(0, runs)]));
  }

  /** Everything exact: { kl, <estimator>: { mean, sd, bias, below, distribution } }; sd of the mean of n. */
  exact({ mean, scale, n }) {
    const key = [mean, scale, n].join();
    if (this.#exact.key === key) return this.#exact.value;
    const pair = { mean, scale };
    const one = moments(pair);
    const value = { kl: klQP(pair) };
    for (const name of ESTIMATORS) {
      const distribution = samplingDistribution(name, pair, n);
      value[name] = {
        mean: one[name].mean,
        sd: Math.sqrt(one[name].variance / n),
        bias: one[name].bias,
        below: name === "k1" ? cdf(distribution, [0])[0] : 0,
        distribution,
      };
    }
    this.#exact = { key, value };
    return value;
  }

  /**
   * What the panels draw. `upTo` < n shows a run that is still coming in: its average is not yet
   * among those of the histogram.
   */
  view(state, upTo = state.n) {
    const exact = this.exact(state);
    const finished = upTo < state.n ? state.runs - 1 : state.runs;
    const means = this.means({ ...state, runs: Math.max(finished, 0) });
    const x = state.runs > 0 ? this.samples(state, state.runs - 1).subarray(0, upTo) : new Float64Array(0);
    const logR = x.map(logRatio(state));
    const seen = Object.fromEntries(ESTIMATORS.map((name) => [name, summary(means[name])]));
    const first = Math.max(0, state.runs - 1 - GHOSTS);
    const ghosts = [];
    for (let run = first; run < state.runs - 1; run++) {
      ghosts.push(averages(this.samples(state, run).map(logRatio(state))));
    }
    return { exact, means, seen, x, values: perSample(logR), running: averages(logR), ghosts };
  }
}

const perSample = (logR) =>
  Object.fromEntries(ESTIMATORS.map((name) => [name, logR.map(PER_SAMPLE[name])]));

const averages = (logR) =>
  Object.fromEntries(ESTIMATORS.map((name) => [name, runningMeans(logR.map(PER_SAMPLE[name]))]));

/** The range of averages worth showing: nearly all of what the shown estimators do, and zero. */
export function meanRange(exact, shown) {
  const ranges = shown.map((name) => {
    const { distribution, sd } = exact[name];
    // A tail without a variance would squeeze everything else; what is beyond is counted instead.
    return [quantile(distribution, 0.001), quantile(distribution, Number.isFinite(sd) ? 0.995 : 0.98)];
  });
  const low = Math.min(0, ...ranges.map(([value]) => value));
  const reach = 3 * (quantile(exact.k1.distribution, 0.995) - exact.kl);
  const widest = Math.max(1.15 * exact.kl, ...ranges.map(([, value]) => value));
  const high = Math.min(widest, exact.kl + reach);
  const pad = high > low ? 0.04 * (high - low) : 1;
  return [low === 0 ? -pad : low, high + pad];
}

/** Edges of the histogram's bins over a range: a round width, and zero is always an edge. */
export function binEdges([low, high]) {
  const width = tickStep(low, high, BINS);
  const first = Math.floor(low / width);
  const last = Math.ceil(high / width);
  return Array.from({ length: last - first + 1 }, (_, i) => (first + i) * width);
}

/** Observed against exact shares of runs per bin, and how many runs lie beyond the last edge. */
export function histogram(values, distribution, edges) {
  const width = edges[1] - edges[0];
  const counts = new Array(edges.length - 1).fill(0);
  let beyond = 0;
  for (const value of values) {
    const bin = Math.floor((value - edges[0]) / width);
    if (bin >= counts.length) beyond++;
    else if (bin >= 0) counts[bin]++;
  }
  return {
    seen: counts.map((count) => (values.length ? count / values.length : 0)),
    exact: binProbabilities(distribution, edges),
    beyond,
  };
}

/** The exact density per bin width, at `count` steps across the edges, for a smooth line. */
export function exactCurve(distribution, edges, count = 160) {
  const [low, high] = [edges[0], edges.at(-1)];
  const width = edges[1] - edges[0];
  const points = Array.from({ length: count + 1 }, (_, i) => low + ((high - low) * i) / count);
  const stretch = width / ((high - low) / count);
  return binProbabilities(distribution, points).map((probability, i) => [
    0.5 * (points[i] + points[i + 1]),
    probability * stretch,
  ]);
}
