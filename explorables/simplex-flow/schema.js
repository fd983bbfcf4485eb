// The state of the figure. In the default state k3, whose mean is exactly KL(q‖p), is a penalty in
// the reward, and the policy walks away from the reference until only one token is left.

import { law, listOrWord, number, oneOf } from "../kit/state.js";
import { PENALTIES, USAGES } from "./model.js";

export const schema = {
  penalty: oneOf("k3", Object.keys(PENALTIES)),
  usage: oneOf("reward", USAGES),
  q: law([0.7, 0.2, 0.1]),
  p: law([0.4, 0.4, 0.2]),
  reward: listOrWord("none", 3, number(0, -1, 1, 0.1)),
  beta: number(0.5, 0.2, 2, 0.05),
};
