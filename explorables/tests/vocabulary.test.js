import assert from "node:assert/strict";
import { test } from "node:test";

import { ESTIMATORS, OCTAVES, TOKENS, Vocabulary, headThreshold, k3 } from "../kit/math.js";
import { initialState } from "../kit/state.js";
import { Model, TAIL_RANK } from "../vocabulary/model.js";
import { descriptions, reading, tableRows } from "../vocabulary/reading.js";
import { schema } from "../vocabulary/schema.js";
import { close, fixture } from "./fixtures.js";

const base = initialState(schema);
const shared = new Model(); // every test asks for whole states, so one is enough
const view = (changes) => shared.view({ ...base, ...changes });
const say = (changes) => reading({ ...base, ...changes }, view(changes));
const sum = (values) => values.reduce((total, value) => total + value, 0);

test("exact sums over 65,535 tokens agree with Python", () => {
  const tokens = new Vocabulary();
  assert.ok(TOKENS >= 50000);
  for (const row of fixture("vocabularies")) {
    const { temperature, noise, top } = row;
    const where = JSON.stringify({ temperature, noise, top });
    const exact = tokens.set({ temperature, noise, top });
    assert.equal(exact.tokens, row.tokens, where);
    close(exact.kl, row.kl, { relative: 1e-11 }, where);
    close(exact.lost, row.lost, { relative: 1e-12, absolute: 1e-15 }, where);
    for (const name of ESTIMATORS) {
      close(exact[name].mean, row[name].mean, { relative: 1e-11 }, `${where} ${name}`);
      close(exact[name].variance, row[name].variance, { relative: 1e-9, absolute: 1e-26 }, `${where} ${name}`);
      exact.octaves.forEach(({ variance, mean }, octave) => {
        const absolute = 1e-12 * row[name].variance + 1e-26;
        close(variance[name], row[name].variance_by_octave[octave], { relative: 1e-9, absolute }, where);
        if (name !== "k2") {
          const near = { relative: 1e-10, absolute: 1e-14 };
          close(mean[name], row[name].mean_by_octave[octave], near, `${where} ${name} octave ${octave}`);
        }
      });
    }
    assert.deepEqual([...tokens.draw({ seed: 7, sample: 3, n: 64 })], row.drawn, where);
  }
});

test("k3 of one token is that of the shared arithmetic", () => {
  const tokens = new Vocabulary();
  tokens.set({ temperature: 0.95, noise: 0.1, top: 1 });
  for (let i = 0; i < TOKENS; i += 97) {
    close(tokens.k3[i], k3(tokens.logR[i]), { relative: 1e-10, absolute: 1e-18 }, `token ${i}`);
  }
});

test("the smallest head that holds the mass, in any order", () => {
  const weights = Float64Array.of(0.1, 0.4, 0.2, 0.3);
  const depth = weights.map((w) => -Math.log(w));
  for (const [mass, least] of [[0.3, 0.4], [0.4, 0.4], [0.5, 0.3], [0.71, 0.2], [0.95, 0.1]]) {
    assert.equal(headThreshold(weights, depth, mass), least, `mass ${mass}`);
  }
});

test("support mismatch: k3 loses exactly the mass that top-p leaves out, k1 nothing", () => {
  for (const state of [{ temperature: 1, noise: 0, top: 0.9 }, { temperature: 0.8, noise: 0.3, top: 0.95 }]) {
    const tokens = new Vocabulary();
    const exact = tokens.set(state);
    let inside = 0;
    for (let i = 0; i < TOKENS; i++) if (tokens.q[i] > 0) inside += tokens.p[i];
    assert.ok(exact.lost < -0.05);
    close(exact.lost, inside - 1, { relative: 1e-10 });
    close(exact.k3.bias, inside - 1, { relative: 1e-9 });
    assert.equal(exact.k1.bias, 0);
  }
});

test("q = p: everything is 0, and no share is NaN", () => {
  const { exact, batch } = view({ temperature: 1, noise: 0 });
  for (const name of ESTIMATORS) {
    assert.equal(exact[name].mean, 0);
    assert.equal(exact[name].variance, 0);
    assert.ok(exact.shares[name].every((share) => share === 0));
  }
  assert.equal(batch.carrier, null);
  assert.match(say({ temperature: 1, noise: 0 }), /^q is p/);
});

test("a constant log ratio has variance 0, not a sum of roundings", () => {
  const { exact } = view({ temperature: 1, noise: 0, top: 0.9 });
  for (const name of ESTIMATORS) assert.equal(exact[name].variance, 0);
});

test("the default state makes the chapter's point", () => {
  const { exact, batch } = view({});
  assert.ok(exact.tail.k3 > 0.94 && exact.tail.k1 < 0.06);
  assert.ok(exact.tail.q < 0.0011, "q hardly ever goes there");
  assert.ok(exact.k3.variance > 90 * exact.k1.variance);
  assert.ok(batch.carrier.share > 0.4);
  close(sum(exact.shares.k3), 1, { relative: 1e-12 });
  // Whatever the seed: most samples of 64 miss the tail, so most k3 averages are below the truth.
  let low = 0;
  for (let seed = 0; seed < 100; seed++) low += shared.batch({ ...base, seed }).running.k3.at(-1) < exact.kl;
  assert.ok(low > 60, `${low} of 100`);
});

