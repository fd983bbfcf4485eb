import assert from "node:assert/strict";
import { test } from "node:test";

import { ESTIMATORS, PER_SAMPLE, binProbabilities, logRatio } from "../kit/math.js";
import { keyValue } from "../kit/drag.js";
import { fixed, nats, percent, signedPercent } from "../kit/format.js";
import { spreadLabels } from "../kit/plot.js";
import { Rng } from "../kit/rng.js";
import { initialState } from "../kit/state.js";
import { Model, binEdges, exactCurve, histogram, meanRange } from "../two-gaussians/model.js";
import { logIndices } from "../two-gaussians/panels.js";
import { reading, smallestError, tableRows } from "../two-gaussians/reading.js";
import { schema } from "../two-gaussians/schema.js";
import { close } from "./fixtures.js";

const base = initialState(schema);
const plainMeans = ({ mean, scale, n, seed, runs }, name) =>
  Array.from({ length: runs }, (_, run) => {
    const x = [...new Rng(seed, run).normals(n)];
    return x.reduce((sum, v) => sum + PER_SAMPLE[name](logRatio({ mean, scale })(v)), 0) / n;
  });

test("averages are those of the seeded draws, whatever was asked for before", () => {
  const model = new Model();
  const states = [
    base,
    { ...base, runs: 300 },
    { ...base, n: 64, runs: 20 },
    { ...base, mean: 1, scale: 1.2 },
    { ...base, seed: 7, n: 4 },
    base,
  ];
  for (const state of states) {
    const means = model.means(state);
    for (const name of ESTIMATORS) {
      assert.equal(means[name].length, state.runs);
      plainMeans(state, name).forEach((expected, run) =>
        close(means[name][run], expected, { relative: 1e-12, absolute: 1e-15 }),
      );
    }
  }
});

test("the default state makes the chapter's point, exactly and for a hundred seeds", () => {
  const exact = new Model().exact(base);
  assert.ok(exact.k1.below > 0.1 && exact.k1.below < 0.12);
  assert.ok(exact.k2.bias / exact.kl > 0.3);
  assert.ok(exact.k3.sd < 0.5 * exact.k1.sd);
  assert.equal(smallestError(exact, ESTIMATORS), "k3");
  for (let seed = 0; seed < 100; seed++) {
    const { seen } = new Model().view({ ...base, seed });
    assert.ok(seen.k1.below > 0.02, `seed ${seed}: k1 below 0`);
    assert.equal(seen.k2.below + seen.k3.below, 0);
    assert.ok(seen.k2.mean > 1.15 * exact.kl, `seed ${seed}: k2 too high`);
    assert.ok(seen.k3.sd < 0.75 * seen.k1.sd, `seed ${seed}: k3 tighter`);
  }
});

test("a run on its way in is not yet in the histogram", () => {
  const view = new Model().view({ ...base, runs: 5 }, 3);
  assert.equal(view.x.length, 3);
  assert.equal(view.running.k1.length, 3);
  assert.equal(view.means.k1.length, 4);
  const done = new Model().view({ ...base, runs: 5 });
  assert.equal(done.means.k1.length, 5);
  close(done.running.k3.at(-1), done.means.k3[4], { relative: 1e-12 });
});

test("no runs yet: nothing seen, everything exact", () => {
  const view = new Model().view({ ...base, runs: 0 });
  assert.equal(view.x.length + view.means.k1.length + view.ghosts.length, 0);
  assert.ok(Number.isNaN(view.seen.k1.mean));
  assert.equal(tableRows(view.exact, view.seen, ["k1"])[0].bias[1], "–");
});

test("zero is an edge of the bins, and each run is counted once", () => {
  const extremes = [
    base,
    { ...base, mean: 2.5, scale: 0.4, n: 1 },
    { ...base, mean: 0, scale: 2, n: 1024 },
    { ...base, mean: 0.05, scale: 1, n: 1, show: ["k3"] },
    { ...base, mean: 0, scale: 1 },
  ];
  for (const state of extremes) {
    const model = new Model();
    const { exact, means } = model.view(state);
    const edges = binEdges(meanRange(exact, state.show));
    assert.ok(edges.length > 10 && edges.length < 120);
    assert.ok(edges.some((edge) => edge === 0));
    for (const name of state.show) {
      const { seen, exact: expected, beyond } = histogram(means[name], exact[name].distribution, edges);
      assert.ok(seen.every((share) => share >= 0) && expected.every((p) => p >= -1e-12));
      const inside = seen.reduce((sum, share) => sum + share, 0) * state.runs;
      const lower = means[name].filter((value) => value < edges[0]).length;
      close(inside + beyond + lower, state.runs, { relative: 1e-12 });
    }
  }
});

