import assert from "node:assert/strict";
import { test } from "node:test";

import { COMBINED, GRID, combination, some, unclamped } from "../dictionary/fit.js";
import { FormulaError, LONGEST, canonical, evaluate, parse, print, withSlope } from "../dictionary/formula.js";
import { Model } from "../dictionary/model.js";
import { EXAMPLES, descriptions, intervalsText, reading, tableRows, titles } from "../dictionary/reading.js";
import { schema } from "../dictionary/schema.js";
import { GENERATORS } from "../kit/math.js";
import { Rng } from "../kit/rng.js";
import { deserialise, initialState, serialise } from "../kit/state.js";
import { sumOf } from "../kit/terms.js";
import { close, fixture } from "./fixtures.js";

const base = initialState(schema);
const rows = fixture("formulas");
const model = new Model();
const look = (changes) => model.view({ ...base, ...changes });
const say = (changes) => reading({ ...base, ...changes }, look(changes));
const valueAt = (text, l) => evaluate(parse(text), Float64Array.of(l)).value[0];

// ---- the language -------------------------------------------------------------------------------

test("operators bind as on paper", () => {
  const { exp, log, log1p, expm1, sqrt, tanh, abs, sign, E, PI } = Math;
  for (const [text, own] of [
    ["-l^2", (l) => -(l ** 2)],
    ["(-l)^2", (l) => l ** 2],
    ["--l^2", (l) => l ** 2],
    ["2*-l^2", (l) => -2 * l ** 2],
    ["2^-l^2", (l) => 2 ** -(l ** 2)],
    ["2^3^2 - l", (l) => 512 - l],
    ["1 - l - 2", (l) => -1 - l],
    ["12/3/2*l", (l) => 2 * l],
    ["r - 1 - l", (l) => exp(l) - 1 - l],
    ["l**2/2", (l) => l ** 2 / 2],
    ["k1 + 2*k2 + 3*k3", (l) => -l + l ** 2 + 3 * (exp(l) - 1 - l)],
    ["e^l + pi", (l) => E ** l + PI],
    ["1.5e-1*l + .5", (l) => 0.15 * l + 0.5],
    ["max(l, -1, 0.25) - min(l, 1)", (l) => Math.max(l, -1, 0.25) - Math.min(l, 1)],
    ["clamp(l, -0.5, 0.5)", (l) => Math.min(Math.max(l, -0.5), 0.5)],
    ["exp(l) + log(2 + l) + sqrt(l + 3)", (l) => exp(l) + log(2 + l) + sqrt(l + 3)],
    ["expm1(l)*log1p(r)/tanh(l)", (l) => (expm1(l) * log1p(exp(l))) / tanh(l)],
    ["abs(l) - sign(l) + detach(l)", (l) => abs(l) - sign(l) + l],
    ["−l² · 2 + l³", (l) => -(l ** 2) * 2 + l ** 3],
  ]) {
    for (const l of [-1.3, -0.2, 0.4, 1.1]) close(valueAt(text, l), own(l), { relative: 1e-14, absolute: 1e-15 }, text);
  }
});

test("a formula is written as it is read", () => {
  for (const text of [
    ...["-l^2", "(-l)^2", "l - (1 - r)", "l - 1 - r", "l/(2*r)", "l/2*r", "(l + 1)^2", "-(l + 1)", "2^-l"],
    ...["(l^2)^3", "l^2^3", "--l", "l*(r/2)", "clamp(k3, -10, 10)", "max(l, 0, r)", "1e-7*l", "2*-l", "-2*l"],
  ]) {
    const once = canonical(text);
    assert.equal(canonical(once), once);
    assert.deepEqual(parse(once), parse(text));
    assert.equal(once.replaceAll(" ", ""), text.replaceAll(" ", "").replace("2*-l", "2*-l"));
  }
  assert.equal(canonical("((  l ))-( 1 )"), "l - 1");
  for (const { value } of EXAMPLES) assert.equal(canonical(value), value);
});

