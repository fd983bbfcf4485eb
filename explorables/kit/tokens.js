// A vocabulary of tokens by rank: p by a power law, q made from it, and every exact sum over both.
// Arrays are made once and written over, so that a change costs a few passes and no memory.
//
// tests/make_explorable_fixtures.py computes the same numbers by other means.

import { Rng } from "./rng.js";

export const OCTAVES = 16;
export const TOKENS = 2 ** OCTAVES - 1; // octave o holds the ranks 2^o … 2^(o+1) - 1
const EXPONENT = 1.25; // p is proportional to (rank + 1)^-1.25
const BUCKETS = 4096;
const INVERSE_FACTORIALS = Float64Array.from({ length: 13 }, (_, k) => {
  let product = 1;
  for (let j = 2; j <= k; j++) product *= j;
  return 1 / product;
});

export class Vocabulary {
  #cumulative = new Float64Array(TOKENS);
  #cumulated = false;
  #depth = new Float64Array(TOKENS); // log of the largest weight less log of this one

  logP = new Float64Array(TOKENS);
  p = new Float64Array(TOKENS);
  q = new Float64Array(TOKENS);
  logR = new Float64Array(TOKENS); // where q > 0
  k3 = new Float64Array(TOKENS); // where q > 0
  noise = fixedNoise();

  constructor() {
    let total = 0;
    for (let i = TOKENS - 1; i >= 0; i--) total += this.p[i] = (i + 2) ** -EXPONENT;
    const logTotal = Math.log(total);
    for (let i = 0; i < TOKENS; i++) {
      this.p[i] /= total;
      this.logP[i] = -EXPONENT * Math.log(i + 2) - logTotal;
    }
  }

  /**
   * Makes q proportional to p^(1/temperature) e^(noise z), z a fixed draw of normals, and of that
   * the smallest head with at least the mass `top`, renormalised. Returns the exact results:
   * { kl, lost, tokens, k1, k2, k3, octaves }, where `lost` is p(supp q) - 1, `tokens` how many q
   * keeps, and each estimator has { mean, variance, bias }.
   */
  set({ temperature, noise, top }) {
    this.#cumulated = false;
    const { logP, p, q, logR, k3, noise: z } = this;
    const depth = this.#depth;
    let highest = -Infinity;
    for (let i = 0; i < TOKENS; i++) {
      depth[i] = logP[i] / temperature + noise * z[i];
      if (depth[i] > highest) highest = depth[i];
    }
    let total = 0;
    for (let i = TOKENS - 1; i >= 0; i--) {
      depth[i] = highest - depth[i];
      total += q[i] = Math.exp(-depth[i]);
    }
    const least = top < 1 ? headThreshold(q, depth, top * total) : 0;
    let [kept, pKept, tokens] = [0, 0, 0];
    for (let i = TOKENS - 1; i >= 0; i--) {
      if (q[i] < least) {
        q[i] = 0;
        continue;
      }
      kept += q[i];
      pKept += p[i];
      tokens++;
    }
    const logKept = Math.log(kept);
    const same = temperature === 1 && noise === 0 && tokens === TOKENS;
    let [first, second, third] = [0, 0, 0];
    for (let i = TOKENS - 1; i >= 0; i--) {
      if (q[i] === 0) continue;
      q[i] /= kept;
      const l = same ? 0 : logP[i] + depth[i] + logKept;
      logR[i] = l;
      k3[i] = expm1Minus(l, p[i] / q[i]);
      first -= q[i] * l;
      second += 0.5 * q[i] * l * l;
      third += q[i] * k3[i];
    }
    // p and q add up to 1 to rounding only; over the whole vocabulary k3's mean is the better KL.
    const lost = tokens === TOKENS ? 0 : pKept - 1;
    const kl = tokens === TOKENS ? third : first;
    const means = { k1: kl, k2: second, k3: third };
    const octaves = this.#octaves(means);
    const sums = (name) => octaves.reduce((sum, octave) => sum + octave.variance[name], 0);
    const estimator = (name) => ({ mean: means[name], variance: sums(name), bias: means[name] - kl });
    return { kl, lost, tokens, k1: estimator("k1"), k2: estimator("k2"), k3: estimator("k3"), octaves };
  }

