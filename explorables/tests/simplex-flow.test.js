import assert from "node:assert/strict";
import { test } from "node:test";

import { keyStep } from "../kit/drag.js";
import { deserialise, initialState, serialise } from "../kit/state.js";
import {
  LATTICE,
  PENALTIES,
  TARGETS,
  USAGES,
  angle,
  coefficient,
  distanceAt,
  gradient,
  kl,
  lastTime,
  lawAt,
  optimum,
  stepped,
  velocity,
  view,
  withShare,
} from "../simplex-flow/model.js";
import { place, weights } from "../simplex-flow/panels.js";
import { descriptions, ending, reading, tableRows, targetName } from "../simplex-flow/reading.js";
import { schema } from "../simplex-flow/schema.js";
import { close, fixture } from "./fixtures.js";

const base = initialState(schema);
const at = (changes) => view({ ...base, ...changes });
const say = (changes) => reading({ ...base, ...changes }, at(changes));
const read = (text) => deserialise(schema, base, text);
const each = (values, expected, tolerance, what) =>
  values.forEach((value, i) => close(value, expected[i], tolerance, `${what} [${i}]`));
const plain = (values) => JSON.parse(JSON.stringify(values));

const REWARD = [1, 0, -0.5];
const everywhere = Object.keys(PENALTIES).flatMap((penalty) => USAGES.map((usage) => ({ penalty, usage })));

// ---- gradients ---------------------------------------------------------------------------------

test("gradients agree with numerical differentiation of the surrogate in Python", () => {
  const rows = fixture("simplex_gradients");
  assert.equal(rows.length, 2 * everywhere.length);
  for (const { gradient: expected, ...row } of rows) {
    const got = gradient({ ...base, ...row }, row.q);
    each(got, expected, { relative: 1e-12, absolute: 1e-15 }, `${row.penalty} ${row.usage}`);
  }
});

test("a reward adds its policy gradient, and beta scales the rest", () => {
  for (const which of everywhere) {
    const state = { ...base, ...which, reward: REWARD, beta: 0.3 };
    const without = gradient({ ...state, reward: "none" }, base.q);
    const mean = 0.7 * 1 + 0.1 * -0.5;
    const expected = base.q.map((q, i) => 0.3 * without[i] - q * (REWARD[i] - mean));
    each(gradient(state, base.q), expected, { relative: 1e-12, absolute: 1e-15 }, which.penalty);
  }
});

test("the derivative of a coefficient is its derivative", () => {
  for (const { penalty, usage } of everywhere) {
    const { c, dc } = coefficient(PENALTIES[penalty], usage);
    for (const l of [-2.1, -0.3, 0.4, 1.7]) {
      const slope = (c(l + 1e-5) - c(l - 1e-5)) / 2e-5;
      close(dc(l), slope, { relative: 1e-8, absolute: 1e-9 }, `${penalty} ${usage} at ${l}`);
    }
  }
});

test("what is followed is what the package's dictionary finds", () => {
  const found = fixture("simplex_targets");
  assert.deepEqual(Object.keys(found), Object.keys(TARGETS));
  for (const { penalty, usage } of everywhere) {
    const expected = found[penalty][usage];
    const got = TARGETS[penalty][usage];
    if (expected === null) assert.ok("mean" in got, `${penalty} ${usage} has a name of its own only`);
    else assert.deepEqual({ ...got }, expected, `${penalty} ${usage}`);
  }
});

