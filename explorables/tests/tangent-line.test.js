import assert from "node:assert/strict";
import { test } from "node:test";

import {
  GENERATORS,
  belowZero,
  controlVariate,
  controlled,
  expectation,
  k3,
  tangentLambda,
} from "../kit/math.js";
import { coefficient } from "../kit/format.js";
import { spreadLabels } from "../kit/plot.js";
import { initialState } from "../kit/state.js";
import { Model, SAMPLES, lambdaRange, samples } from "../tangent-line/model.js";
import { descriptions, reading, tableRows } from "../tangent-line/reading.js";
import { schema } from "../tangent-line/schema.js";
import { close, fixture } from "./fixtures.js";

const base = initialState(schema);
const rows = fixture("control_variates");
const say = (changes) => {
  const state = { ...base, ...changes };
  return reading(state, new Model().view(state));
};

test("Gaussian quadrature knows the moments of r", () => {
  for (const mean of [0.1, 1, 2]) {
    for (const power of [-2, 1, 2, 4]) {
      const expected = Math.exp((power * (power - 1) * mean * mean) / 2);
      close(expectation((l) => Math.exp(power * l), mean), expected, { relative: 1e-12 });
    }
  }
});

test("lambda*, variances and shares below zero agree with integration in Python", () => {
  assert.deepEqual([...new Set(rows.map((row) => row.f))], Object.keys(GENERATORS));
  for (const { f, mean, divergence, best, lines } of rows) {
    const where = `${f} ${mean}`;
    const ours = controlVariate(f, mean);
    close(ours.divergence, divergence, { relative: 1e-12 }, where);
    close(ours.best, best, { relative: 1e-11 }, where);
    for (const { lambda, variance, below } of lines) {
      const got = ours.least + ours.curvature * (lambda - ours.best) ** 2;
      close(got, variance, { relative: 1e-10 }, `${where} ${lambda}`);
      const share = belowZero(f, lambda, mean).share;
      close(share, below, { relative: 1e-9, absolute: 1e-13 }, `${where} ${lambda} below 0`);
    }
  }
});

test("the tangent never lies above its curve, and another line does on one side of 1", () => {
  const logR = Array.from({ length: 401 }, (_, i) => (i - 200) / 50);
  for (const f of Object.keys(GENERATORS)) {
    const tangent = tangentLambda(f);
    const gap = controlled(f, tangent);
    // A rounding of f is all that may be missing.
    for (const l of logR) assert.ok(gap(l) >= -1e-15, `${f} at ${l}`);
    for (const off of [-0.8, 0.8]) {
      const { from, to, share } = belowZero(f, tangent + off, 1);
      assert.ok(share > 0 && (off > 0 ? to === 0 : from === 0), f);
      const value = controlled(f, tangent + off);
      for (const l of logR) {
        if (Math.min(Math.abs(l - from), Math.abs(l - to)) < 1e-6) continue;
        assert.equal(value(l) < 0, l > from && l < to, `${f} ${off} at ${l}`);
      }
    }
  }
  assert.equal(controlled("kl_qp", 1), k3);
});

test("the default state makes the chapter's point", () => {
  const { yours, exact, value, rows: strip } = new Model().view(base);
  assert.ok(yours.isTangent && !yours.isBest);
  close(value, 1.5 - Math.log(2.5), { relative: 1e-14 });
  close(exact.best, 1 / (Math.E - 1), { relative: 1e-13 });
  close(yours.variance, Math.E - 2, { relative: 1e-12 });
  close(exact.least, 1 - 1 / (Math.E - 1), { relative: 1e-12 });
  assert.equal(yours.below.share, 0);
  assert.deepEqual(strip.map(({ line }) => line.kind), ["tangent", "best"]);
  for (let seed = 0; seed < 100; seed++) {
    const [tangent, best] = new Model().view({ ...base, seed }).rows;
    const negative = ({ values }) => values.filter((v) => v < 0).length;
    assert.equal(negative(tangent), 0);
    // 80 samples, each below 0 with probability .242: fewer than 5 come once in 10^5.
    assert.ok(negative(best) >= 5, `seed ${seed}`);
  }
});

