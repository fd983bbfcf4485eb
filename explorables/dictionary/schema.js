// The state of the figure. In the default state a loss whose value is KL(q||p), and never negative,
// follows KL(p||q).

import { number, oneOf } from "../kit/state.js";
import { canonical } from "./formula.js";
import { REACH } from "./fit.js";

/**
 * A formula: kept as parse and print have left it, and dropped if it is none.  In a link it has no
 * spaces, so one there was a plus sign, and semicolons for commas, which part the fields.
 */
const formula = (initial) => ({
  initial,
  parse(text) {
    const plain = String(text).replaceAll(";", ",");
    for (const spelling of [plain, plain.replaceAll(" ", "+")]) {
      try {
        return canonical(spelling);
      } catch {
        // the other one, or none
      }
    }
    return undefined;
  },
  format: (text) => text.replaceAll(" ", "").replaceAll(",", ";"),
});

export const schema = {
  formula: formula("r - 1 - l"),
  usage: oneOf("loss", ["loss", "reward", "both"]),
  l: number(1, -REACH, REACH, 0.05),
};