test("what is followed is the gradient of what is named, with E[h] where no divergence fits", () => {
  const functions = {
    kl_qp: kl,
    kl_pq: (q, p) => kl(p, q),
    tv: (q, p) => q.reduce((sum, share, i) => sum + Math.abs(share - p[i]) / 2, 0),
    chi2_qp: (q, p) => q.reduce((sum, share, i) => sum + (share - p[i]) ** 2 / p[i], 0),
  };
  const q = [0.5, 0.15, 0.35];
  for (const { penalty, usage } of everywhere) {
    const mean = (law, p) =>
      law.reduce((sum, share, i) => sum + share * PENALTIES[penalty].h(Math.log(p[i] / share)), 0);
    const total = (law) =>
      Object.entries(TARGETS[penalty][usage]).reduce(
        (sum, [name, size]) => sum + size * (name === "mean" ? mean : functions[name])(law, base.p),
        0,
      );
    const moved = (i, by) => {
      const raised = q.map((share, j) => share * (i === j ? Math.exp(by) : 1));
      const sum = raised.reduce((a, b) => a + b);
      return raised.map((share) => share / sum);
    };
    const expected = q.map((_, i) => (total(moved(i, 1e-5)) - total(moved(i, -1e-5))) / 2e-5);
    const got = gradient({ ...base, penalty, usage }, q);
    each(got, expected, { relative: 1e-8, absolute: 1e-10 }, `${penalty} ${usage}`);
  }
});

test("angles keep their digits near 0 and 180 degrees", () => {
  close(angle([1, 0, 0], [0, 2, 0]), 90);
  close(angle([1, 1e-9, 0], [1, 0, 0]), (1e-9 * 180) / Math.PI, { relative: 1e-6 });
  close(180 - angle([1, 1e-7, 0], [-3, 0, 0]), (1e-7 * 180) / Math.PI, { relative: 1e-6 });
  assert.ok(Number.isNaN(angle([0, 0, 0], [1, 0, 0])));
});

// ---- flows -------------------------------------------------------------------------------------

test("paths agree with another integrator", () => {
  for (const { times, laws, ...row } of fixture("simplex_flows")) {
    const { own } = at(row);
    times.forEach((time, i) => {
      // Straight lines between states cost some of a pixel.
      const what = `${row.penalty} ${row.usage} ${row.reward} at ${time}`;
      each(lawAt(own, time), laws[i], { absolute: 1.5e-3 }, what);
    });
  }
});

test("a path never climbs what it follows, and the true one never climbs KL", () => {
  for (const which of everywhere) {
    for (const q of [[0.7, 0.2, 0.1], [0.01, 0.01, 0.98], [0.34, 0.33, 0.33]]) {
      for (const reward of ["none", REWARD]) {
        const { truth } = at({ ...which, q, reward });
        for (let i = 1; i < truth.distance.length; i++) {
          assert.ok(truth.distance[i] <= truth.distance[i - 1] + 1e-12, JSON.stringify(which));
        }
      }
    }
  }
});

test("the true flow ends at π*, and π* at p without a reward", () => {
  for (const p of [[0.4, 0.4, 0.2], [0.9, 0.05, 0.05], [0.98, 0.01, 0.01], [0.01, 0.01, 0.98]]) {
    for (const q of [[0.7, 0.2, 0.1], [0.01, 0.01, 0.98], [0.98, 0.01, 0.01]]) {
      assert.deepEqual(optimum({ ...base, p }), p);
      for (const [reward, beta] of [["none", 0.5], [REWARD, 0.5], [[-1, 1, -1], 0.2]]) {
        const { truth, best } = at({ p, q, reward, beta });
        each(truth.end, best, { relative: 1e-6 }, JSON.stringify({ p, q, reward }));
        if (reward === "none") continue;
        const tilted = p.map((share, i) => share * Math.exp(reward[i] / beta));
        const total = tilted.reduce((sum, x) => sum + x);
        each(best, tilted.map((x) => x / total), { relative: 1e-12 });
      }
    }
  }
});

test("k3 as loss ends where βp/(μ − R) adds up to 1", () => {
  for (const reward of [REWARD, [0, 0.5, 1]]) {
    const beta = 0.5;
    const law = (mu) => base.p.map((share, i) => (beta * share) / (mu - reward[i]));
    let [low, high] = [Math.max(...reward) + 1e-9, Math.max(...reward) + 10];
    for (let i = 0; i < 100; i++) {
      const middle = (low + high) / 2;
      if (law(middle).reduce((sum, x) => sum + x) > 1) low = middle;
      else high = middle;
    }
    const state = { penalty: "k3", usage: "loss", reward, beta };
    each(at(state).own.end, law(low), { relative: 1e-7 }, String(reward));
    const there = ending(at(state).own, { ...base, ...state }, at(state).best);
    assert.equal(there.kind, "point");
  }
});