const HOSTILE = [
  ...["", " ", "x", "constructor", "__proto__", "toString()", "l.constructor", "l['a']", "l[0]", "this", "null"],
  ...["alert(1)", "fetch('//a.b')", "eval(1)", "import('a')", "(0,eval)(1)", "exp.call(l)", "exp(l)(l)", "l(1)"],
  ...["a => 1", "l = 2", "l; 2", "l, 2", "2l", "`${1}`", '"l"', "l ? 1 : 2", "l == 1", "l & 1", "!l", "~l"],
  ...["exp", "exp()", "exp(l, l)", "max(l)", "clamp(l)", "clamp(l, 1)", "max(l, , 1)", "()", "()l", "(l", "l)", "l +"],
  ...["negative(l)", "k3 of(l)", "1e999", "NaN", "Infinity", "<img src=x onerror=alert(1)>", "%00", "\u0000", "l\\n"],
  ...["l".repeat(LONGEST + 1), `${"(".repeat(60)}l`, "@", "#", "$", "_", "l_", "½", "é"],
];

test("what is no formula is refused, and nothing of it is run", () => {
  for (const text of HOSTILE) {
    assert.throws(() => parse(text), FormulaError, text);
    assert.equal(schema.formula.parse(text), undefined, text);
  }
  assert.throws(() => parse("l l"), /operator is missing/);
  assert.throws(() => parse("l.x"), /only numbers, names, functions/);
  assert.throws(() => parse("2l"), /operator is missing/);
  assert.throws(() => parse("exp"), /exp needs/);
  assert.throws(() => parse("max(l)"), /max takes 2 to 8, not 1/);
  assert.throws(() => parse("foo(l)"), /foo\(…\) is not known/);
  assert.throws(() => parse("l * + "), /at character/);
});

test("a link holds a formula without spaces and commas, and gives it back", () => {
  const state = { ...base, formula: canonical("clamp(k3, -10, 10) + (l - 1)^2"), usage: "both" };
  const text = serialise(schema, state, base);
  assert.equal(text, "formula:clamp(k3;-10;10)+(l-1)^2,usage:both");
  assert.deepEqual(deserialise(schema, base, text), state);
  assert.equal(serialise(schema, base, base), "");
  assert.equal(deserialise(schema, base, "formula:k2 k3-(1 l)").formula, "k2 + k3 - (1 + l)"); // k2+k3-(1+l)
  for (const { value } of EXAMPLES) {
    const one = { ...base, formula: value };
    assert.deepEqual(deserialise(schema, base, serialise(schema, one, base)), one);
  }
});

test("slopes are those of finite differences, but for what is detached", () => {
  const l = Float64Array.of(-1.31, -0.42, 0.37, 1.23);
  const step = 1e-6;
  for (const text of [
    ...["exp(l)", "expm1(l)", "log(2 + l)", "log1p(r)", "sqrt(l + 2)", "tanh(l)", "abs(l)", "sign(l)", "k1", "k2", "k3", "r"],
    ...["max(l, 0, -0.5*l)", "min(l, r/2)", "clamp(l, -1, 0.9)", "l*r/(1 + r^2)", "r^l", "(2 + l)^1.5", "-l^3 - 2", "3"],
  ]) {
    const { slope } = withSlope(parse(text), l);
    l.forEach((x, i) => {
      close(slope[i], (valueAt(text, x + step) - valueAt(text, x - step)) / (2 * step), { relative: 1e-7, absolute: 1e-8 }, text);
    });
  }
  const detached = parse("detach(k3 - k2) + k2");
  assert.deepEqual(withSlope(detached, l).slope, l);
  close(withSlope(detached, l, { through: true }).slope[3], Math.expm1(l[3]), { relative: 1e-14 });
  // A bound belongs to what it bounds, whichever way it is written.
  for (const text of ["clamp(l, -2, 2)", "max(min(l, 2), -2)"]) {
    assert.deepEqual([...withSlope(parse(text), Float64Array.of(-2.5, -2, 2, 2.5)).slope], [0, 1, 1, 0], text);
  }
});

// ---- the dictionary -----------------------------------------------------------------------------

