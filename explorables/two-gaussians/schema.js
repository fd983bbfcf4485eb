// The state of the figure. In the default state k1 is below zero in one run of ten, k2 is a third
// too high, and k3 is neither, with half of k1's spread.

import { ESTIMATORS } from "../kit/math.js";
import { number, powerOfTwo, subset } from "../kit/state.js";

export const MOST_RUNS = 1000;

export const schema = {
  mean: number(0.6, -2.5, 2.5, 0.05),
  scale: number(0.9, 0.4, 2, 0.05),
  n: powerOfTwo(16, 1024),
  seed: number(1, 0, 4294967295, 1),
  runs: number(200, 0, MOST_RUNS, 1),
  show: subset(ESTIMATORS, ESTIMATORS),
};