test("χ² with a reward gives up the worst token", () => {
  const state = { penalty: "flipped", usage: "loss", reward: REWARD, beta: 0.5 };
  const { own } = at(state);
  // On what is left q/p is linear in the reward: q = p (1.5 + 2 (R − R̄)), tokens of p = .4 each.
  assert.deepEqual(own.dead, [false, false, true]);
  each(own.end, [0.9, 0.1, 0], { absolute: 1e-6 });
  const { kind, text } = ending(own, { ...base, ...state }, at(state).best);
  assert.deepEqual([kind, text], ["edge", "A and B alone"]);
});

test("|log r| as loss reaches p in finite time, along the line where a token is right", () => {
  const { own } = at({ penalty: "abs", usage: "loss", q: [0.1, 0.3, 0.6] });
  each(own.end, base.p, { absolute: 1e-6 });
  assert.ok(distanceAt(own, 6) < 1e-6);
  const sliding = own.path.filter(({ t }) => t > 1 && t < 4);
  assert.ok(sliding.length > 5);
  for (const { q } of sliding) close(q[1], 0.4, { absolute: 1e-3 });
});

test("k1 as loss stands still; with a reward only the reward is left", () => {
  const { own, truth, angle: between } = at({ penalty: "k1", usage: "loss" });
  assert.equal(own.path.length, 1);
  each(own.end, base.q, { relative: 1e-12 });
  assert.ok(own.field.every((v) => Math.hypot(...v) < 1e-15));
  assert.ok(truth.field.every((v) => Math.hypot(...v) > 1e-4));
  assert.ok(Number.isNaN(between));
  each(at({ penalty: "k1", usage: "loss", reward: REWARD }).own.end, [1, 0, 0], { absolute: 1e-9 });
});

test("the default state makes the point: KL's own estimator, and away from the reference", () => {
  const { own, truth, kl: distance, value, angle: between } = view(base);
  close(value, distance, { relative: 1e-12 });
  close(between, 180, { relative: 1e-9 });
  each(truth.gradient, [0.2631, -0.1754, -0.0877], { absolute: 5e-5 });
  each(own.gradient, [-0.0369, 0.0246, 0.0123], { absolute: 5e-5 });
  assert.deepEqual(own.dead, [false, true, true]);
  close(own.left, -Math.log(0.4), { relative: 1e-12 });
  assert.ok(own.distance.every((d, i) => i === 0 || d >= own.distance[i - 1] - 1e-12));
});

test("every start and placement comes to an end that is named", () => {
  const laws = [[0.98, 0.01, 0.01], [0.01, 0.01, 0.98], [0.34, 0.33, 0.33], [0.05, 0.6, 0.35]];
  for (const which of everywhere) {
    for (const q of laws) {
      for (const p of laws) {
        for (const reward of ["none", [1, -1, 0.3]]) {
          const state = { ...base, ...which, q, p, reward, beta: 0.2 };
          const seen = view(state);
          const words = [reading(state, seen), JSON.stringify(tableRows(state, seen)), JSON.stringify(descriptions(state, seen))];
          for (const text of words) assert.doesNotMatch(text, /NaN|undefined|∞|e−|−0\.0+[,)\s]/, JSON.stringify(state));
          assert.ok(seen.own.path.length < 2000, JSON.stringify(state));
          close(seen.own.end.reduce((sum, x) => sum + x), 1, { relative: 1e-12 });
        }
      }
    }
  }
});

// ---- time --------------------------------------------------------------------------------------

test("the axis ends when both have arrived", () => {
  const seen = view(base);
  assert.equal(lastTime(seen), 100);
  close(distanceAt(seen.own, lastTime(seen)), seen.own.left, { absolute: 0.002 });
  assert.equal(distanceAt(seen.own, 0), seen.own.distance[0]);
  assert.equal(distanceAt(seen.own, 1e30), seen.own.distance.at(-1));
  assert.deepEqual(lawAt(seen.own, 0), seen.own.path[0].q);
});

// ---- moving a law ------------------------------------------------------------------------------

