// The arithmetic of all figures, in one place and without a DOM. Everything is in nats.
//
// Convention of the book: x ~ q, the distribution that is sampled; log r = log p(x) - log q(x);
// k1 = -log r, k2 = (log r)^2 / 2, k3 = (r - 1) - log r; KL(q||p) = E_q[k1] = E_q[k3].
// A Gaussian pair is { mean, scale }: q = N(0, 1), p = N(mean, scale^2).
//
// tests/make_explorable_fixtures.py computes the same quantities by other means.

import FFT from "fft.js";

export * from "./tokens.js";

export const ESTIMATORS = ["k1", "k2", "k3"];

const LOG_SQRT_2PI = 0.5 * Math.log(2 * Math.PI);

export const normalPdf = (x, mean = 0, scale = 1) =>
  Math.exp(-0.5 * ((x - mean) / scale) ** 2 - LOG_SQRT_2PI) / scale;

/** P(X <= x) for X ~ N(0, 1), accurate in relative terms in the lower tail too. */
export function normalCdf(x) {
  if (Number.isNaN(x)) return NaN;
  if (x < -38.5) return 0;
  if (x > 8.5) return 1;
  if (x > 2.5) return 1 - normalCdf(-x);
  if (x < -2.5) {
    // Mills ratio as a continued fraction, from the back: 1/(t + 1/(t + 2/(t + ...))).
    let tail = -x;
    for (let k = 160; k >= 1; k--) tail = -x + k / tail;
    return normalPdf(x) / tail;
  }
  let term = x; // phi(x) * (x + x^3/3 + x^5/15 + ...), all terms of one sign
  let sum = x;
  for (let k = 3; Math.abs(term) > 1e-18 * Math.abs(sum); k += 2) {
    term *= (x * x) / k;
    sum += term;
  }
  return 0.5 + normalPdf(x) * sum;
}

/** x -> log p(x) - log q(x), a parabola; made once for many x. */
export function logRatio(pair) {
  const { b, c } = parabola(pair);
  const a = -Math.log(pair.scale) - 0.5 * (pair.mean / pair.scale) ** 2;
  return (x) => a + x * (b + c * x);
}

const parabola = ({ mean, scale }) => ({
  b: mean / (scale * scale),
  c: 0.5 * (1 - 1 / (scale * scale)),
});

export const k1 = (logR) => -logR;
export const k2 = (logR) => 0.5 * logR * logR;

const INVERSE_FACTORIALS = (() => {
  const terms = [1];
  for (let k = 1; k <= 14; k++) terms.push(terms[k - 1] / k);
  return Float64Array.from(terms);
})();

/** exp(l) - 1 - l without cancellation; infinite at both ends, never NaN for a number. */
export function k3(logR) {
  if (logR === Infinity) return Infinity;
  if (logR > 0.25 || logR < -0.25) return Math.expm1(logR) - logR;
  let series = 0; // l^2/2! + l^3/3! + ...; what follows l^14 is below one rounding
  for (let k = 14; k >= 2; k--) series = INVERSE_FACTORIALS[k] + logR * series;
  return logR * logR * series;
}

export const PER_SAMPLE = { k1, k2, k3 };

/** KL(q||p). */
export const klQP = ({ mean, scale }) =>
  Math.log(scale) + 0.5 * ((1 + mean * mean) / (scale * scale) - 1);

/** KL(p||q). */
export const klPQ = ({ mean, scale }) =>
  0.5 * (scale * scale + mean * mean - 1) - Math.log(scale);

/** chi^2(p||q) = E_q[r^2] - 1, infinite iff scale^2 >= 2. */
export function chi2PQ({ mean, scale }) {
  const rest = 2 - scale * scale;
  if (rest <= 0) return Infinity;
  return Math.expm1((mean * mean) / rest - Math.log(scale) - 0.5 * Math.log(rest));
}

/**
 * Exact { mean, variance, bias } of one sample of each estimator; bias is mean - KL(q||p).
 *
 * log r is a + b x + c x^2 with x ~ N(0, 1), whose cumulants give k1 and k2. For k3,
 * Var = Var(r) + Var(log r) - 2 Cov(r, log r), and Cov(r, log r) = KL(p||q) + KL(q||p).
 */
