// What the figure knows, as a function of its state and without a DOM.

import { quantile } from "d3-array";

import { belowZero, controlVariate, controlled } from "../kit/math.js";
import { Rng } from "../kit/rng.js";

export const SAMPLES = 80;

/** Remembers the integrals between states that share f and the mean. */
export class Model {
  #exact = { key: null, value: null };

  exact({ f, mean }) {
    const key = `${f} ${mean}`;
    if (this.#exact.key !== key) this.#exact = { key, value: controlVariate(f, mean) };
    return this.#exact.value;
  }

  /** Everything that is drawn and said. */
  view(state) {
    const { f, mean, r } = state;
    const exact = this.exact(state);
    const range = lambdaRange(exact);
    const lambda = resolve(state.lambda, exact, range);
    const lines = namedLines(f, exact).map((line) => describe(line, state, exact));
    const named = lines.find((line) => same(line.lambda, lambda, exact));
    const yours = describe(named ?? { kind: "yours", name: "", lambda }, state, exact);
    const other = lines.find((line) => (yours.isBest ? line.isTangent : line.isBest));
    const logR = samples(state);
    const rows = [yours, ...(other === named ? [] : [other])].map((line) => ({
      line,
      values: logR.map(controlled(f, line.lambda)),
    }));
    const value = controlled(f, lambda)(Math.log(r));
    return { exact, range, lambda, lines, yours, rows, logR, value, window: valueWindow(rows, exact) };
  }
}

/** log r of the seeded samples x ~ q. */
export const samples = ({ mean, seed }) =>
  new Rng(seed).normals(SAMPLES).map((x) => mean * (x - 0.5 * mean));

/** { min, max, step } of lambda: 0, the tangent and lambda* with room around them. */
export function lambdaRange({ tangent, best }) {
  const points = [0, tangent, best];
  const [low, high] = [Math.min(...points), Math.max(...points)];
  const pad = Math.max(0.4 * (high - low), 0.25);
  const step = 10 ** Math.floor(Math.log10((high - low + 2 * pad) / 100));
  const snap = (value, round) => Number((round(value / step) * step).toPrecision(6));
  return { min: snap(low - pad, Math.floor), max: snap(high + pad, Math.ceil), step };
}

function resolve(lambda, exact, { min, max }) {
  if (typeof lambda === "string") return exact[lambda];
  return Math.min(Math.max(lambda, min), max);
}

const same = (a, b, { best, tangent }) =>
  Math.abs(a - b) < 1e-9 * Math.max(1, Math.abs(best), Math.abs(tangent));

// Lines that have a name; those that coincide share one, as 0 and the tangent do where f'(1) = 0.
function namedLines(f, exact) {
  const isKl = f === "kl_qp";
  const lines = [];
  for (const [kind, name, lambda] of [
    ["zero", isKl ? "0 · k1" : "0", 0],
    ["tangent", isKl ? "tangent · k3" : "tangent", exact.tangent],
    ["best", "λ*", exact.best],
  ]) {
    const twin = lines.find((line) => same(line.lambda, lambda, exact));
    if (twin) Object.assign(twin, { name: `${twin.name} = ${name}`, kind: twin.kind === "zero" ? kind : twin.kind });
    else lines.push({ kind, name, lambda });
  }
  return lines;
}

function describe(line, { f, mean }, exact) {
  const { lambda } = line;
  return {
    ...line,
    variance: exact.least + exact.curvature * (lambda - exact.best) ** 2,
    below: belowZero(f, lambda, mean),
    isBest: same(lambda, exact.best, exact),
    isTangent: same(lambda, exact.tangent, exact),
  };
}

// The range of sample values worth showing; what lies beyond is drawn on the edge.
function valueWindow(rows, { divergence }) {
  const all = rows.map(({ values }) => Float64Array.from(values).sort());
  const high = Math.max(1.5 * divergence, ...all.map((values) => quantile(values, 0.95)));
  const low = Math.min(0, ...all.map((values) => quantile(values, 0.02)));
  const pad = 0.06 * (high - Math.max(low, -1.5 * high));
  return [Math.max(low, -1.5 * high) - pad, high + pad];
}
