// The state of the figure. In the default state the line is the tangent, so no sample is below
// zero, and lambda* still has 42 % less variance.

import { GENERATORS } from "../kit/math.js";
import { number, oneOf, wordOrNumber } from "../kit/state.js";

export const schema = {
  f: oneOf("kl_qp", Object.keys(GENERATORS)),
  mean: number(1, 0.1, 2, 0.05),
  // "tangent" and "best" stay what they are when f or the mean changes.
  lambda: wordOrNumber("tangent", ["tangent", "best"], 1e5),
  r: number(2.5, 0.05, 4, 0.05),
  seed: number(1, 0, 4294967295, 1),
};