export function moments(pair) {
  const kl = klQP(pair);
  const { b, c } = parabola(pair);
  const c1 = -kl;
  const c2 = b * b + 2 * c * c;
  const c3 = 6 * b * b * c + 8 * c ** 3;
  const c4 = 48 * b * b * c * c + 48 * c ** 4;
  const second = c2 + c1 * c1;
  const fourth = c4 + 4 * c3 * c1 + 3 * c2 * c2 + 6 * c2 * c1 * c1 + c1 ** 4;
  const varK3 = chi2PQ(pair) + c2 - 2 * (klPQ(pair) + kl);
  return {
    k1: { mean: kl, variance: c2, bias: 0 },
    k2: { mean: 0.5 * second, variance: 0.25 * (fourth - second * second), bias: 0.5 * second - kl },
    k3: { mean: kl, variance: Math.max(varK3, 0), bias: 0 },
  };
}

// ---- the distribution of the mean of n samples ---------------------------------------------

const GRID_HALF_WIDTH = 8.5; // q has mass 2e-17 outside
const GRID_POINTS = 1 << 15;
const TILT = 18; // aliasing e^-18, rounding about e^18 * 1e-16

const grid = (() => {
  const x = new Float64Array(GRID_POINTS);
  const weight = new Float64Array(GRID_POINTS);
  const step = (2 * GRID_HALF_WIDTH) / GRID_POINTS;
  let total = 0;
  for (let i = 0; i < GRID_POINTS; i++) {
    x[i] = -GRID_HALF_WIDTH + (i + 0.5) * step;
    weight[i] = normalPdf(x[i]);
    total += weight[i];
  }
  for (let i = 0; i < GRID_POINTS; i++) weight[i] /= total;
  return { x, weight, atom: step * normalPdf(0) };
})();

const transforms = new Map();

/** The n-th power of the spectrum of `signal` (length a power of two), transformed back. */
function convolutionPower(signal, n) {
  const size = signal.length;
  if (!transforms.has(size)) transforms.set(size, new FFT(size));
  const fft = transforms.get(size);
  const spectrum = new Float64Array(2 * size);
  fft.realTransform(spectrum, signal);
  for (let i = 0; i <= size; i += 2) {
    const [re, im] = [spectrum[i], spectrum[i + 1]];
    const modulus = (re * re + im * im) ** (n / 2);
    const angle = Math.atan2(im, re) * n;
    spectrum[i] = modulus * Math.cos(angle);
    spectrum[i + 1] = modulus * Math.sin(angle);
  }
  fft.completeSpectrum(spectrum);
  const back = new Float64Array(2 * size);
  fft.inverseTransform(back, spectrum);
  const real = new Float64Array(size);
  for (let i = 0; i < size; i++) real[i] = back[2 * i];
  return real;
}

/**
 * The exact distribution of the mean of `n` samples, on a lattice.
 *
 * Each sample's mass is split between its two neighbouring lattice points, which keeps the mean;
 * the n-fold convolution is a power of the spectrum. For k2 and k3, which are never negative, the
 * lattice may end at n * `high`: nothing beyond can come back below, and an exponential tilt keeps
 * the circular convolution from wrapping (Grübel and Hermesmeier 1999).
 *
 * Returns { start, step, mass, above, error, signed }: cell j is centred at start + j * step and
 * holds mass[j]; `above` is what lies beyond the last cell; `error` is an estimate of the largest
 * error of `cdf`, which the fixtures confirm.
 */
export function samplingDistribution(estimator, pair, n, { high, cells = 8192 } = {}) {
  const value = PER_SAMPLE[estimator];
  const logR = logRatio(pair);
  const { mean, variance } = moments(pair)[estimator];
  const signed = estimator === "k1";
  if (variance === 0) {
    return { start: mean, step: 1e-12, mass: Float64Array.of(1), above: 0, error: 0, signed };
  }
  const step = signed
    ? signedWidth(pair, n, variance) / cells
    : (n * (high ?? defaultHigh(pair, n, estimator))) / cells;

  const single = new Float64Array(cells);
  const wrap = cells - 1; // a power of two less one, so & is the remainder
  let spread = 0; // the variance that splitting adds to one sample
  let [first, second] = [0, 0];
  for (let i = 0; i < GRID_POINTS; i++) {
    const weight = grid.weight[i];
    const v = value(logR(grid.x[i]));
    const at = (signed ? v - mean : v) / step;
    if (!signed && !(at < cells - 1)) continue;
    if (n === 1) {
      single[Math.round(at) & wrap] += weight; // no sum, so nothing is gained by splitting
      continue;
    }
    const left = Math.floor(at);
    const part = at - left;
    single[left & wrap] += weight * (1 - part);
    single[(left + 1) & wrap] += weight * part;
    spread += weight * part * (1 - part) * step * step;
    first += weight * v;
    second += weight * v * v;
  }

  const mass = signed ? centred(single, n) : tilted(single, n);
  let total = 0;
  let largest = 0;
  for (let j = 0; j < cells; j++) {
    mass[j] = Math.max(mass[j], 0);
    total += mass[j];
    largest = Math.max(largest, mass[j]);
  }
  const widened = n === 1 ? 0 : spread / (second - first * first);
  return {
    start: signed ? mean - ((cells / 2) * step) / n : 0,
    step: step / n,
    mass,
    above: Math.max(0, 1 - total),
    error: 0.25 * widened + 0.5 * largest + (n === 1 ? 2 * grid.atom : 0) + Math.exp(-TILT),
    signed,
  };
}

