// The result in words.

import { coefficient, fixed, nats } from "../kit/format.js";
import { sumOf } from "../kit/terms.js";
import { REACH } from "./fit.js";
import { canonical } from "./formula.js";

export const EXAMPLES = [
  ["k1, the plain log-ratio", "-l"],
  ["k2, half its square", "l^2/2"],
  ["k3", "r - 1 - l"],
  ["|log r|", "abs(l)"],
  ["k3 with the ratio upside down", "exp(-l) - 1 + l"],
  ["k3 cut to ±10", "clamp(k3, -10, 10)"],
  ["k3 with the gradient of k2", "detach(k3 - k2) + k2"],
  ["k2 and k3, mixed", "(k2 + k3)/2"],
  ["a rounded |log r|", "sqrt(1 + l^2) - 1"],
].map(([text, formula]) => ({ text: `${text}: ${formula.replaceAll("-", "−")}`, value: canonical(formula) }));

export const WEIGHT = { loss: "−h′", reward: "h", both: "h − h′" };
export const PLACE = { loss: "as loss", reward: "as reward", both: "as both" };

const short = (value) => coefficient(Number(value.toFixed(2)));
const terms = (part) => sumOf(part.terms, coefficient);

/** { 3, Infinity } … as text: "above 3"; `every` where it is all of the line. */
export function intervalsText(intervals, every = "everywhere") {
  if (intervals.length === 0) return "nowhere";
  const one = ([from, to]) => {
    if (from === -Infinity && to === Infinity) return every;
    if (from === -Infinity) return `below ${short(to)}`;
    if (to === Infinity) return `above ${short(from)}`;
    return `${short(from)} to ${short(to)}`;
  };
  const shown = intervals.slice(0, 2).map(one);
  return intervals.length > 2 ? `${shown.join(", ")}, …` : shown.join(" and ");
}

const constant = ({ free }) => (Math.abs(free.constant ?? 0) > 1e-9 ? free.constant : 0);

/** What a value is, in few words. */
function valueName(part) {
  if (part.verdict === "unknown") return "unknown";
  const added = constant(part);
  if (part.verdict === "zero") return coefficient(added);
  return `${terms(part)}${added ? ` ${added < 0 ? "−" : "+"} ${coefficient(Math.abs(added))}` : ""}`;
}

const gradientName = (part) => (part.verdict === "fits" ? terms(part) : part.verdict === "zero" ? "nothing" : "unknown");

/** What stands beside the panels' titles. */
export function titles({ parts: { value, gradient }, isConvex }) {
  const follows = gradientName(gradient);
  const convex = gradient.verdict === "zero" ? "constant" : isConvex ? "convex" : "not convex: no divergence";
  return {
    value: value.verdict === "unknown" ? "of unknown mean" : `with mean ${valueName(value)}`,
    weight: follows === "unknown" ? "in no table" : `follows ${follows}`,
    f: gradient.why === "undefined" ? "" : convex,
  };
}

const WHY = {
  narrow: ({ region }) => `is cut to ${short(region.high - region.low)} nats around log r = 0, too few to tell`,
  undefined: () => "is not finite everywhere near log r = 0",
};

function valueWords({ parts, below }) {
  const { value } = parts;
  const sign =
    below.length === 0
      ? "no sample is below 0"
      : `a sample is below 0 where log r is ${intervalsText(below, "anything")}`.replace("log r is anything", "it has any value");
  if (WHY[value.why]) return `The value ${WHY[value.why](value)}.`;
  if (value.verdict === "zero") return `Its mean is ${valueName(value)} for every pair: it measures nothing.`;
  const join = below.length === 0 ? "and" : "but";
  if (value.verdict === "unknown") return `Its mean is no sum of known divergences, ${join} ${sign}.`;
  return `Its mean is ${valueName(value)}, ${join} ${sign}.`;
}

