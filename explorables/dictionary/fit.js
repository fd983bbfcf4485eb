// Which combination of divergences a function of l = log r is: the browser's twin of what
// `kllab.gradients.dictionary` does.  A value is one up to c (r - 1), a weight on the score up to a
// constant.  One divergence may be any; two or three come from COMBINED.

import { GENERATORS } from "../kit/math.js";

export const COMBINED = ["kl_qp", "kl_pq", "chi2_qp", "chi2_pq", "tv", "hellinger2"];
export const REACH = 3; // nats
export const NARROWEST = 2;
const STEP = 2 ** -12;
const POINTS = 4096;
const TOLERANCE = 1e-8; // relative residual
const ROUNDING = 1e-12;

/** f - r f' - its value at r = 1, of every divergence. */
const WEIGHTS = {
  kl_qp: (l) => -l,
  kl_pq: (l) => -Math.expm1(l),
  chi2_pq: (l) => -Math.expm1(2 * l),
  chi2_qp: (l) => 2 * Math.expm1(-l),
  hellinger2: (l) => -Math.expm1(0.5 * l),
  js: (l) => -0.5 * Math.log1p(0.5 * Math.expm1(l)),
  jeffreys: (l) => -l - Math.expm1(l),
  tv: (l) => -0.5 * Math.sign(l),
};

/** What each kind is a combination of, and what may be added freely. */
const COLUMNS = {
  value: {
    columns: Object.fromEntries(
      Object.entries(GENERATORS).map(([name, { f, slope }]) => [name, (l) => f(l) - slope * Math.expm1(l)]),
    ),
    free: { "r - 1": Math.expm1, constant: () => 1 },
  },
  weight: { columns: WEIGHTS, free: { constant: () => 1 } },
};

// ---- where it is looked at ----------------------------------------------------------------------

/** Multiples of 2^-12 to one beyond ±3, without 0; the one beyond tells a clamp at ±3 from none. */
export const GRID = (() => {
  const side = REACH / STEP + 1;
  return Float64Array.from({ length: 2 * side }, (_, i) => (i < side ? i - side : i - side + 1) * STEP);
})();
const HALF = GRID.length / 2;

/** Index and direction of a walk over the grid from one end to 0. */
const sides = [
  { sign: 1, at: (k) => GRID.length - 1 - k },
  { sign: -1, at: (k) => k },
];

/** How many points from the end inwards hold `test`; none if all do, up to 0. */
function outerRun(at, test) {
  let run = 0;
  while (run < HALF && test(at(run))) run++;
  return run === HALF ? 0 : run;
}

/**
 * { from, to, low, high }: the part of GRID around 0 (indices, `to` excluded) where nothing is
 * clamped, and its ends.  `parts` are { value } or { slope } or both.  A clamp is a value that does
 * not change from somewhere on to the end, or a slope that is 0; a flat stretch that reaches 0 is the
 * function itself, and so are two flat values side by side.  What is not finite is left out too.
 */
export function unclamped(parts) {
  const ends = { 1: 1, "-1": 1 }; // the point beyond ±3 is never kept
  const bounds = { 1: REACH, "-1": REACH };
  for (const [kind, part] of Object.entries(parts)) {
    let flats = sides.map(({ at }) => {
      const end = kind === "slope" ? 0 : part[at(0)];
      return outerRun(at, (i) => part[i] === end);
    });
    if (kind === "value" && isStep(part, flats)) flats = [0, 0];
    sides.forEach(({ sign, at }, s) => {
      const lost = outerRun(at, (i) => !Number.isFinite(part[i]));
      const out = Math.max(flats[s], lost);
      if (out === 0) return;
      ends[sign] = Math.max(ends[sign], out);
      // At a clamp's bound the value is flat already, the slope is not yet 0.
      const more = kind === "value" ? STEP : 0;
      bounds[sign] = Math.min(bounds[sign], Math.abs(GRID[at(out)]) + more);
    });
  }
  return { from: ends[-1], to: GRID.length - ends[1], low: -bounds[-1], high: bounds[1] };
}

/** Whether what is left between flat ends holds less than three values. */
function isStep(part, [above, below]) {
  const left = new Set();
  for (let i = below; i < GRID.length - above && left.size < 3; i++) left.add(part[i]);
  return left.size < 3;
}

/** At most 4096 of the indices from `from` to `to`, evenly. */
export function some({ from, to }) {
  const count = Math.min(to - from, POINTS);
  const stride = count > 1 ? (to - from - 1) / (count - 1) : 0;
  return Int32Array.from({ length: count }, (_, k) => from + Math.floor(k * stride));
}

// ---- least squares ------------------------------------------------------------------------------

const dot = (a, b) => {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
};
const norm = (a) => Math.sqrt(dot(a, a));

