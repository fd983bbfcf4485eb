// What the figure knows, as a function of its state and without a DOM.
//
// A policy over AA, AB, BA, BB draws two tokens. It has three parameters, the logits of A: at the
// start, after A, after B. Each token's KL(q||p) belongs to the prefix before it, and
// KL(Q||P) = KL at the start + q(A) KL after A + q(B) KL after B.

/** KL between (a, 1 - a) and (b, 1 - b). */
const binaryKl = (a, b) => a * Math.log(a / b) + (1 - a) * Math.log((1 - a) / (1 - b));

const clean = (value) => (Math.abs(value) < 1e-14 ? 0 : value);
const norm = (values) => Math.hypot(...values);

/** Everything that is drawn and said. */
export function view(state) {
  const second = { a: binaryKl(state.qa, state.pa), b: binaryKl(state.qb, state.pb) };
  const least = leastKl(state.p, second);
  const q = { token: state.p, least: least.q }[state.q] ?? state.q;
  const nodes = [
    node("start", 1, q, state.p),
    node("A", q, state.qa, state.pa),
    node("B", 1 - q, state.qb, state.pb),
  ];
  const later = q * (1 - q) * (second.a - second.b);
  const parts = nodes.map((at, i) => split(at, i === 0 ? later : 0, state.loss));
  const kl = sequenceKl(q, state.p, second);
  const own = (x) => (state.loss === "k3" ? binaryKl(state.p, x) : binaryKl(x, state.p));
  return {
    q,
    nodes,
    parts,
    kl,
    leaves: leaves(nodes),
    /** KL(Q||P) when q(A) is x and the second step stays. */
    curve: (x) => sequenceKl(x, state.p, second),
    /** What the loss on tokens descends in x: its own token, with what follows held. */
    believed: (x) => kl + own(x) - own(q),
    rest: { q: state.p, kl: sequenceKl(state.p, state.p, second) },
    least,
    missed: norm(parts.map(({ sum, kept }) => sum - kept)) / norm(parts.map(({ sum }) => sum)),
  };
}

const node = (prefix, reach, q, p) => ({ prefix, reach, q, p, kl: binaryKl(q, p) });

/**
 * The gradient of KL(Q||P) with respect to one logit: kept + own + later = sum. What the loss keeps
 * is the mean of its own derivative; `own` is what that misses of the token's KL(q||p), and `later`
 * is the score of the token times the KL that follows.
 */
function split({ reach, q, p }, later, loss) {
  const exact = reach * q * (1 - q) * (Math.log(q / p) - Math.log((1 - q) / (1 - p)));
  const kept = loss === "k3" ? reach * (q - p) : exact;
  const parts = { kept, own: exact - kept, later, sum: exact + later };
  return Object.fromEntries(Object.entries(parts).map(([name, value]) => [name, clean(value)]));
}

const sequenceKl = (q, p, { a, b }) => binaryKl(q, p) + q * a + (1 - q) * b;

// With the second step held, the best first step is p(y) exp(-KL after y), normalised.
function leastKl(p, { a, b }) {
  const [weightA, weightB] = [p * Math.exp(-a), (1 - p) * Math.exp(-b)];
  return { q: weightA / (weightA + weightB), kl: -Math.log(weightA + weightB) };
}

const leaves = ([start, ...after]) =>
  after.flatMap((at, i) =>
    ["A", "B"].map((letter, j) => ({
      name: at.prefix + letter,
      q: at.reach * (j ? 1 - at.q : at.q),
      p: (i ? 1 - start.p : start.p) * (j ? 1 - at.p : at.p),
    })),
  );