test("samples follow q: counts of octaves against their exact probabilities", () => {
  const statistic = (octaves, ranks) =>
    sum(
      octaves.map(({ from, q }) => {
        const expected = q * ranks.length;
        const seen = ranks.filter((rank) => rank >= from && rank < 2 * from).length;
        return expected > 1 ? (seen - expected) ** 2 / expected : 0;
      }),
    );
  const state = { ...base, temperature: 1, n: 4096 };
  const { exact, batch } = view(state);
  // Chi-square with at most 16 degrees of freedom exceeds 44 once in five thousand.
  assert.ok(statistic(exact.octaves, batch.ranks) < 44);
  const other = new Vocabulary().set({ ...state, temperature: 0.9 }).octaves;
  assert.ok(statistic(other, batch.ranks) > 44, "the check can fail");
});

test("the batch: shares of the k3 mean, the carrier and the running means fit together", () => {
  const state = { ...base, n: 256, sample: 3 };
  const { batch } = view(state);
  close(sum(batch.shares), 1, { relative: 1e-12 });
  assert.equal(Math.max(...batch.shares), batch.carrier.share);
  assert.equal(batch.ranks[batch.carrier.at - 1], batch.carrier.rank);
  const tokens = new Vocabulary();
  tokens.set(base);
  const values = [...batch.ranks].map((rank) => tokens.k3[rank - 1]);
  close(batch.running.k3.at(-1), sum(values) / 256, { relative: 1e-12 });
  close(batch.carrier.share, Math.max(...values) / sum(values), { relative: 1e-12 });
  assert.notDeepEqual(view({ ...state, sample: 4 }).batch.ranks, batch.ranks);
});

// Time depends on the machine; what is counted here does not. A frame has 16 ms, and a pass over
// the vocabulary with one exponential a token takes about one.
test("a change costs one exponential a token and no new vocabulary", (t) => {
  const model = new Model();
  model.view(base);
  const counts = { exp: 0, log: 0, expm1: 0, pow: 0, allocated: 0 };
  for (const name of ["exp", "log", "expm1", "pow"]) {
    const original = Math[name];
    t.mock.method(Math, name, (...values) => {
      counts[name]++;
      return original(...values);
    });
  }
  const Original = globalThis.Float64Array;
  t.after(() => (globalThis.Float64Array = Original));
  globalThis.Float64Array = new Proxy(Original, {
    construct(target, values) {
      if (typeof values[0] === "number") counts.allocated += values[0];
      return new target(...values);
    },
  });
  const after = (state) => {
    for (const name of Object.keys(counts)) counts[name] = 0;
    model.view(state);
    return { ...counts };
  };
  const changed = after({ ...base, temperature: 0.9, top: 0.95 });
  assert.equal(changed.exp, TOKENS);
  assert.ok(changed.log + changed.expm1 + changed.pow < 100, JSON.stringify(changed));
  assert.ok(changed.allocated < TOKENS / 8, JSON.stringify(changed));
  const resampled = after({ ...base, temperature: 0.9, top: 0.95, sample: 2 });
  assert.equal(resampled.exp, 0);
  const again = after({ ...base, temperature: 0.9, top: 0.95, sample: 2 });
  assert.deepEqual(again, { exp: 0, log: 0, expm1: 0, pow: 0, allocated: 0 });
});

test("the sentence says what matters in each case", () => {
  assert.match(say({}), /0\.598 nats\. q draws ranks from 1,024 on in 0\.1\u00a0% of its samples, and from there comes 95\u00a0% of k3’s variance and 4\.9\u00a0% of k1’s.*rank 347, carries 44\u00a0%/);
  assert.match(say({ temperature: 1, noise: 0, top: 0.9 }), /keeps 2,192 tokens: p\(supp q\) − 1 is −0\.100, so k3 is 0\.100 nats too low on average and k1 is not/);
  assert.match(say({ temperature: 0.8, top: 0.95 }), /q never draws ranks from 1,024 on/);
  assert.match(say({ temperature: 1.3, noise: 1, n: 4096 }), /no token carries more than 0\.8\u00a0%/);
  assert.match(say({ n: 1 }), /This sample says k1/);
  for (const temperature of [0.5, 1, 1.5]) {
    for (const top of [0.5, 1]) {
      for (const noise of [0, 1]) {
        for (const n of [1, 4096]) {
          const state = { temperature, top, noise, n };
          assert.doesNotMatch(say(state), /NaN|undefined|∞| –/);
          assert.doesNotMatch(JSON.stringify(descriptions({ ...base, ...state }, view(state))), /NaN|undefined|∞/);
        }
      }
    }
  }
});

test("the table has the mean, the spread of the average, the tail and what was seen", () => {
  const rows = tableRows(base, view({}));
  assert.deepEqual(rows.map((row) => row.name), ESTIMATORS);
  assert.deepEqual(rows[2].cells.slice(0, 3), ["0.598", "0.907", "95\u00a0%"]);
  const { exact, batch } = view({});
  close(Number(rows[0].cells[3]), batch.running.k1.at(-1), { relative: 1e-3 });
  assert.equal(tableRows(base, view({ temperature: 1, noise: 0 }))[0].cells[2], "–");
  assert.equal(exact.octaves.length, OCTAVES);
  assert.equal(exact.octaves[10].from, TAIL_RANK);
});
