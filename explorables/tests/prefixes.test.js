import assert from "node:assert/strict";
import { test } from "node:test";

import { deserialise, initialState, serialise } from "../kit/state.js";
import { view } from "../prefixes/model.js";
import { rangeWith } from "../prefixes/panels.js";
import { LOSSES, descriptions, reading, short, signed, tableRows, term } from "../prefixes/reading.js";
import { schema } from "../prefixes/schema.js";
import { close, fixture } from "./fixtures.js";

const base = initialState(schema);
const rows = fixture("prefixes");
const at = (changes) => view({ ...base, ...changes });
const say = (changes) => reading({ ...base, ...changes }, at(changes));
const stateOf = ([q, qa, qb, p, pa, pb], loss) => ({ q, qa, qb, p, pa, pb, loss });
const tight = { relative: 1e-12, absolute: 1e-14 };

test("every part of the gradient agrees with derivatives over whole sequences in Python", () => {
  for (const row of rows) {
    for (const loss of Object.keys(LOSSES)) {
      const ours = view(stateOf(row.chances, loss));
      const where = `${row.chances} ${loss}`;
      close(ours.kl, row.kl, tight, where);
      ours.parts.forEach((part, i) => {
        close(part.kept, row.kept[loss === "k3" ? "k3" : "k2"][i], tight, `${where} kept ${i}`);
        close(part.own, loss === "k3" ? row.own[i] : 0, tight, `${where} own ${i}`);
        close(part.later, row.later[i], tight, `${where} later ${i}`);
        close(part.sum, row.sum[i], tight, `${where} sum ${i}`);
      });
      close(ours.rest.kl, row.rest, tight, `${where} rest`);
      close(ours.least.q, row.least.q, { relative: 1e-10 }, `${where} least`);
      close(ours.least.kl, row.least.kl, tight, `${where} least`);
      ours.leaves.forEach(({ q, p }, i) => {
        close(q, row.leaves[i][0], tight, `${where} leaf ${i}`);
        close(p, row.leaves[i][1], tight, `${where} leaf ${i}`);
      });
    }
  }
});

test("in the default state the dropped term turns the sign of the first token, and of no other", () => {
  const signs = (loss) => at({ loss }).parts.map(({ kept, sum }) => Math.sign(kept * sum));
  for (const loss of Object.keys(LOSSES)) assert.deepEqual(signs(loss), [-1, 1, 1]);
});

test("a named q(A) follows the rest: there the token loss rests, and there KL is least", () => {
  for (const changes of [{}, { p: 0.3 }, { qa: 0.3, pb: 0.98 }, { loss: "k3", p: 0.02, qa: 0.98, pa: 0.02 }]) {
    const rest = at({ ...changes, q: "token" });
    assert.equal(rest.q, changes.p ?? base.p);
    assert.equal(rest.parts[0].kept, 0);
    close(rest.kl, rest.rest.kl, tight);
    const least = at({ ...changes, q: "least" });
    assert.equal(least.parts[0].sum, 0);
    close(least.kl, least.least.kl, tight);
    for (let q = 0.02; q < 0.99; q += 0.01) assert.ok(at({ ...changes, q }).kl >= least.kl - 1e-15);
  }
});

test("slopes of the two curves are the two gradients, and the curves meet at the present q(A)", () => {
  for (const loss of Object.keys(LOSSES)) {
    const { q, kl, curve, believed, parts } = at({ loss, q: 0.3 });
    close(curve(q), kl, tight);
    close(believed(q), kl, tight);
    const slope = (f) => (q * (1 - q) * (f(q + 1e-5) - f(q - 1e-5))) / 2e-5;
    close(slope(curve), parts[0].sum, { relative: 1e-7 }, loss);
    close(slope(believed), parts[0].kept, { relative: 1e-7 }, loss);
  }
});