test("a named lambda follows f and the mean; a number stays within reach of what is shown", () => {
  const model = new Model();
  const at = (changes) => model.view({ ...base, ...changes });
  assert.equal(at({ f: "kl_pq" }).lambda, -1);
  close(at({ lambda: "best", mean: 2 }).lambda, 4 / Math.expm1(4), { relative: 1e-12 });
  close(at({ f: "chi2_qp", lambda: "best", mean: 0.5 }).lambda, 1, { relative: 1e-12 });
  assert.equal(at({ lambda: 1e5 }).lambda, at({}).range.max);
  for (const f of Object.keys(GENERATORS)) {
    for (const mean of [0.1, 0.75, 2]) {
      const exact = controlVariate(f, mean);
      const { min, max, step } = lambdaRange(exact);
      for (const point of [0, exact.tangent, exact.best]) assert.ok(min < point && point < max);
      const steps = (max - min) / step;
      assert.ok(steps > 50 && steps < 1500, `${f} ${mean}: ${steps} steps`);
      assert.ok(Math.abs(steps - Math.round(steps)) < 1e-6);
    }
  }
});

test("lines that coincide are named once", () => {
  const names = (changes) => new Model().view({ ...base, ...changes }).lines.map((line) => line.name);
  assert.deepEqual(names({}), ["0 · k1", "tangent · k3", "λ*"]);
  assert.deepEqual(names({ f: "js" }), ["0 = tangent", "λ*"]);
  assert.deepEqual(names({ f: "chi2_qp" }), ["0", "tangent = λ*"]);
  assert.equal(new Model().view({ ...base, f: "chi2_qp" }).rows.length, 1);
});

test("samples are those of the seed, and the same ones for every f", () => {
  const [one, two] = [samples(base), samples({ ...base, seed: 2 })];
  assert.equal(one.length, SAMPLES);
  assert.notDeepEqual(one, two);
  assert.deepEqual(samples({ ...base, f: "js" }), one);
  const halved = samples({ ...base, mean: 0.5 });
  halved.forEach((l, i) => close(l, 0.5 * (one[i] + 0.5) - 0.125, { relative: 1e-12, absolute: 1e-15 }));
});

test("the sentence says what matters in each case", () => {
  assert.match(say({}), /curve lies 0\.584 above the line.*tangent: no sample is ever below 0.*0\.718.*λ\* = 0\.582 has 42\u00a0% less variance, with 24\u00a0%.*exact KL\(q‖p\)/);
  assert.match(say({ lambda: 0 }), /0\.916 below the line.*worth −0\.916.*31\u00a0% of samples are below 0.*58\u00a0% less/);
  assert.match(say({ lambda: "best" }), /No λ has less\. The tangent, λ = 1, has 1\.72 times as much, and no sample below 0/);
  assert.match(say({ f: "chi2_qp" }), /the tangent is the best line here/);
  assert.match(say({ f: "tv" }), /support line at the kink: no sample is ever below 0/);
  assert.doesNotMatch(say({ f: "tv", lambda: "best" }), /and no sample below 0/);
  assert.match(say({ r: 1 }), /curve and line meet/);
  for (const f of Object.keys(GENERATORS)) {
    for (const lambda of ["tangent", "best", 0, -1.3]) {
      for (const mean of [0.1, 2]) assert.doesNotMatch(say({ f, lambda, mean }), /NaN|undefined| –|∞/);
    }
  }
});

test("the table marks the present line, and shows it where it has no name", () => {
  const table = (changes) => tableRows(new Model().view({ ...base, ...changes }));
  assert.deepEqual(table({}).map((row) => row.current), [false, true, false]);
  assert.deepEqual(table({})[1].cells, ["1", "0.718", "1.70", "never"]);
  const own = table({ lambda: 0.3 });
  assert.equal(own.at(-1).name, "yours");
  assert.deepEqual(own.map((row) => row.current), [false, false, false, true]);
});

test("the pictures in words", () => {
  const state = { ...base, lambda: 0 };
  const words = descriptions(state, new Model().view(state));
  assert.match(words.variance, /1\.000 at 0 · k1, 0\.718 at tangent · k3, 0\.418 at λ\*; now 1\.000/);
  assert.match(words.strip, /^λ = 0: \d+ of 80 samples are below 0\. λ = 0\.582: \d+ of 80/);
});

test("coefficients as text", () => {
  assert.deepEqual([1, -8.107, 0, 0.58197, -3033.6, 123456, 1e-7].map(coefficient), [
    "1", "−8.11", "0", "0.582", "−3030", "1.23e5", "1e−7",
  ]);
});

test("labels of different widths keep half of both apart", () => {
  const placed = spreadLabels([100, 102, 300], [80, 20, 60], 0, 310);
  assert.ok(placed[1] - placed[0] >= 50 && placed[2] <= 310 && placed[0] < placed[1]);
});
