// A formula in l = log r: read, written out, and evaluated with its derivative.
//
// A formula may come from a stranger's link.  jsep makes a tree of it; only numbers, names and
// functions of the tables below are taken out of that tree, and everything else is an error.  A tree
// here is a number, a name, or { op, args } with an op of OPERATIONS.

import { Jsep } from "jsep";

import { k3 } from "../kit/math.js";

export const LONGEST = 120; // characters

// ---- what a formula may hold ------------------------------------------------------------------

// Each operation's value, and its slopes by each argument x, given the value y.
const OPERATIONS = new Map([
  ["+", [(a, b) => a + b, () => 1, () => 1]],
  ["-", [(a, b) => a - b, () => 1, () => -1]],
  ["*", [(a, b) => a * b, (a, b) => b, (a) => a]],
  ["/", [(a, b) => a / b, (a, b) => 1 / b, (a, b, y) => -y / b]],
  ["^", [(a, b) => a ** b, (a, b) => b * a ** (b - 1), (a, b, y) => y * Math.log(a)]],
  ["negative", [(x) => -x, () => -1]],
  ["exp", [Math.exp, (x, y) => y]],
  ["expm1", [Math.expm1, (x) => Math.exp(x)]],
  ["log", [Math.log, (x) => 1 / x]],
  ["log1p", [Math.log1p, (x) => 1 / (1 + x)]],
  ["sqrt", [Math.sqrt, (x, y) => 0.5 / y]],
  ["tanh", [Math.tanh, (x) => Math.cosh(x) ** -2]],
  ["abs", [Math.abs, Math.sign]],
  ["sign", [Math.sign, () => 0]],
  // Where both are equal the first one counts, so that a bound belongs to what it bounds.
  ["max", [(a, b) => (a >= b ? a : b), (a, b) => (a >= b ? 1 : 0), (a, b) => (a >= b ? 0 : 1)]],
  ["min", [(a, b) => (a <= b ? a : b), (a, b) => (a <= b ? 1 : 0), (a, b) => (a <= b ? 0 : 1)]],
  ["k3 of", [k3, Math.expm1]],
  ["detach", [(x) => x, () => 0]],
]);
const BINARY = new Set(["+", "-", "*", "/", "^"]);
const FUNCTIONS = new Map([
  ...["exp", "expm1", "log", "log1p", "sqrt", "tanh", "abs", "sign", "detach"].map((name) => [name, [1, 1]]),
  ...["max", "min"].map((name) => [name, [2, 8]]),
  ["clamp", [3, 3]],
]);
const call = (op, ...args) => ({ op, args });
const NAMES = new Map([
  ["l", "l"],
  ["r", call("exp", "l")],
  ["k1", call("negative", "l")],
  ["k2", call("/", call("^", "l", 2), 2)],
  ["k3", call("k3 of", "l")],
  ["e", Math.E],
  ["pi", Math.PI],
]);
export const VOCABULARY = `${[...NAMES.keys()].join(", ")}; + - * / ^; ${[...FUNCTIONS.keys()].join(", ")}`;

// ---- reading ----------------------------------------------------------------------------------

Jsep.removeAllBinaryOps().removeAllUnaryOps().removeAllLiterals();
for (const op of "+-") Jsep.addUnaryOp(op).addBinaryOp(op, 1);
for (const op of "*/") Jsep.addBinaryOp(op, 2);
for (const op of ["^", "**"]) Jsep.addBinaryOp(op, 3, true);
// A group is kept as a node: jsep reads −x² as (−x)², and that is undone unless it was written.
Jsep.hooks.add("gobble-token", function group(env) {
  if (this.code !== Jsep.OPAREN_CODE) return;
  const inside = this.gobbleGroup();
  if (!inside) this.throwError("Nothing between ( and )");
  env.node = { type: "Group", inside };
});

export class FormulaError extends Error {}

const LOOKALIKES = new Map([..."−–·×⋅÷²³"].map((sign, i) => [sign, ["-", "-", "*", "*", "*", "/", "^2", "^3"][i]]));

