// The state of the figure. In the default state 95 % of k3's variance comes from ranks that q draws
// once in a thousand samples, and one token carries 44 % of the batch.

import { number, powerOfTwo } from "../kit/state.js";

export const schema = {
  temperature: number(0.6, 0.5, 1.5, 0.05),
  top: number(1, 0.5, 1, 0.01),
  noise: number(0.3, 0, 1, 0.05),
  n: powerOfTwo(64, 4096),
  seed: number(1, 0, 4294967295, 1),
  sample: number(1, 1, 9999, 1),
};