test("q = p leaves nothing to do, and nothing to divide by", () => {
  const { kl, parts, missed } = at({ q: "token", qa: 0.2, qb: 0.5 });
  assert.equal(kl, 0);
  assert.deepEqual(parts[0], { kept: 0, own: 0, later: 0, sum: 0 });
  assert.ok(Number.isNaN(missed));
  assert.match(say({ q: "token", qa: 0.2, qb: 0.5 }), /^q is p: nothing pushes anywhere/);
});

test("the sentence says what matters in each case", () => {
  assert.match(say({}), /k2 as a loss has gradient −0\.101.*descent raises q\(A\).*follows, \+0\.281.*is \+0\.180: the dropped term turns the sign, and descent lowers q\(A\).*q\(A\) = p\(A\) = 0\.60, where KL\(Q‖P\) is 0\.695; the least is 0\.540, at q\(A\) = 0\.327.*1\.14 times as long/);
  assert.match(say({ loss: "kl" }), /the exact KL\(q‖p\) as a loss has gradient −0\.101/);
  assert.match(say({ loss: "k3" }), /leaves out −0\.0014 of the token’s own part.*what is missing turns the sign/);
  assert.match(say({ q: "token" }), /pushes the first token nowhere.*is \+0\.270: descent lowers q\(A\)/);
  assert.match(say({ q: "least" }), /is 0: KL\(Q‖P\) is least here, and the loss on tokens moves away/);
  assert.match(say({ q: 0.8 }), /has 47\u00a0% of it/);
  assert.match(say({ qa: 0.8, pa: 0.5, qb: 0.2 }), /Nothing that follows is dropped.*the two agree/);
  for (const loss of Object.keys(LOSSES)) {
    for (const q of [0.02, 0.98, "token", "least"]) {
      for (const [qa, pa] of [[0.02, 0.98], [0.98, 0.02], [0.5, 0.5]]) {
        assert.doesNotMatch(say({ loss, q, qa, pa }), /NaN|undefined|Infinity|∞|\+−/);
      }
    }
  }
});

test("table, term and pictures in words", () => {
  assert.deepEqual(tableRows(at({})), [
    { name: "q(A)", cells: ["−0.101", "0", "+0.281", "+0.180"] },
    { name: "q(A|A)", cells: ["+0.161", "0", "0", "+0.161"] },
    { name: "q(A|B)", cells: ["−0.049", "0", "0", "−0.049"] },
  ]);
  assert.equal(term(at({})), "0.250 × (1.15 − 0.020) = +0.281");
  const words = descriptions(base, at({}));
  assert.match(words.tree, /KL 0\.020 at the start, 1\.15 after A, 0\.020 after B\. AA: q 0\.450, p 0\.120/);
  assert.match(words.parts, /Logit of q\(A\): kept −0\.101, dropped \+0\.281, sum \+0\.180\./);
  assert.match(words.curve, /now 0\.603; .*raises q\(A\).*lowers it/);
});

test("small numbers are no rows of zeros", () => {
  assert.deepEqual([0, 0.25, 0.001, 0.00048, -9.7e-6].map(short), ["0", "0.250", "0.0010", "4.8e−4", "−9.7e−6"]);
  assert.deepEqual([0, 0.1, -0.1, 7.4e-5].map(signed), ["0", "+0.100", "−0.100", "+7.4e−5"]);
});

test("probabilities are clamped and snapped, and only q(A) has names", () => {
  const from = (text) => deserialise(schema, base, text);
  assert.deepEqual(from("loss:k1,q:most,qa:least,p:token,pb:NaN"), base);
  assert.deepEqual(from("loss:k3,q:9,qa:-1,qb:0.123,p:least"), {
    ...base,
    loss: "k3",
    q: 0.98,
    qa: 0.02,
    qb: 0.12,
  });
  const state = { ...base, q: "least", pb: 0.07 };
  assert.deepEqual(from(serialise(schema, state, base)), state);
  assert.deepEqual([rangeWith(0.5).min, rangeWith(5e-4).min, rangeWith(0.99).max], [0.02, 5e-4, 0.99]);
});