function gradientWords({ parts, isConvex, atOne }, { usage }) {
  const { gradient } = parts;
  const place = { loss: "As a loss", reward: "As a reward", both: "As both, loss and reward," }[usage];
  if (WHY[gradient.why]) return `${place} it ${WHY[gradient.why](gradient)}.`;
  if (gradient.verdict === "zero") {
    const noise = Math.abs(atOne) > 1e-9 ? `every score has the weight ${coefficient(atOne)}, pure noise` : "no sample pushes";
    return `${place} it follows nothing: ${noise}.`;
  }
  if (gradient.verdict === "unknown") {
    return isConvex
      ? `${place} it follows a divergence without a name: f is convex, and no sum of known ones comes close.`
      : `${place} it follows no divergence: f is not convex, and no sum of known ones comes close.`;
  }
  const follows = `${place} it follows ${gradientName(gradient)}`;
  return isConvex ? `${follows}.` : `${follows}, which is no divergence: f is not convex.`;
}

function clampWords({ parts }) {
  const cut = [parts.value, parts.gradient].filter(({ region: { low, high }, why }) => !WHY[why] && (low > -REACH || high < REACH));
  if (cut.length === 0) return "";
  const { low, high } = cut.at(-1).region;
  return `That holds for log r from ${short(low)} to ${short(high)}; beyond, it is clamped.`;
}

function sampleWords({ sample, atOne }) {
  const weight = sample.weight - atOne;
  if (!Number.isFinite(sample.value + weight)) return `At log r = ${short(sample.l)} it has no finite value.`;
  return `A sample with log r = ${short(sample.l)} is worth ${nats(sample.value)}, and its score has the weight ${nats(weight)}, against ${nats(sample.kl)} for KL(q‖p).`;
}

/** The state's result as text for everybody. */
export const reading = (state, view) =>
  [valueWords(view), gradientWords(view, state), clampWords(view), sampleWords(view)].filter(Boolean).join(" ");

/** Three decimals where they show something, so that a vector's entries line up. */
const entry = (value) => (Math.abs(value) < 100 ? fixed(Math.abs(value) < 5e-4 ? 0 : value, 3) : nats(value));
const vector = (values) => (values.every(Number.isFinite) ? values.map(entry).join(", ") : "–");

/** The rows of the table, as text. */
export function tableRows({ parts, below, flats, isConvex, tokens }) {
  const region = ({ region: { low, high }, why }) => (why === "undefined" ? "–" : `${short(low)} to ${short(high)}`);
  return [
    { name: "target", cells: [valueName(parts.value), gradientName(parts.gradient)] },
    { name: "fitted for log r", cells: [region(parts.value), region(parts.gradient)] },
    { name: "flat", cells: [intervalsText(flats.value), intervalsText(flats.gradient)] },
    { name: "below 0", cells: [intervalsText(below), "–"] },
    { name: "f convex", cells: ["–", parts.gradient.verdict === "zero" ? "–" : isConvex ? "yes" : "no"] },
    { name: "three tokens", cells: [nats(tokens.mean), vector(tokens.gradient)] },
    { name: "KL(q‖p) there", cells: [nats(tokens.kl), vector(tokens.klGradient)] },
  ];
}

/** The pictures in words, for readers who do not see them. */
export function descriptions(state, view) {
  const at = (target) => view.curve.l.findIndex((l) => l >= target);
  const ends = (part) => [-1, 1].map((l) => `${nats(part[at(l)])} at log r = ${short(l)}`).join(", ");
  const clear = (part) => ends(part).replace(/–/g, "no number");
  return {
    value: `The value h against log r: ${clear(view.curve.value)}.`,
    weight: `The weight on the score, ${WEIGHT[state.usage]} less its value at r = 1: ${clear(view.curve.weight)}; that of KL(q‖p) is 1 and −1.`,
    f: `The generator f against r, less its tangent at r = 1: ${clear(view.curve.f)}; it is ${view.isConvex ? "" : "not "}convex.`,
  };
}