test("the exact line has the bins' own height", () => {
  const { exact } = new Model().view(base);
  const edges = binEdges(meanRange(exact, ["k1"]));
  const { exact: bars } = histogram([], exact.k1.distribution, edges);
  const curve = exactCurve(exact.k1.distribution, edges);
  close(Math.max(...curve.map(([, y]) => y)), Math.max(...bars), { relative: 0.02 });
});

test("observed shares of runs follow the exact distribution", () => {
  const state = { ...base, runs: 1000 };
  const { exact, means } = new Model().view(state);
  const edges = [-9, 0, 0.1, 0.2, 0.3, 0.4, 9];
  const statistic = (values, law) => {
    const counts = edges.slice(1).map((upper, i) => values.filter((v) => v >= edges[i] && v < upper).length);
    const expected = binProbabilities(law, edges).map((p) => p * values.length);
    return counts.reduce((sum, c, i) => sum + (expected[i] > 1 ? (c - expected[i]) ** 2 / expected[i] : 0), 0);
  };
  // Chi-square with at most 5 degrees of freedom exceeds 25.7 once in ten thousand.
  for (const name of ESTIMATORS) assert.ok(statistic(means[name], exact[name].distribution) < 25.7, name);
  const wrong = new Model().exact({ ...state, mean: 0.7 });
  assert.ok(statistic(means.k1, wrong.k1.distribution) > 25.7, "the check can fail");
});

test("positions on the logarithmic axis include both ends", () => {
  for (const n of [1, 2, 16, 1024]) {
    const indices = logIndices(n);
    assert.equal(indices[0], 0);
    assert.equal(indices.at(-1), n - 1);
    assert.ok(indices.length <= 91);
    assert.deepEqual(indices, [...indices].sort((a, b) => a - b));
  }
});

test("the sentence says what matters in each case", () => {
  const say = (changes) => {
    const state = { ...base, ...changes };
    return reading(state, new Model().exact(state));
  };
  assert.match(say({}), /KL\(q‖p\) is 0\.234 nats.*below 0 in 10\u00a0%.*k2 is 35\u00a0% too high.*k3’s\.$/);
  assert.match(say({ scale: 1.45 }), /variance is infinite/);
  assert.doesNotMatch(say({ scale: 1.4 }), /infinite/);
  assert.match(say({ mean: 0, scale: 1 }), /p is q/);
  assert.match(say({ n: 1 }), /With one sample/);
  assert.match(say({ n: 1024 }), /almost never/);
  assert.match(say({ scale: 1.6 }), /k2 is .* too low/);
  assert.match(say({ mean: 2.5, scale: 0.4 }), /k2 is 16\.7 times the truth/);
  assert.doesNotMatch(say({ show: ["k2"] }), /k1|k3/);
});

test("keys move a handle by a step, ten steps, or to an end", () => {
  const range = { min: -1, max: 1, step: 0.05 };
  close(keyValue("ArrowRight", false, 0, range), 0.05);
  close(keyValue("ArrowDown", true, 0, range), -0.5);
  assert.equal(keyValue("PageUp", false, 0.9, range), 1);
  assert.equal(keyValue("Home", false, 0, range), -1);
  assert.equal(keyValue("End", false, 0, range), 1);
  for (const key of ["Tab", "a", "toString", "__proto__"]) {
    assert.equal(keyValue(key, false, 0, range), undefined);
  }
});

test("labels keep their distance, their order and their frame", () => {
  const placed = spreadLabels([50, 52, 10, 51], 14, 0, 100);
  const sorted = [...placed].sort((a, b) => a - b);
  for (let i = 1; i < sorted.length; i++) assert.ok(sorted[i] - sorted[i - 1] >= 14 - 1e-9);
  assert.ok(placed[0] < placed[3] && placed[3] < placed[1]);
  assert.deepEqual(spreadLabels([5, 90], 14, 0, 100), [5, 90]);
  assert.ok(Math.max(...spreadLabels([99, 99, 99], 14, 0, 100)) <= 100);
});

test("numbers as text", () => {
  assert.deepEqual(
    [0.2341, 12.34, 123.4, -0.00512, 0, Infinity, NaN, 1e-7].map(nats),
    ["0.234", "12.3", "123", "−0.0051", "0", "∞", "–", "1.0e−7"],
  );
  assert.deepEqual(
    [0.3512, 0.0914, 0.00251, 12, 0, Infinity].map(percent),
    ["35\u00a0%", "9.1\u00a0%", "0.3\u00a0%", "1200\u00a0%", "0\u00a0%", "∞"],
  );
  assert.equal(signedPercent(0.35), "+35\u00a0%");
  assert.equal(signedPercent(-0.35), "−35\u00a0%");
  assert.equal(signedPercent(0), "0\u00a0%");
  assert.equal(fixed(-0.6, 2), "−0.60");
});
