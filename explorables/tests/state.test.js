import assert from "node:assert/strict";
import { test } from "node:test";

import { deepLink, readQuery, writeQuery } from "../kit/link.js";
import { deserialise, fromAttributes, initialState, serialise, withValues } from "../kit/state.js";
import { schema as tangentSchema } from "../tangent-line/schema.js";
import { schema } from "../two-gaussians/schema.js";

const base = initialState(schema);
const read = (text) => deserialise(schema, base, text);
const roundTrip = (state) => {
  const search = writeQuery("", "fig", serialise(schema, state, base));
  return deserialise(schema, base, readQuery(search, "fig") ?? "");
};

test("a state survives the link, and the default needs none", () => {
  const state = { mean: -1.35, scale: 1.5, n: 256, seed: 4294967295, runs: 1000, show: ["k1", "k3"] };
  assert.deepEqual(roundTrip(state), state);
  assert.equal(serialise(schema, base, base), "");
  assert.deepEqual(roundTrip(base), base);
});

test("only what differs is written", () => {
  assert.equal(serialise(schema, { ...base, mean: 1, n: 4 }, base), "mean:1,n:4");
});

const hostile = [
  "",
  ":",
  ",,,",
  "mean:",
  "mean:NaN",
  "mean:Infinity",
  "mean:1e999",
  "mean:<script>alert(1)</script>",
  "mean:0x10zz",
  "n:0",
  "n:-8",
  "n:abc",
  "show:",
  "show:k9",
  "show:constructor",
  "__proto__:1",
  "constructor:1",
  "toString:1",
  "mean",
  "a".repeat(1e6),
];

for (const text of hostile) {
  test(`a link saying ${JSON.stringify(text.slice(0, 40))} changes nothing`, () => {
    assert.deepEqual(read(text), base);
  });
}

test("values out of range are clamped and snapped", () => {
  assert.equal(read("mean:99").mean, 2.5);
  assert.equal(read("mean:-1e9").mean, -2.5);
  assert.equal(read("mean:0.123456").mean, 0.1);
  assert.equal(read("scale:0").scale, 0.4);
  assert.equal(read("n:1000000").n, 1024);
  assert.equal(read("n:0.001").n, 1);
  assert.equal(read("n:100").n, 128);
  assert.equal(read("runs:12.6").runs, 13);
  assert.equal(read("runs:1e9").runs, 1000);
  assert.equal(read("seed:-4").seed, 0);
  assert.deepEqual(read("show:k3+k1").show, ["k1", "k3"]);
  assert.deepEqual(read("show:k3 k1 k1").show, ["k1", "k3"]);
});

test("nothing reaches the prototype", () => {
  const state = withValues(schema, base, [["__proto__", "1"], ["hasOwnProperty", "1"]]);
  assert.deepEqual(Object.keys(state), Object.keys(base));
  assert.equal({}.mean, undefined);
});

test("attributes set the base, and bad ones leave the default", () => {
  const element = { getAttribute: (name) => ({ mean: "1", n: "none", show: "k2" })[name] ?? null };
  assert.deepEqual(fromAttributes(schema, element), { ...base, mean: 1, show: ["k2"] });
});

test("what a link asks for in vain is told, by field", () => {
  const refused = [];
  const text = "n:none,mean:1,show:k9,nobody:1,runs";
  const state = deserialise(schema, base, text, (...pair) => refused.push(pair));
  assert.deepEqual(state, { ...base, mean: 1 });
  assert.deepEqual(refused, [["n", "none"], ["show", "k9"]]);
});

test("a figure's parameter leaves the others alone", () => {
  const search = "?q=a%20b&fig-2=n:4&highlight=%E0%A4%A";
  assert.equal(writeQuery(search, "fig", "mean:1"), `${search}&fig=mean:1`);
  assert.equal(writeQuery("?fig=mean:1&fig-2=n:4", "fig", ""), "?fig-2=n:4");
  assert.equal(writeQuery("?fig=mean:1", "fig", ""), "");
  assert.equal(readQuery("?fig-2=n:4&fig=mean%3A1", "fig"), "mean:1");
  assert.equal(readQuery(writeQuery("", "fig", "show:k1+k3"), "fig"), "show:k1+k3");
});

test("a deep link opens the page at the figure", () => {
  assert.equal(
    deepLink("https://example.org/book/02.html?x=1#intro", "fig", "n:4"),
    "https://example.org/book/02.html?x=1&fig=n:4#fig",
  );
  assert.equal(deepLink("https://example.org/02.html", "fig", ""), "https://example.org/02.html#fig");
  assert.equal(deepLink("file:///books/02.html", "fig", "n:4"), "file:///books/02.html?fig=n:4#fig");
});

test("a value may be a word or a number, and one of a list", () => {
  const initial = initialState(tangentSchema);
  const from = (text) => deserialise(tangentSchema, initial, text);
  assert.equal(from("lambda:best").lambda, "best");
  assert.equal(from("lambda:-0.5820001").lambda, -0.582);
  assert.equal(from("lambda:1e9").lambda, 1e5);
  assert.equal(from("f:js").f, "js");
  for (const text of ["lambda:worst", "lambda:", "lambda:NaN", "lambda:Infinity", "f:kl", "f:toString", "f:"]) {
    assert.deepEqual(from(text), initial, text);
  }
  const state = { ...initial, f: "chi2_pq", lambda: -0.00012345 };
  assert.deepEqual(from(serialise(tangentSchema, state, initial)), state);
});