/** `vector` less its part along `basis` (orthonormal); twice, so that rounding is no part of it. */
function without(basis, vector) {
  const rest = Float64Array.from(vector);
  for (let turn = 0; turn < 2; turn++) {
    for (const direction of basis) {
      const along = dot(direction, rest);
      for (let i = 0; i < rest.length; i++) rest[i] -= along * direction[i];
    }
  }
  return rest;
}

const scaled = (vector, by) => Float64Array.from(vector, (value) => by * value);

/** Orthonormal directions that span the vectors; one that adds nothing is left out. */
function orthonormal(vectors) {
  const basis = [];
  for (const vector of vectors) {
    const rest = without(basis, vector);
    const size = norm(rest);
    if (size > 1e-12 * norm(vector)) basis.push(scaled(rest, 1 / size));
  }
  return basis;
}

/** The coefficients of independent `vectors` closest to `target`. */
function leastSquares(vectors, target) {
  const basis = orthonormal(vectors);
  const coefficients = basis.map((direction) => dot(direction, target));
  for (let k = vectors.length - 1; k >= 0; k--) {
    for (let j = k + 1; j < vectors.length; j++) coefficients[k] -= dot(basis[k], vectors[j]) * coefficients[j];
    coefficients[k] /= dot(basis[k], vectors[k]);
  }
  return coefficients;
}

const SUBSETS = (() => {
  const names = Object.keys(GENERATORS);
  const all = names.map((name) => [name]);
  COMBINED.forEach((a, i) =>
    COMBINED.slice(i + 1).forEach((b, j) => {
      all.push([a, b]);
      for (const c of COMBINED.slice(i + j + 2)) all.push([a, b, c]);
    }),
  );
  return all;
})();

const prepared = new Map(); // the columns on the last interval of each kind

/** Columns at these points, less their free part and of length 1, in coordinates of their own span. */
function prepare(kind, l) {
  const last = prepared.get(kind);
  if (last && last.l.length === l.length && last.l[0] === l[0] && last.l.at(-1) === l.at(-1)) return last;
  const at = (functions) => Object.entries(functions).map(([name, fn]) => [name, l.map(fn)]);
  const columns = at(COLUMNS[kind].columns);
  const free = at(COLUMNS[kind].free);
  const freeBasis = orthonormal(free.map(([, column]) => column));
  const kept = [];
  for (const [name, column] of columns) {
    const rest = without(freeBasis, column);
    const size = norm(rest);
    if (size > 1e-9 * norm(column)) kept.push([name, scaled(rest, 1 / size)]); // else it is free already
  }
  const span = orthonormal(kept.map(([, column]) => column));
  const reduced = new Map(kept.map(([name, column]) => [name, span.map((direction) => dot(direction, column))]));
  const found = { l, columns: new Map(columns), free: new Map(free), freeBasis, span, reduced };
  prepared.set(kind, found);
  return found;
}

/**
 * { verdict, terms, free, residual } of `y` at the points `l`: "fits" with the fewest divergences, at
 * most three; "zero" if the free part is all there is; else "unknown".
 */
export function combination(kind, l, y) {
  const { columns, free, freeBasis, span, reduced } = prepare(kind, l);
  const rest = without(freeBasis, y);
  const size = norm(rest);
  const solve = (names) => {
    const all = [...names.map((name) => columns.get(name)), ...free.values()];
    const solution = leastSquares(all, y).map((value) => Number(value.toPrecision(12)));
    return [
      Object.fromEntries(names.map((name, i) => [name, solution[i]])),
      Object.fromEntries([...free.keys()].map((name, i) => [name, solution[names.length + i]])),
    ];
  };
  if (size <= ROUNDING * norm(y)) return { verdict: "zero", terms: {}, free: solve([])[1], residual: 0 };

  const outside = norm(without(span, rest)) / size;
  const target = span.map((direction) => dot(direction, rest) / size);
  const best = [];
  for (const names of SUBSETS) {
    if (!names.every((name) => reduced.has(name))) continue;
    const vectors = names.map((name) => reduced.get(name));
    if (orthonormal(vectors).length < vectors.length) continue;
    const shares = leastSquares(vectors, target);
    const off = target.map((value, i) => value - vectors.reduce((sum, v, k) => sum + shares[k] * v[i], 0));
    const residual = Math.hypot(norm(off), outside);
    const { length } = names;
    if (!(residual >= best[length - 1]?.residual)) best[length - 1] = { names, shares, residual };
  }
  let chosen = best.find((candidate) => candidate.residual <= TOLERANCE);
  if (!chosen) {
    const residual = Math.min(...best.map((candidate) => candidate.residual));
    return { verdict: "unknown", terms: {}, free: solve([])[1], residual };
  }
  // A sum that leaves ten times less is the truth, unless it does so with invisible terms.
  for (const other of best) {
    const closer = Math.max(other.residual, ROUNDING) < chosen.residual / 10;
    if (closer && Math.min(...other.shares.map(Math.abs)) > TOLERANCE) chosen = other;
  }
  const [terms, freely] = solve(chosen.names);
  return { verdict: "fits", terms, free: freely, residual: chosen.residual };
}