const sameTerms = (ours, theirs, what) => {
  assert.deepEqual(Object.keys(ours).sort(), Object.keys(theirs).sort(), what);
  for (const [name, value] of Object.entries(theirs)) close(ours[name], value, { relative: 1e-9 }, `${what} ${name}`);
};
/** The audit looks closer at the ends than the grid's spacing. */
const sameRegion = ({ low, high }, theirs, what) => {
  close(low, theirs[0], { relative: 0, absolute: 2 ** -11 }, what);
  close(high, theirs[1], { relative: 0, absolute: 2 ** -11 }, what);
};

test("kllab says the same of every formula, also of those in no table", () => {
  assert.ok(rows.length >= 60);
  assert.ok(rows.filter(({ verdict }) => verdict === "unknown").length > 20);
  for (const row of rows) {
    const what = `${row.formula} as ${row.usage}`;
    const { parts, isConvex, curve, tokens } = look({ formula: row.formula, usage: row.usage });
    assert.equal(parts.gradient.verdict, row.verdict, what);
    sameTerms(parts.gradient.terms, row.terms, what);
    assert.deepEqual([parts.gradient.region.low, parts.gradient.region.high], row.region, what);
    assert.equal(isConvex, row.convex, what);
    row.gradient.forEach((value, i) => close(tokens.gradient[i], value, { relative: 1e-11, absolute: 1e-13 }, what));

    assert.equal(parts.value.verdict, row.value.verdict, `value of ${what}`);
    sameTerms(parts.value.terms, row.value.terms, `value of ${what}`);
    sameRegion(parts.value.region, row.value.region, `value of ${what}`);
    close(tokens.mean, row.value.mean, { relative: 1e-12 }, what);
    if (parts.value.verdict !== "unknown") {
      close(parts.value.free.constant, row.value.constant, { relative: 1e-10, absolute: 1e-12 }, what);
    }
    if (row.f) sameGenerator(curve.f, row.f, what);
  }
});

/** Up to c (r - 1), which changes no divergence. */
function sameGenerator(f, theirs, what) {
  const points = [-2, -0.5, 0.25, 1.25];
  const off = points.map((l, i) => f[GRID.indexOf(l)] - theirs[i]);
  const c = off[3] / Math.expm1(1.25);
  // Where the weight jumps, the trapezia are off by half a step of it.
  const absolute = what.includes("clamp") ? 2e-4 : 1e-6;
  points.forEach((l, i) => close(off[i], c * Math.expm1(l), { relative: 0, absolute }, `f of ${what} at ${l}`));
}

test("f is the generator of the terms, less its tangent", () => {
  for (const { formula, usage, verdict, terms } of rows) {
    if (verdict !== "fits") continue;
    const { curve, parts } = look({ formula, usage });
    for (const l of [-2, -0.5, 0.25, 1.25]) {
      if (l < parts.gradient.region.low || l > parts.gradient.region.high) continue;
      const gap = Object.entries(terms).reduce((sum, [name, value]) => {
        const { f, slope } = GENERATORS[name];
        return sum + value * (f(l) - slope * Math.expm1(l));
      }, 0);
      close(curve.f[GRID.indexOf(l)], gap, { relative: 1e-5, absolute: 1e-6 }, `${formula} ${usage} at ${l}`);
    }
  }
});

// By hand: a loss that follows each divergence once, up to what changes nothing.
const LOSSES = {
  kl_qp: "l^2/2",
  kl_pq: "r - l",
  chi2_qp: "2*exp(-l) + 2*l",
  chi2_pq: "r^2/2 - l",
  tv: "abs(l)/2",
  hellinger2: "2*sqrt(r) - l",
};

test("random sums of one to three divergences are found again", () => {
  const rng = new Rng(7);
  for (let trial = 0; trial < 30; trial++) {
    const names = [...COMBINED];
    while (names.length > 1 + (trial % 3)) names.splice(Math.floor(rng.uniform() * names.length), 1);
    const terms = Object.fromEntries(
      names.map((name) => [name, Number(((rng.uniform() < 0.3 ? -1 : 1) * (0.1 + 3 * rng.uniform())).toFixed(3))]),
    );
    const sum = names.map((name) => `(${terms[name]})*(${LOSSES[name]})`).join(" + ");
    const { parts } = look({ formula: `${sum} + ${(4 * rng.uniform() - 2).toFixed(3)}*l + 1` });
    assert.equal(parts.gradient.verdict, "fits", sum);
    sameTerms(parts.gradient.terms, terms, sum);
  }
});

