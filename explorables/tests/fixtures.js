import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

export const fixture = (name) =>
  JSON.parse(
    readFileSync(new URL(`../../tests/fixtures/explorables/${name}.json`, import.meta.url), "utf8"),
  );

/** |actual − expected| <= relative * |expected| + absolute; NaN never passes. */
export function close(actual, expected, { relative = 1e-12, absolute = 0 } = {}, what = "") {
  const off = Math.abs(actual - expected);
  assert.ok(
    off <= relative * Math.abs(expected) + absolute,
    `${what}: ${actual} is not within ${relative} (+ ${absolute}) of ${expected}`,
  );
}