/** P(mean <= t) for each t of a list, linear within a cell. */
export function cdf({ start, step, mass, signed }, points) {
  const cumulative = new Float64Array(mass.length + 1);
  for (let j = 0; j < mass.length; j++) cumulative[j + 1] = cumulative[j] + mass[j];
  return Array.from(points, (t) => {
    let position = Math.min(Math.max((t - start) / step + 0.5, 0), mass.length);
    // Nothing of k2 or k3 lies below 0, so the first cell is the half above.
    if (!signed && position < 1) position = Math.max(0, 2 * position - 1);
    const cell = Math.min(Math.floor(position), mass.length - 1);
    return cumulative[cell] + mass[cell] * (position - cell);
  });
}

/** The probabilities of the bins between ascending `edges`. */
export function binProbabilities(distribution, edges) {
  const at = cdf(distribution, edges);
  return at.slice(1).map((upper, i) => upper - at[i]);
}

/** The smallest lattice value whose cumulative mass reaches `level`. */
export function quantile({ start, step, mass }, level) {
  let sum = 0;
  for (let j = 0; j < mass.length; j++) {
    sum += mass[j];
    if (sum >= level) return start + j * step;
  }
  return start + (mass.length - 1) * step;
}

// k1 is a quadratic in x: its tails fall off like exp(-|v| / 2|c|), and a window holds them all.
function signedWidth(pair, n, variance) {
  const { b, c } = parabola(pair);
  const x = GRID_HALF_WIDTH;
  const single = 2 * (Math.abs(b) * x + Math.abs(c) * x * x);
  return Math.max(single, 18 * Math.sqrt(n * variance) + 100 * Math.abs(c));
}

// Where rare large values make the variance huge or infinite, the lattice stays with the rest.
function defaultHigh(pair, n, estimator) {
  const exact = moments(pair);
  const { mean, variance } = exact[estimator];
  const usual = estimator === "k3" ? Math.min(variance, 6 * exact.k1.variance) : variance;
  return mean + 12 * Math.sqrt(usual / n);
}

function centred(single, n) {
  const power = n === 1 ? single : convolutionPower(single, n);
  const half = single.length / 2; // index 0 is the mean: put it in the middle
  const mass = new Float64Array(single.length);
  mass.set(power.subarray(half), 0);
  mass.set(power.subarray(0, half), half);
  return mass;
}

function tilted(single, n) {
  if (n === 1) return single;
  const rate = TILT / single.length;
  for (let j = 0; j < single.length; j++) single[j] *= Math.exp(-rate * j);
  const mass = convolutionPower(single, n);
  for (let j = 0; j < mass.length; j++) mass[j] *= Math.exp(rate * j);
  return mass;
}

// ---- runs: the same seed shows everybody the same picture ----------------------------------

/** Running means of `values`, same length. */
export function runningMeans(values) {
  let sum = 0;
  return values.map((value, i) => (sum += value) / (i + 1));
}

/** { mean, sd, below } of a list: mean, standard deviation (n - 1), share below zero. */
export function summary(values) {
  const n = values.length;
  if (n === 0) return { mean: NaN, sd: NaN, below: NaN };
  let sum = 0;
  let below = 0;
  for (const value of values) {
    sum += value;
    below += value < 0;
  }
  const mean = sum / n;
  let squares = 0;
  for (const value of values) squares += (value - mean) ** 2;
  return { mean, sd: n > 1 ? Math.sqrt(squares / (n - 1)) : NaN, below: below / n };
}

// ---- generators f of D_f = E_q[f(r)], and their control variate ------------------------------

/** f as a function of log r, and f'(1). At tv's kink f'(1) is 0, between its slopes -1/2 and 1/2. */
export const GENERATORS = {
  kl_qp: { f: k1, slope: -1 },
  kl_pq: { f: (logR) => Math.exp(logR) * logR, slope: 1 },
  chi2_pq: { f: (logR) => Math.expm1(logR) ** 2, slope: 0 },
  chi2_qp: { f: (logR) => Math.expm1(-logR), slope: -1 },
  hellinger2: { f: (logR) => Math.expm1(0.5 * logR) ** 2, slope: 0 },
  js: { f: jensenShannon, slope: 0 },
  jeffreys: { f: (logR) => Math.expm1(logR) * logR, slope: 0 },
  tv: { f: (logR) => 0.5 * Math.abs(Math.expm1(logR)), slope: 0 },
};