test("a random smooth weight fits nothing", () => {
  const rng = new Rng(11);
  const region = unclamped({ slope: Float64Array.from(GRID, () => 1) });
  const l = Float64Array.from(some(region), (i) => GRID[i]);
  for (let trial = 0; trial < 50; trial++) {
    const waves = Array.from({ length: 4 }, () => [2 * rng.uniform() - 1, 2 * rng.uniform(), 6 * rng.uniform()]);
    const y = l.map((x) => waves.reduce((sum, [size, rate, shift]) => sum + size * Math.sin(rate * x + shift), 0));
    assert.equal(combination("weight", l, y).verdict, "unknown");
    const falls = y.map((v, i) => Math.exp(l[i]) + 1e-4 * v); // nearly kl_pq is not kl_pq
    assert.equal(combination("weight", l, falls).verdict, "unknown");
  }
});

test("the default state makes the chapter's point", () => {
  const { parts, below, isConvex, tokens, sample } = look({});
  assert.deepEqual(parts.value.terms, { kl_qp: 1 });
  assert.deepEqual(below, []);
  assert.deepEqual(parts.gradient.terms, { kl_pq: 1 });
  assert.ok(isConvex);
  close(sample.value, Math.E - 2, { relative: 1e-15 });
  close(sample.weight, 1 - Math.E, { relative: 1e-15 });
  [0.3, -0.2, -0.1].forEach((value, i) => close(tokens.gradient[i], value, { relative: 1e-13 })); // q − p
  const kl = 0.7 * Math.log(7 / 4) - 0.3 * Math.log(2);
  close(tokens.kl, kl, { relative: 1e-14 });
  close(tokens.klGradient[0], 0.7 * (Math.log(7 / 4) - kl), { relative: 1e-13 });
});

test("where a value is below 0, and where it is flat", () => {
  const ends = (intervals, expected, what) => {
    assert.equal(intervals.length, expected.length, what);
    intervals.forEach((interval, i) =>
      interval.forEach((end, k) => {
        if (Number.isFinite(expected[i][k])) close(end, expected[i][k], { relative: 0, absolute: 1e-6 }, what);
        else assert.equal(end, expected[i][k], what);
      }),
    );
  };
  const at = (formula) => look({ formula });
  ends(at("-l").below, [[0, Infinity]], "k1");
  ends(at("abs(l) - 1").below, [[-1, 1]], "|l| − 1");
  ends(at("l^2 - 1").flats.value, [], "a parabola");
  ends(at("max(abs(l) - 1, 0)").flats.value, [[-1, 1]], "a dead zone");
  ends(at("max(l, 0)").flats.value, [[-Infinity, 0]], "one side");
  const high = 2.6108684; // e^l − 1 − l = 10
  assert.ok(Math.abs(Math.exp(high) - 1 - high - 10) < 1e-5);
  const { flats } = at("clamp(k3, -10, 10)");
  for (const intervals of Object.values(flats)) {
    assert.equal(intervalsText(intervals), "below −11 and above 2.61");
    close(intervals[1][0], high, { relative: 0, absolute: 1e-5 });
  }
  // Autograd does not see what is detached; the value does.
  const straight = look({ formula: "detach(clamp(k3, 0, 2) - k2) + k2" }).flats;
  assert.equal(straight.value.length, 2);
  assert.equal(straight.gradient.length, 0);
  assert.equal(intervalsText(at("detach(k3)").flats.gradient), "everywhere");
  // Rounding is not below 0.
  for (const formula of ["r - 1 - l", "1e6*(r - 1 - l)", "exp(-l) - 1 + l"]) assert.deepEqual(at(formula).below, [], formula);
});

// ---- words --------------------------------------------------------------------------------------

