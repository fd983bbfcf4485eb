import assert from "node:assert/strict";
import { test } from "node:test";

import {
  ESTIMATORS,
  PER_SAMPLE,
  binProbabilities,
  cdf,
  chi2PQ,
  k1,
  k3,
  klPQ,
  klQP,
  logRatio,
  moments,
  normalCdf,
  normalPdf,
  quantile,
  runningMeans,
  samplingDistribution,
  summary,
} from "../kit/math.js";
import { close, fixture } from "./fixtures.js";

const arithmetic = fixture("arithmetic");

test("normal cdf, in relative terms far out", () => {
  for (const { x, cdf: expected } of arithmetic.normal_cdf) {
    close(normalCdf(x), expected, { relative: 2e-14 }, `Φ(${x})`);
  }
  assert.equal(normalCdf(-Infinity), 0);
  assert.equal(normalCdf(Infinity), 1);
  assert.ok(Number.isNaN(normalCdf(NaN)));
});

test("k1, k2, k3 of one sample, k3 without cancellation", () => {
  for (const row of arithmetic.per_sample) {
    for (const name of ESTIMATORS) {
      close(PER_SAMPLE[name](row.log_r), row[name], { relative: 1e-14 }, `${name}(${row.log_r})`);
    }
  }
  // The plain formula is what the bound above must reject.
  assert.ok(Math.abs(Math.expm1(-1e-9) + 1e-9 - 5e-19) > 1e-14 * 5e-19);
});

test("infinite log ratios give infinite values, never NaN", () => {
  assert.equal(k3(Infinity), Infinity);
  assert.equal(k3(-Infinity), Infinity);
  assert.equal(k1(-Infinity), Infinity);
});

test("log r is the difference of two log densities", () => {
  const pair = { mean: -0.7, scale: 1.3 };
  for (const x of [-3, -0.2, 0, 1.9]) {
    const expected = Math.log(normalPdf(x, pair.mean, pair.scale)) - Math.log(normalPdf(x));
    close(logRatio(pair)(x), expected, { relative: 1e-13, absolute: 1e-14 });
  }
});

test("divergences and moments agree with integration", () => {
  for (const row of arithmetic.moments) {
    const pair = { mean: row.mean, scale: row.scale };
    const where = JSON.stringify(pair);
    close(klQP(pair), row.kl_qp, { relative: 1e-13, absolute: 1e-16 }, where);
    close(klPQ(pair), row.kl_pq, { relative: 1e-13, absolute: 1e-16 }, where);
    for (const name of ESTIMATORS) {
      const [ours, theirs] = [moments(pair)[name], row.estimators[name]];
      close(ours.mean, theirs.mean, { relative: 1e-12, absolute: 1e-16 }, `${where} ${name}`);
      close(ours.bias, theirs.bias, { relative: 1e-12, absolute: 1e-15 }, `${where} ${name}`);
      if (theirs.variance === null) assert.equal(ours.variance, Infinity);
      else close(ours.variance, theirs.variance, { relative: 1e-10, absolute: 1e-15 }, `${where} ${name}`);
    }
  }
});

test("k3's variance is infinite exactly from scale² = 2 on", () => {
  assert.ok(Number.isFinite(chi2PQ({ mean: 0, scale: 1.41 })));
  assert.equal(chi2PQ({ mean: 0, scale: 1.42 }), Infinity);
  assert.equal(moments({ mean: 0, scale: Math.SQRT2 }).k3.variance, Infinity);
});

const averages = fixture("averages");

test("distributions of averages agree with kllab.exact within both stated errors", () => {
  for (const { mean, scale, n, estimator, at, cdf: expected, below_zero, error } of averages) {
    const ours = samplingDistribution(estimator, { mean, scale }, n);
    const where = `${estimator} ${mean} ${scale} n=${n}`;
    // One sample of k2 or k3 has an unbounded density at 0, where a cell holds more.
    assert.ok(ours.error < (n === 1 ? 2e-2 : 3e-3), `${where}: error ${ours.error}`);
    const absolute = ours.error + error;
    cdf(ours, at).forEach((value, i) => {
      close(value, expected[i], { relative: 0, absolute }, `${where} at ${at[i]}`);
    });
    close(cdf(ours, [0])[0], below_zero, { relative: 0, absolute }, `${where} below 0`);
  }
});

test("the stated errors are no excuse: they are far below what other pairs differ by", () => {
  const ours = samplingDistribution("k2", { mean: 0.6, scale: 0.95 }, 16);
  const row = averages.find((r) => r.estimator === "k2" && r.n === 16);
  const off = cdf(ours, row.at).map((value, i) => Math.abs(value - row.cdf[i]));
  assert.ok(Math.max(...off) > 10 * (ours.error + row.error));
});

test("an equal-variance pair has a Gaussian average of k1", () => {
  for (const [mean, n] of [[1, 16], [0.1, 64], [0.5, 1], [2.5, 1024]]) {
    const pair = { mean, scale: 1 };
    const law = samplingDistribution("k1", pair, n);
    const sd = mean / Math.sqrt(n);
    const at = [-2, -1, 0, 0.5, 2].map((z) => klQP(pair) + z * sd);
    cdf(law, at).forEach((value, i) =>
      close(value, normalCdf([-2, -1, 0, 0.5, 2][i]), { relative: 0, absolute: law.error }),
    );
  }
});

test("no mass of k2 and k3 is below zero, and bins add up", () => {
  for (const name of ["k2", "k3"]) {
    for (const n of [1, 2, 32]) {
      const law = samplingDistribution(name, { mean: 1, scale: 1 }, n);
      assert.equal(cdf(law, [0])[0], 0);
      const bins = binProbabilities(law, [-1, 0, 0.1, 0.5, 1e9]);
      assert.equal(bins[0], 0);
      close(bins.reduce((sum, p) => sum + p, 0) + law.above, 1, { relative: 1e-6 });
    }
  }
});

test("a lattice that ends early says how much lies beyond", () => {
  const pair = { mean: 1, scale: 1 };
  const whole = samplingDistribution("k3", pair, 4);
  const short = samplingDistribution("k3", pair, 4, { high: 0.6 });
  close(1 - short.above, cdf(whole, [0.6])[0], { relative: 0, absolute: 2e-3 });
  close(cdf(short, [0.3])[0], cdf(whole, [0.3])[0], { relative: 0, absolute: 1e-3 });
});

test("quantile inverts the cdf", () => {
  const law = samplingDistribution("k3", { mean: 0.6, scale: 0.9 }, 16);
  for (const level of [0.01, 0.5, 0.99]) {
    close(cdf(law, [quantile(law, level)])[0], level, { relative: 0, absolute: 2e-3 });
  }
});

test("equal distributions: every average is exactly 0", () => {
  for (const name of ESTIMATORS) {
    const law = samplingDistribution(name, { mean: 0, scale: 1 }, 8);
    assert.equal(law.start, 0);
    assert.deepEqual([...law.mass], [1]);
  }
});

test("running means and summaries", () => {
  assert.deepEqual([...runningMeans(Float64Array.of(2, 0, 4))], [2, 1, 2]);
  assert.deepEqual(summary([-1, 1, 3, 5]), { mean: 2, sd: Math.sqrt(20 / 3), below: 0.25 });
  assert.ok(Number.isNaN(summary([]).mean));
});
