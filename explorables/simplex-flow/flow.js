// Gradient flow in the logits of three tokens, to where it ends.
//
// dz/dt = −q (a − E_q[a]), a = βc(log r) − R. Rates differ by many powers of ten (a rare token,
// the rounded kink of |log r|, a token that dies like 1/t), so the steps are implicit: the
// Rosenbrock pair of order 2 and 3 of Shampine and Reichelt (1997), "The MATLAB ODE suite",
// with an exact Jacobian.

const D = 1 / (2 + Math.SQRT2);
const E = 6 + Math.SQRT2;
const TOLERANCE = 1e-5; // of a step, in logits
const AT_REST = 1e-12; // of dz/dt
const GONE = 1e-290; // a token below it is dead; r = p/q is still finite
const ALIVE = 1e-2; // the largest advantage of a token that has come to rest
const MOST_STEPS = 20000;
const FINEST = 0.02; // a step is at most this and a quarter of the time, for smooth pictures

/**
 * From the law `q` until it rests: `path`, the states { t, q } on the way; `end`, the law there;
 * `dead`, the tokens that fall to 0 without end.
 */
export function flowTo(q, { c, dc }, logP, reward, beta) {
  const at = (z) => field(z, c, logP, reward, beta);
  let [t, z, step] = [0, q.map(Math.log), 0.01];
  let now = at(z);
  const path = [{ t, q: now.q }];
  for (let count = 0; count < MOST_STEPS; count++) {
    if (size(now.rate) < AT_REST || Math.min(...now.q) < GONE) break;
    const solve = solver(now, dc, beta, step * D);
    const first = solve(now.rate);
    const middle = at(add(z, first, step / 2)).rate;
    const second = add(solve(minus(middle, first)), first, 1);
    const next = add(z, second, step);
    const there = at(next);
    const third = solve(
      there.rate.map((f, i) => f - E * (second[i] - middle[i]) - 2 * (first[i] - now.rate[i])),
    );
    const error = (step / 6) * size(first.map((f, i) => f - 2 * second[i] + third[i]));
    if (error <= TOLERANCE) {
      [t, z, now] = [t + step, next, there];
      path.push({ t, q: now.q });
    }
    // A step that is not a number is too long as well.
    const change = error > 0 ? 0.8 * Math.cbrt(TOLERANCE / error) : error === 0 ? 5 : 0.1;
    step = Math.min(step * Math.min(Math.max(change, 0.1), 5), FINEST + t / 4);
  }
  const dead = now.q.map((share, i) => share < 1e-3 && now.advantage[i] < -ALIVE);
  const left = now.q.map((share, i) => (dead[i] ? 0 : share));
  const total = left.reduce((sum, share) => sum + share);
  return { path, end: left.map((share) => share / total), dead };
}

function field(z, c, logP, reward, beta) {
  const top = Math.max(...z);
  const weights = z.map((logit) => Math.exp(logit - top));
  const logTotal = top + Math.log(weights.reduce((sum, weight) => sum + weight));
  const logQ = z.map((logit) => logit - logTotal);
  const q = logQ.map(Math.exp);
  const logR = logP.map((value, i) => value - logQ[i]);
  const gain = logR.map((l, i) => reward[i] - beta * c(l));
  const average = q.reduce((sum, share, i) => sum + share * gain[i], 0);
  const advantage = gain.map((value) => value - average);
  return { q, logR, advantage, rate: q.map((share, i) => share * advantage[i]) };
}

/** Solves (1 − s J) x = b, J the Jacobian of the rate by the logits. */
function solver({ q, logR, advantage }, dc, beta, s) {
  const bend = logR.map((l) => beta * dc(l)); // d gain_i / d log q_i
  const average = q.reduce((sum, share, i) => sum + share * bend[i], 0);
  const delta = (i, j) => (i === j ? 1 : 0) - q[j];
  const inverse = invert(
    q.map((share, i) =>
      q.map((_, j) => {
        const slope = q[j] * (advantage[j] + bend[j] - average); // of E_q[gain] by z_j
        const entry = share * (delta(i, j) * (advantage[i] + bend[i]) - slope);
        return (i === j ? 1 : 0) - s * entry;
      }),
    ),
  );
  return (b) => inverse.map((row) => row.reduce((sum, value, i) => sum + value * b[i], 0));
}

function invert([[a, b, c], [d, e, f], [g, h, i]]) {
  const minors = [e * i - f * h, f * g - d * i, d * h - e * g];
  const determinant = a * minors[0] + b * minors[1] + c * minors[2];
  return [
    [minors[0], c * h - b * i, b * f - c * e],
    [minors[1], a * i - c * g, c * d - a * f],
    [minors[2], b * g - a * h, a * e - b * d],
  ].map((row) => row.map((value) => value / determinant));
}

const size = (vector) => vector.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
const add = (u, v, factor) => u.map((x, i) => x + factor * v[i]);
const minus = (u, v) => u.map((x, i) => x - v[i]);