function jensenShannon(logR) {
  const excess = Math.expm1(logR);
  return 0.5 * ((1 + excess) * logR - (2 + excess) * Math.log1p(0.5 * excess));
}

/** The coefficient of r - 1 that makes f the gap above its tangent at r = 1. */
export const tangentLambda = (name) => -GENERATORS[name].slope || 0;

/** log r -> f(r) + lambda (r - 1), in nats. */
export function controlled(name, lambda) {
  if (name === "kl_qp" && lambda === 1) return k3;
  const { f } = GENERATORS[name];
  return (logR) => f(logR) + lambda * Math.expm1(logR);
}

const [LEGENDRE_X, LEGENDRE_WEIGHT] = gaussLegendre(12);

function gaussLegendre(order) {
  const x = new Float64Array(order);
  const weight = new Float64Array(order);
  for (let i = 0; i < order; i++) {
    let t = Math.cos((Math.PI * (i + 0.75)) / (order + 0.5));
    let derivative = 0;
    for (let step = 0; step < 8; step++) {
      let [before, value] = [1, t];
      for (let k = 2; k <= order; k++) {
        [before, value] = [value, ((2 * k - 1) * t * value - (k - 1) * before) / k];
      }
      derivative = (order * (t * value - before)) / (t * t - 1);
      t -= value / derivative;
    }
    x[i] = t;
    weight[i] = 2 / ((1 - t * t) * derivative * derivative);
  }
  return [x, weight];
}

/**
 * E_q[fn(log r)] for q = N(0, 1), p = N(mean, 1), by Gauss and Legendre on panels that meet at
 * r = 1, where a generator may have a kink. Wide enough for r^4 and r^-2, which shift the mass.
 */
export function expectation(fn, mean) {
  const middle = 0.5 * mean;
  const [low, high] = [-10 - 2 * mean, 10 + 4 * mean];
  let sum = 0;
  for (const [from, to] of [[low, middle], [middle, high]]) {
    const panels = Math.ceil((to - from) / 0.5);
    const half = (to - from) / panels / 2;
    for (let k = 0; k < panels; k++) {
      const centre = from + (2 * k + 1) * half;
      for (let i = 0; i < LEGENDRE_X.length; i++) {
        const x = centre + half * LEGENDRE_X[i];
        sum += half * LEGENDRE_WEIGHT[i] * normalPdf(x) * fn(mean * (x - middle));
      }
    }
  }
  return sum;
}

/**
 * What lambda does to one sample of f(r) + lambda (r - 1) when q = N(0, 1), p = N(mean, 1), mean > 0:
 * { divergence, tangent, best, least, curvature }. The mean is the divergence for every lambda, and
 * the variance is least + curvature (lambda - best)^2, with curvature = Var r.
 */
export function controlVariate(name, mean) {
  const { f } = GENERATORS[name];
  const divergence = expectation(f, mean);
  const curvature = Math.expm1(mean * mean);
  const covariance = expectation((logR) => (f(logR) - divergence) * Math.expm1(logR), mean);
  const best = -covariance / curvature;
  const value = controlled(name, best);
  const least = expectation((logR) => (value(logR) - divergence) ** 2, mean);
  return { divergence, tangent: tangentLambda(name), best, least, curvature };
}

/**
 * Where f(r) + lambda (r - 1) < 0: { from, to, share }, an interval of log r and its probability
 * under q. A convex function that is 0 at r = 1 is negative on one side of 1 only, up to a root.
 */
export function belowZero(name, lambda, mean) {
  const value = controlled(name, lambda);
  const tilt = GENERATORS[name].slope + lambda;
  if (Math.abs(tilt) < 1e-9) return { from: 0, to: 0, share: 0 };
  let [near, far] = [0, tilt > 0 ? -40 : 40];
  if (value(far) < 0) near = far;
  for (let i = 0; i < 80 && near !== far; i++) {
    const middle = 0.5 * (near + far);
    if (value(middle) < 0) near = middle;
    else far = middle;
  }
  const [from, to] = far < 0 ? [far, 0] : [0, far];
  const share = normalCdf(to / mean + 0.5 * mean) - normalCdf(from / mean + 0.5 * mean);
  return { from, to, share };
}
