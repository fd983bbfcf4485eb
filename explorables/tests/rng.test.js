import assert from "node:assert/strict";
import { test } from "node:test";

import { Rng } from "../kit/rng.js";
import { close, fixture } from "./fixtures.js";

test("integers and uniforms agree with the Python version to the bit, normals to rounding", () => {
  for (const { seed, stream, uint32, uniform, normal } of fixture("generator")) {
    const integers = new Rng(seed, stream);
    assert.deepEqual(uint32.map(() => integers.uint32()), uint32);
    const uniforms = new Rng(seed, stream);
    assert.deepEqual(uniform.map(() => uniforms.uniform()), uniform);
    const normals = new Rng(seed, stream).normals(normal.length);
    normal.forEach((value, i) => close(normals[i], value, { relative: 1e-13, absolute: 1e-15 }));
  }
});

test("a longer run begins with the shorter one", () => {
  const short = new Rng(5, 3).normals(7);
  const long = new Rng(5, 3).normals(32);
  assert.deepEqual([...long.subarray(0, 7)], [...short]);
});

const moments = (values) => {
  const n = values.length;
  const power = (k) => values.reduce((sum, v) => sum + v ** k, 0) / n;
  return [1, 2, 3, 4].map(power);
};

// Standard errors of the first four moments of N(0, 1): 1, √2, √15, √96, over √n.
const withinSigmas = (values, sigmas) => {
  const exact = [0, 1, 0, 3];
  const errors = [1, Math.SQRT2, Math.sqrt(15), Math.sqrt(96)];
  return moments(values).every(
    (m, k) => Math.abs(m - exact[k]) <= (sigmas * errors[k]) / Math.sqrt(values.length),
  );
};

test("moments are those of a standard normal, within and across streams", () => {
  const seeds = Array.from({ length: 20 }, (_, i) => i);
  for (const seed of seeds) {
    const within = [...new Rng(seed, 0).normals(20000)];
    const across = Array.from({ length: 20000 }, (_, stream) => new Rng(seed, stream).normal());
    assert.ok(withinSigmas(within, 4.5), `stream 0 of seed ${seed}`);
    assert.ok(withinSigmas(across, 4.5), `first draws of the streams of seed ${seed}`);
    // A shift by 0.07 standard deviations must not pass.
    assert.ok(!withinSigmas(within.map((v) => v + 0.07), 4.5));
  }
});

test("neighbouring streams and seeds are uncorrelated", () => {
  const n = 4000;
  const correlation = (a, b) => a.reduce((sum, v, i) => sum + v * b[i], 0) / n;
  for (let i = 0; i < 30; i++) {
    const base = new Rng(9, i).normals(n);
    for (const other of [new Rng(9, i + 1), new Rng(10, i), new Rng(9 + i, 9)]) {
      assert.ok(Math.abs(correlation(base, other.normals(n))) < 4.5 / Math.sqrt(n));
    }
    assert.ok(correlation(base, new Rng(9, i).normals(n)) > 0.9, "the check can fail");
  }
});
