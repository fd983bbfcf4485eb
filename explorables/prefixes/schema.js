// The state of the figure. In the default state the term that a loss on tokens drops turns the sign
// of the first token's gradient.

import { number, oneOf } from "../kit/state.js";

const chance = (initial) => number(initial, 0.02, 0.98, 0.01);

/** A number's `field` that may also be one of `words`. */
const named = (field, words) => ({
  ...field,
  parse: (text) => (words.includes(text) ? text : field.parse(text)),
});

/** Each is the probability of A: first, after A, after B. */
export const schema = {
  loss: oneOf("k2", ["k2", "k3", "kl"]),
  // "token": where the loss on tokens rests. "least": where KL(Q||P) is least. Both follow the rest.
  q: named(chance(0.5), ["token", "least"]),
  qa: chance(0.9),
  qb: chance(0.4),
  p: chance(0.6),
  pa: chance(0.2),
  pb: chance(0.5),
};