const hundredths = (law) => {
  const counts = law.map((share) => 100 * share);
  for (const count of counts) assert.ok(Math.abs(count - Math.round(count)) < 1e-9 && count > 0.5);
  close(counts.reduce((sum, count) => sum + count), 100);
};

test("a slider reaches every value, and the rest keeps its ratio", () => {
  for (const law of [[0.7, 0.2, 0.1], [0.98, 0.01, 0.01], [0.33, 0.33, 0.34]]) {
    for (let i = 0; i < 3; i++) {
      for (let count = 1; count <= 98; count++) {
        const next = withShare(law, i, count / 100);
        hundredths(next);
        assert.equal(next[i], count / 100);
        assert.deepEqual(schema.q.parse(next.join("+")), next);
      }
    }
  }
  assert.deepEqual(withShare([0.7, 0.2, 0.1], 0, 0.4), [0.4, 0.4, 0.2]);
});

test("steps move towards a corner and stop inside", () => {
  assert.deepEqual(stepped([0.7, 0.2, 0.1], 1, 0), [0.69, 0.21, 0.1]);
  assert.deepEqual(stepped([0.7, 0.2, 0.1], -1, 0), [0.71, 0.19, 0.1]);
  assert.deepEqual(stepped([0.7, 0.2, 0.1], 0, 1), [0.69, 0.19, 0.12]);
  assert.deepEqual(stepped([0.7, 0.2, 0.1], 0, -1), [0.71, 0.21, 0.08]);
  assert.deepEqual(stepped([0.61, 0.29, 0.1], 0, -10), [0.66, 0.33, 0.01]);
  for (const law of [[0.98, 0.01, 0.01], [0.01, 0.98, 0.01], [0.01, 0.01, 0.98]]) {
    for (const [right, up] of [[10, 0], [-10, 0], [0, 10], [0, -10], [1, 0], [-1, 0], [0, 1], [0, -1]]) {
      hundredths(stepped(law, right, up));
    }
  }
  assert.deepEqual([keyStep("ArrowUp", true), keyStep("PageDown", false)], [[0, 10], [0, -10]]);
  assert.deepEqual([keyStep("a", false), keyStep("constructor", false)], [undefined, undefined]);
});

test("points and laws are the same, and a point outside is brought back", () => {
  const panel = { left: 20, right: 320, top: 20, bottom: 280 };
  for (const law of [...LATTICE, [1, 0, 0], [0, 0, 1]]) {
    each(weights(panel, ...place(panel, law)), law, { absolute: 1e-12 });
  }
  assert.equal(LATTICE.length, 45);
  for (const point of [[-500, 900], [900, 900], [170, -900]]) {
    hundredths(schema.q.parse(weights(panel, ...point).join("+")));
  }
});

test("a step in q follows from the gradient and leaves the sum alone", () => {
  const q = [0.5, 0.3, 0.2];
  const slope = [0.4, -0.1, -0.3];
  const v = velocity(q, slope);
  close(v.reduce((sum, x) => sum + x), 0, { absolute: 1e-16 });
  const soft = (t) => {
    const weights = q.map((share, i) => share * Math.exp(-t * slope[i]));
    const total = weights.reduce((sum, x) => sum + x);
    return weights.map((x) => x / total);
  };
  each(v, soft(1e-6).map((x, i) => (x - soft(-1e-6)[i]) / 2e-6), { relative: 1e-8 });
});

// ---- the link ----------------------------------------------------------------------------------

test("laws and rewards from a link are brought into their range, or dropped", () => {
  assert.deepEqual(read("q:7+2+1").q, [0.7, 0.2, 0.1]);
  assert.deepEqual(read("q:0+0+1").q, [0.01, 0.01, 0.98]);
  assert.deepEqual(read("p:1 1 1").p, [0.34, 0.33, 0.33]);
  assert.deepEqual(read("reward:9+-9+0.26").reward, [1, -1, 0.3]);
  assert.equal(read("reward:none").reward, "none");
  for (const text of ["q:1+2", "q:1+2+3+4", "q:0+0+0", "q:-1+1+1", "q:1+NaN+1", "q:1e999+1+1", "q:++", "q:", "reward:1+1", "reward:x+y+z", "reward:1++1", "penalty:constructor", "usage:__proto__"]) {
    assert.deepEqual(read(text), base, text);
  }
  hundredths(read("q:1e-300+1e8+1").q);
  const state = { ...base, penalty: "abs", q: [0.1, 0.3, 0.6], reward: REWARD };
  const text = serialise(schema, state, base);
  assert.equal(text, "penalty:abs,q:0.1+0.3+0.6,reward:1+0+-0.5");
  assert.deepEqual(plain(read(text)), plain(state));
});