test("the sentence says what matters in each case", () => {
  assert.match(say({}), /^Its mean is KL\(q‖p\), and no sample is below 0\. As a loss it follows KL\(p‖q\)\. A sample with log r = 1 is worth 0\.718, and its score has the weight −1\.72, against −1\.00/);
  assert.match(say({ usage: "reward" }), /follows KL\(q‖p\) − KL\(p‖q\), which is no divergence: f is not convex/);
  assert.match(say({ usage: "both" }), /As both, loss and reward, it follows KL\(q‖p\)\./);
  assert.match(say({ formula: "-l" }), /but a sample is below 0 where log r is above 0\. As a loss it follows nothing: every score has the weight 1, pure noise/);
  assert.match(say({ formula: "detach(k3)" }), /follows nothing: no sample pushes/);
  assert.match(say({ formula: "abs(l)" }), /mean is no sum of known divergences, and no sample is below 0\. As a loss it follows 2 TV\(q, p\)\./);
  assert.match(say({ formula: "sqrt(1 + l^2) - 1" }), /follows a divergence without a name: f is convex/);
  assert.match(say({ formula: "l^2/2", usage: "reward" }), /follows no divergence: f is not convex/);
  assert.match(say({ formula: "clamp(k3, -10, 10)" }), /That holds for log r from −3 to 2\.61; beyond, it is clamped/);
  assert.match(say({ formula: "clamp(l, -0.5, 0.5)" }), /is cut to 1 nats around log r = 0, too few to tell/);
  assert.match(say({ formula: "log(l)", l: -1 }), /not finite everywhere near log r = 0.*At log r = −1 it has no finite value/);
  assert.match(say({ formula: "2*(r - 1) + 3", usage: "both" }), /mean is 3 for every pair: it measures nothing/);
  assert.match(say({ formula: "-l - 100" }), /KL\(q‖p\) − 100, but a sample is below 0 where it has any value/);
  for (const { formula, usage } of rows) {
    const text = `${say({ formula, usage })} ${JSON.stringify(tableRows(look({ formula, usage })))}`;
    assert.doesNotMatch(text, /NaN|undefined|Infinity|∞|−0\.000|\b1 KL/, formula);
  }
});

test("the table, the titles and the pictures in words", () => {
  const cells = (changes) => Object.fromEntries(tableRows(look(changes)).map(({ name, cells: texts }) => [name, texts]));
  assert.deepEqual(cells({}), {
    target: ["KL(q‖p)", "KL(p‖q)"],
    "fitted for log r": ["−3 to 3", "−3 to 3"],
    flat: ["nowhere", "nowhere"],
    "below 0": ["nowhere", "–"],
    "f convex": ["–", "yes"],
    "three tokens": ["0.184", "0.300, −0.200, −0.100"],
    "KL(q‖p) there": ["0.184", "0.263, −0.175, −0.088"],
  });
  assert.deepEqual(cells({ formula: "-l" })["three tokens"], ["0.184", "0.000, 0.000, 0.000"]);
  assert.deepEqual(cells({ formula: "-l" })["f convex"], ["–", "–"]);
  assert.deepEqual(cells({ formula: "log(l)" })["three tokens"][0], "–");
  assert.deepEqual(titles(look({})), { value: "with mean KL(q‖p)", weight: "follows KL(p‖q)", f: "convex" });
  assert.deepEqual(titles(look({ formula: "abs(l)", usage: "reward" })), {
    value: "of unknown mean",
    weight: "in no table",
    f: "not convex: no divergence",
  });
  const words = descriptions(base, look({}));
  assert.match(words.value, /0\.368 at log r = −1, 0\.718 at log r = 1/);
  assert.match(words.weight, /^The weight on the score, −h′ .*: 0\.632 at log r = −1, −1\.72 at log r = 1/);
  assert.match(words.f, /it is convex/);
});

test("sums and intervals as text", () => {
  assert.equal(sumOf({ kl_pq: -1, kl_qp: 1 }), "KL(q‖p) − KL(p‖q)");
  assert.equal(sumOf({ chi2_qp: 0.5, tv: 2, kl_qp: -0.25 }), "½ χ²(q‖p) + 2 TV(q, p) − 0.25 KL(q‖p)");
  assert.equal(sumOf({ kl_qp: -1 }), "−KL(q‖p)");
  assert.equal(intervalsText([]), "nowhere");
  assert.equal(intervalsText([[-Infinity, Infinity]]), "everywhere");
  assert.equal(intervalsText([[-Infinity, -1.5], [0.251, 2], [3, Infinity]]), "below −1.5, 0.25 to 2, …");
});