/** The tree of a formula; a FormulaError says what is wrong with it. */
export function parse(text) {
  const plain = [...String(text)].map((sign) => LOOKALIKES.get(sign) ?? sign).join("");
  if (plain.trim() === "") throw new FormulaError("type a formula in l, such as r - 1 - l");
  if (plain.length > LONGEST) throw new FormulaError(`at most ${LONGEST} characters`);
  let tree;
  try {
    tree = Jsep.parse(plain);
  } catch (error) {
    const { description = "not a formula", index = 0 } = error;
    const what = description.startsWith("Variable names") ? "an operator is missing" : description;
    throw new FormulaError(`${what}, at character ${index + 1}`);
  }
  const take = (node) => {
    const { type } = node;
    if (type === "Group") return take(node.inside);
    if (type === "Literal" && Number.isFinite(node.value)) return node.value;
    if (type === "Identifier") {
      if (NAMES.has(node.name)) return node.name;
      throw new FormulaError(FUNCTIONS.has(node.name) ? `${node.name} needs (…)` : `${node.name} is not known`);
    }
    if (type === "UnaryExpression") {
      const inner = take(node.argument);
      return node.operator === "-" ? call("negative", inner) : inner;
    }
    if (type === "BinaryExpression") {
      const { left, right } = node;
      const op = node.operator === "**" ? "^" : node.operator;
      if (op === "^" && left.type === "UnaryExpression") {
        return take({ ...left, argument: { ...node, left: left.argument } });
      }
      return call(op, take(left), take(right));
    }
    if (type === "CallExpression" && node.callee.type === "Identifier") {
      const { name } = node.callee;
      if (!FUNCTIONS.has(name)) throw new FormulaError(`${name}(…) is not known`);
      const [least, most] = FUNCTIONS.get(name);
      const { length } = node.arguments;
      if (length < least || length > most) {
        throw new FormulaError(`${name} takes ${least === most ? least : `${least} to ${most}`}, not ${length}`);
      }
      return call(name, ...node.arguments.map(take));
    }
    const what = type === "Compound" ? "an operator is missing" : "only numbers, names, functions and + - * / ^";
    throw new FormulaError(what);
  };
  return take(tree);
}

// ---- writing ----------------------------------------------------------------------------------

const STRENGTH = { "+": 1, "-": 1, "*": 2, "/": 2, negative: 2.5, "^": 3 };
const strength = (tree) => STRENGTH[tree.op] ?? 4;

/** The formula as text, with no more brackets than it needs; parse(print(tree)) is the tree again. */
export function print(tree) {
  if (typeof tree !== "object") return String(tree);
  const { op, args } = tree;
  const inner = (arg, least) => (strength(arg) < least ? `(${print(arg)})` : print(arg));
  if (op === "negative") return `-${inner(args[0], 2.5)}`;
  if (!BINARY.has(op)) return `${op}(${args.map(print).join(", ")})`;
  const own = STRENGTH[op];
  const [left, right] = args;
  if (op === "^") return `${inner(left, 3.5)}^${inner(right, 2.5)}`;
  const gap = own === 1 ? " " : "";
  return `${inner(left, own)}${gap}${op}${gap}${inner(right, own + 0.25)}`;
}

/** The formula in the form that links and states hold. */
export const canonical = (text) => print(parse(text));

// ---- evaluating -------------------------------------------------------------------------------

/**
 * Values and derivatives by l of a tree at many l: { value, slope }, Float64Arrays.  As in autograd,
 * what is in detach(…) has no slope, unless `through` is set.
 */
export function evaluate(tree, l, { through = false } = {}) {
  if (tree === "l") return { value: l, slope: new Float64Array(l.length).fill(1) };
  if (typeof tree === "number") return { value: new Float64Array(l.length).fill(tree), slope: null };
  if (typeof tree === "string") return evaluate(NAMES.get(tree), l, { through });
  const { op, args } = tree;
  if (op === "clamp") {
    const [x, low, high] = args;
    return evaluate(call("min", call("max", x, low), high), l, { through });
  }
  if (args.length > 2) {
    return evaluate(call(op, call(op, ...args.slice(0, -1)), args.at(-1)), l, { through });
  }
  const parts = args.map((arg) => evaluate(arg, l, { through }));
  const [fn, ...slopes] = OPERATIONS.get(op);
  const [{ value: a }, { value: b } = { value: a }] = parts;
  const value = new Float64Array(l.length);
  for (let i = 0; i < l.length; i++) value[i] = parts.length === 1 ? fn(a[i]) : fn(a[i], b[i]);
  let slope = null; // none: a constant
  if (op === "detach") return { value, slope: through ? parts[0].slope : null };
  parts.forEach((part, k) => {
    if (!part.slope) return;
    slope ??= new Float64Array(l.length);
    for (let i = 0; i < l.length; i++) {
      const by = parts.length === 1 ? slopes[0](a[i], value[i]) : slopes[k](a[i], b[i], value[i]);
      slope[i] += by * part.slope[i];
    }
  });
  return { value, slope };
}

/** The same with a slope of 0 instead of none. */
export function withSlope(tree, l, options) {
  const { value, slope } = evaluate(tree, l, options);
  return { value, slope: slope ?? new Float64Array(l.length) };
}