  /** What each octave of ranks adds: to p, to q, to the means of k1 and k3, to each variance. */
  #octaves(means) {
    const { p, q, logR, k3 } = this;
    return Array.from({ length: OCTAVES }, (_, octave) => {
      const from = 2 ** octave;
      let [massP, massQ, m1, m3, v1, v2, v3] = [0, 0, 0, 0, 0, 0, 0];
      for (let i = from - 1; i < 2 * from - 1; i++) {
        massP += p[i];
        if (q[i] === 0) continue;
        massQ += q[i];
        const l = logR[i];
        m1 -= q[i] * l;
        m3 += q[i] * k3[i];
        v1 += q[i] * (l + means.k1) ** 2;
        v2 += q[i] * (0.5 * l * l - means.k2) ** 2;
        v3 += q[i] * (k3[i] - means.k3) ** 2;
      }
      return { from, p: massP, q: massQ, mean: { k1: m1, k3: m3 }, variance: { k1: v1, k2: v2, k3: v3 } };
    });
  }

  /** Indices (rank - 1) of n tokens drawn from q: stream `sample` of `seed`. */
  draw({ seed, sample, n }) {
    const cumulative = this.#cumulative;
    if (!this.#cumulated) {
      let sum = 0;
      for (let i = 0; i < TOKENS; i++) cumulative[i] = sum += this.q[i];
      this.#cumulated = true;
    }
    const rng = new Rng(seed, sample);
    return Int32Array.from({ length: n }, () => firstAbove(cumulative, rng.uniform() * cumulative[TOKENS - 1]));
  }
}

/** The first index whose entry of an ascending array is above `value`. */
function firstAbove(ascending, value) {
  let [low, high] = [0, ascending.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ascending[middle] > value) high = middle;
    else low = middle + 1;
  }
  return low;
}

// r - 1 - l with the ratio at hand; its series where that cancels, to l^12 / 12!.
function expm1Minus(l, r) {
  if (l > 0.2 || l < -0.2) return r - 1 - l;
  let series = 0;
  for (let k = 12; k >= 2; k--) series = INVERSE_FACTORIALS[k] + l * series;
  return l * l * series;
}

/**
 * The smallest weight of the smallest head that holds `mass`; `depth` is -log of each weight. One
 * pass puts the weights into buckets by depth, and only the bucket where the mass is reached is
 * sorted.
 */
export function headThreshold(weights, depth, mass) {
  const sums = new Float64Array(BUCKETS);
  const bucket = (i) => Math.min(Math.floor(64 * depth[i]), BUCKETS - 1);
  for (let i = 0; i < weights.length; i++) sums[bucket(i)] += weights[i];
  let reached = 0;
  let last = 0;
  while (last < BUCKETS - 1 && reached + sums[last] < mass) reached += sums[last++];
  const inside = weights.filter((_, i) => bucket(i) === last).sort();
  for (let i = inside.length - 1; i >= 0; i--) {
    reached += inside[i];
    if (reached >= mass) return inside[i];
  }
  return inside[0] ?? 0;
}

// Box and Muller on a sequence that fills the square evenly (Roberts 2018), so that every language
// gets the same normals from one line.
function fixedNoise() {
  const plastic = 1.324717957244746;
  const [a, b] = [1 / plastic, 1 / plastic ** 2];
  return Float64Array.from({ length: TOKENS }, (_, i) => {
    const [u, v] = [((i + 1) * a) % 1, ((i + 1) * b) % 1];
    return Math.sqrt(-2 * Math.log(u)) * Math.cos(2 * Math.PI * v);
  });
}
