// The result in words.

import { nats, percent, twoDigits } from "../kit/format.js";

export const LOSSES = {
  k2: "k2 of each token",
  k3: "k3 of each token",
  kl: "exact KL(q‖p) of each token",
};

const SUBJECTS = { k2: "k2", k3: "k3", kl: "the exact KL(q‖p)" };

/** Three significant digits, and a power of ten where a number would be a row of zeros. */
export const short = (value) => {
  if (value === 0 || Math.abs(value) >= 0.001) return nats(value);
  return value.toExponential(1).replaceAll("-", "−");
};

/** A number that always carries its sign. */
export const signed = (value) => (value > 0 ? `+${short(value)}` : short(value));

/** q(A) in two digits, or three significant ones where it has a name and lies between them. */
export const chanceText = (value) =>
  Math.abs(100 * value - Math.round(100 * value)) < 1e-9 ? twoDigits(value) : short(value);

const direction = (gradient, what) =>
  `${gradient === 0 ? "leaves" : gradient < 0 ? "raises" : "lowers"} ${what}`;
const move = (gradient) => direction(gradient, "q(A)");

/** The dropped term of the first token, with its numbers. */
export function term({ q, nodes: [, a, b], parts: [first] }) {
  return `${short(q * (1 - q))} × (${nats(a.kl)} − ${nats(b.kl)}) = ${signed(first.later)}`;
}

function firstToken({ loss }, { parts: [first], nodes }) {
  if (nodes.every(({ kl }) => kl === 0)) return "q is p: nothing pushes anywhere.";
  const kept = first.kept
    ? `has gradient ${signed(first.kept)} at the first token, so descent ${move(first.kept)}`
    : "pushes the first token nowhere";
  const dropped = first.later
    ? `It drops the score of that token times the KL that follows, ${signed(first.later)}`
    : "Nothing that follows is dropped, since what follows A costs as much as what follows B";
  const own = first.own
    ? `; and as k3 follows KL(p‖q), it leaves out ${signed(first.own)} of the token’s own part`
    : "";
  return (
    `Summed over tokens, ${SUBJECTS[loss]} as a loss ${kept}. ${dropped}${own}. ` +
    `The gradient of KL(Q‖P) is ${signed(first.sum)}: ${verdict(first)}.`
  );
}

function verdict({ kept, later, own, sum }) {
  if (sum === 0) return kept ? "KL(Q‖P) is least here, and the loss on tokens moves away" : "both rest here";
  if (kept * sum < 0) return `${own ? "what is missing" : "the dropped term"} turns the sign, and descent ${move(sum)}`;
  if (kept === 0) return `descent ${move(sum)}`;
  if (later === 0 && own === 0) return "the two agree";
  return `the loss on tokens has ${percent(kept / sum)} of it`;
}

/** The state's result as text for everybody. */
export function reading(state, view) {
  const { kl, rest, least, missed } = view;
  const ends =
    `KL(Q‖P) is ${nats(kl)}. With the second step held, the loss on tokens rests at ` +
    `q(A) = p(A) = ${chanceText(rest.q)}, where KL(Q‖P) is ${nats(rest.kl)}; the least is ` +
    `${nats(least.kl)}, at q(A) = ${chanceText(least.q)}.`;
  const all = Number.isFinite(missed)
    ? ` Over the three logits, what is missing is ${nats(missed)} times as long as the gradient.`
    : "";
  return `${firstToken(state, view)} ${ends}${all}`;
}

export const COLUMNS = ["kept", "own", "later", "∇KL(Q‖P)"];
export const COMPONENTS = ["q(A)", "q(A|A)", "q(A|B)"];

/** The rows of the table, as text. */
export const tableRows = ({ parts }) =>
  parts.map(({ kept, own, later, sum }, i) => ({
    name: COMPONENTS[i],
    cells: [kept, own, later, sum].map(signed),
  }));

/** The pictures in words, for readers who do not see them. */
export function descriptions(state, { nodes, parts, kl, leaves }) {
  const [start, a, b] = nodes;
  return {
    tree:
      `The tree: KL ${nats(start.kl)} at the start, ${nats(a.kl)} after A, ${nats(b.kl)} after B. ` +
      `${leaves.map(({ name, q, p }) => `${name}: q ${short(q)}, p ${short(p)}`).join("; ")}.`,
    parts: parts
      .map(
        ({ kept, own, later, sum }, i) =>
          `Logit of ${COMPONENTS[i]}: kept ${signed(kept)}, dropped ${signed(own + later)}, ` +
          `sum ${signed(sum)}.`,
      )
      .join(" "),
    curve:
      `KL(Q‖P) against q(A), now ${nats(kl)}; descent of the loss on tokens, ` +
      `${LOSSES[state.loss]}, ${direction(parts[0].kept, "q(A)")}, ` +
      `and descent of KL(Q‖P) ${direction(parts[0].sum, "it")}.`,
  };
}
