// What the figure knows, as a function of its state and without a DOM.

import { ESTIMATORS, Vocabulary, k1, k2, runningMeans } from "../kit/math.js";

export const TAIL = 10; // the first octave of what is called the tail: ranks from 1,024 on
const NOTHING = 1e-24; // a variance of rounding errors

/** Remembers the exact sums and the batch between states that share them. */
export class Model {
  #vocabulary = new Vocabulary();
  #exact = { key: null, value: null };
  #batch = { key: null, value: null };

  /** Exact results, see Vocabulary.set, with the shares of each octave in every variance. */
  exact({ temperature, top, noise }) {
    const key = [temperature, top, noise].join();
    if (this.#exact.key !== key) {
      const value = this.#vocabulary.set({ temperature, top, noise });
      for (const name of ESTIMATORS) if (value[name].variance < NOTHING) value[name].variance = 0;
      const shares = Object.fromEntries(
        ESTIMATORS.map((name) => [
          name,
          value.octaves.map(({ variance }) => (value[name].variance ? variance[name] / value[name].variance : 0)),
        ]),
      );
      const tail = { q: sum(value.octaves.slice(TAIL).map(({ q }) => q)) };
      for (const name of ESTIMATORS) tail[name] = sum(shares[name].slice(TAIL));
      const law = rankBins(this.#vocabulary);
      this.#exact = { key, value: { ...value, shares, tail, law } };
      this.#batch.key = null;
    }
    return this.#exact.value;
  }

  /** The batch: ranks, running means, each sample's share of the k3 mean, and who carries most. */
  batch(state) {
    this.exact(state);
    const { n, seed, sample } = state;
    const key = [n, seed, sample].join();
    if (this.#batch.key !== key) {
      const { logR, k3 } = this.#vocabulary;
      const drawn = this.#vocabulary.draw({ seed, sample, n });
      const logs = Float64Array.from(drawn, (token) => logR[token]);
      const values = { k1: logs.map(k1), k2: logs.map(k2), k3: Float64Array.from(drawn, (token) => k3[token]) };
      const total = sum(values.k3);
      const shares = values.k3.map((value) => (total > 0 ? value / total : 0));
      const most = shares.indexOf(Math.max(...shares));
      this.#batch = {
        key,
        value: {
          ranks: drawn.map((token) => token + 1),
          running: Object.fromEntries(ESTIMATORS.map((name) => [name, runningMeans(values[name])])),
          shares,
          carrier: total > 0 ? { rank: drawn[most] + 1, share: shares[most], at: most + 1 } : null,
        },
      };
    }
    return this.#batch.value;
  }

  view(state) {
    return { exact: this.exact(state), batch: this.batch(state) };
  }
}

const sum = (values) => values.reduce((total, value) => total + value, 0);

/** The first rank of the tail. */
export const TAIL_RANK = 2 ** TAIL;

// Mean of p and of q over bins of ranks, and the least and the largest q in each: enough for a
// line, and for the band that noise makes of it.
function rankBins({ p, q }) {
  const bins = [];
  for (let from = 1; from <= p.length; ) {
    const to = Math.min(Math.max(from, Math.floor(from * 1.12)), p.length);
    let [sumP, sumQ, least, most] = [0, 0, Infinity, 0];
    for (let i = from - 1; i < to; i++) {
      sumP += p[i];
      sumQ += q[i];
      if (q[i] > 0 && q[i] < least) least = q[i];
      if (q[i] > most) most = q[i];
    }
    const size = to - from + 1;
    bins.push({ rank: 0.5 * (from + to), p: sumP / size, q: sumQ / size, least, most });
    from = to + 1;
  }
  return bins;
}