// ---- words -------------------------------------------------------------------------------------

test("the sentence says what is followed, by how much it is off, and where it ends", () => {
  assert.match(say({}), /^k3 in the reward follows KL\(q‖p\) − KL\(p‖q\), not KL\(q‖p\), though its mean is KL\(q‖p\), 0\.184 nats\. From q it steps against −∇KL\(q‖p\), 0\.140 times as far\..*ends with A alone, where KL\(q‖p\) is 0\.916; the true gradient leads to p\.$/);
  assert.match(say({ usage: "loss" }), /follows KL\(p‖q\), not KL.*steps along −∇KL\(q‖p\), 1\.14 times as far\. Gradient flow from q ends at p\.$/);
  assert.match(say({ penalty: "k2", usage: "loss" }), /^k2 as loss follows KL\(q‖p\), though its mean is 0\.182 nats and KL\(q‖p\) is 0\.184\. From q it takes −∇KL/);
  assert.match(say({ penalty: "k1", usage: "loss" }), /no expected gradient, though its mean is KL.*nothing moves q.*leaves q where it is; the true gradient leads to p/);
  assert.match(say({ penalty: "k1", usage: "loss", reward: REWARD }), /Only the reward pulls.*4\.4° off the true step.*with A alone, where KL\(q‖π\*\)/);
  assert.match(say({ usage: "loss", reward: REWARD }), /ends at \(0\.78, 0\.16, 0\.06\), where KL\(q‖π\*\) is 0\.031; the true gradient leads to π\* = \(0\.86, 0\.12, 0\.02\)/);
  assert.match(say({ penalty: "flipped", usage: "reward" }), /follows ½ χ²\(q‖p\) − KL\(q‖p\), not.*with A and C alone/);
  assert.match(say({ penalty: "abs", usage: "loss", q: [0.1, 0.3, 0.6] }), /follows 2 TV\(q, p\).*4\.6° off/);
  assert.match(say({ q: base.p }), /q is at p, and nothing pulls\. Gradient flow from q ends at p\./);
  assert.match(say({ usage: "loss", q: base.p, reward: [0, 0, 0] }), /q is at π\*, and nothing pulls/);
});

test("targets as text", () => {
  assert.equal(targetName(TARGETS.k2.reward, "k2"), "E[k2] − KL(q‖p)");
  assert.equal(targetName(TARGETS.abs.both, "abs"), "E[|log r|]");
});

test("the table has what is followed beside what is wanted", () => {
  const rows = tableRows(base, view(base)).map(({ name, cells }) => [name, ...cells].join(" | "));
  assert.deepEqual(rows, [
    "mean of the penalty | 0.184 | 0.184",
    "gradient, logit of A | −0.037 | 0.263",
    "gradient, logit of B | 0.025 | −0.175",
    "gradient, logit of C | 0.012 | −0.088",
    "angle of the step at q | 180° | 0°",
    "flow ends at | A alone | p",
    "KL(q‖p) there | 0.916 | 0",
  ]);
});

test("the pictures in words", () => {
  const words = descriptions(base, view(base));
  assert.match(words.own, /steps of k3 in the reward\. q is at \(0\.70, 0\.20, 0\.10\).*ends: A alone/);
  assert.match(words.truth, /−∇\(KL\(q‖p\)\).*ends: p/);
  assert.match(words.distance, /from 0\.184: to 0\.916 on the left path and 0 on the right one/);
  const still = { ...base, penalty: "k1", usage: "loss" };
  assert.match(descriptions(still, view(still)).own, /without an arrow/);
});
