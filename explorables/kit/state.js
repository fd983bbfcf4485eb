// One state object per figure, and its short form in a link. Values from a link are data from a
// stranger: they pass through the schema or are dropped.
//
// A schema is { name: field }, and a field is { parse, format, initial }.

/** A number within [min, max], snapped to `step` counted from zero. */
export const number = (initial, min, max, step) => ({
  initial,
  min,
  max,
  step,
  parse(text) {
    const value = Number(text);
    if (String(text).trim() === "" || !Number.isFinite(value)) return undefined;
    const snapped = Math.round(Math.min(Math.max(value, min), max) / step) * step;
    return Number(Math.min(Math.max(snapped, min), max).toFixed(decimals(step)));
  },
  format: (value) => String(value),
});

/** A power of two within [1, max]; anything between goes to the nearest in ratio. */
export const powerOfTwo = (initial, max) => ({
  initial,
  min: 1,
  max,
  parse(text) {
    const value = Number(text);
    if (!Number.isFinite(value) || !(value > 0)) return undefined;
    return 2 ** Math.round(Math.log2(Math.min(Math.max(value, 1), max)));
  },
  format: (value) => String(value),
});

/** A non-empty subset of `options`, in their order; written k1+k3. */
export const subset = (initial, options) => ({
  initial,
  options,
  parse(text) {
    const asked = new Set(parts(text));
    const kept = options.filter((option) => asked.has(option));
    return kept.length ? kept : undefined;
  },
  format: (value) => value.join("+"),
});

/** One of `options`; anything else is dropped. */
export const oneOf = (initial, options) => ({
  initial,
  options,
  parse: (text) => (options.includes(text) ? text : undefined),
  format: String,
});

/** One of `words`, or a number within [-most, most] to five digits: a value that may have a name. */
export const wordOrNumber = (initial, words, most) => ({
  initial,
  parse(text) {
    if (words.includes(text)) return text;
    const value = Number(text);
    if (String(text).trim() === "" || !Number.isFinite(value)) return undefined;
    return Number(Math.min(Math.max(value, -most), most).toPrecision(5));
  },
  format: String,
});

/** `word`, or a list of as many values of a number's `field` as `count` says; written 0.5+0+-1. */
export const listOrWord = (word, count, field) => ({
  ...field,
  initial: word,
  parse(text) {
    if (text === word) return word;
    const values = parts(text).map(field.parse);
    return values.length === count && !values.includes(undefined) ? values : undefined;
  },
  format: (value) => (value === word ? word : value.join("+")),
});

/** Probabilities in hundredths, none below one of them: any list of positive weights becomes one. */
export const law = (initial) => ({
  initial,
  min: 0.01,
  max: 1 - 0.01 * (initial.length - 1),
  step: 0.01,
  parse(text) {
    const weights = parts(text).map((part) => (part.trim() === "" ? NaN : Number(part)));
    const usable = weights.length === initial.length && weights.every((w) => w >= 0 && w < 1e9);
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    return usable && total > 0 ? hundredths(weights.map((weight) => weight / total)) : undefined;
  },
  format: (value) => value.join("+"),
});

function hundredths(shares) {
  const counts = shares.map((share) => Math.max(1, Math.round(100 * share)));
  // What rounding added or took, the largest one gives back.
  const largest = counts.indexOf(Math.max(...counts));
  counts[largest] += 100 - counts.reduce((sum, count) => sum + count);
  return counts.map((count) => count / 100);
}

const parts = (text) => String(text).split(/[+\s]/); // a plus sign may arrive as a space

const decimals = (step) => (String(step).split(".")[1] ?? "").length;

export const initialState = (schema) =>
  Object.fromEntries(Object.entries(schema).map(([name, field]) => [name, field.initial]));

/**
 * The state that `values` (name -> text or number) gives on top of `base`; `refused` is told the name
 * and the text of what a field does not take.
 */
export function withValues(schema, base, values, refused = () => {}) {
  const state = { ...base };
  for (const [name, text] of values) {
    if (!Object.hasOwn(schema, name) || text === null || text === undefined) continue;
    const value = schema[name].parse(text);
    if (value === undefined) refused(name, text);
    else state[name] = value;
  }
  return state;
}

/** The state of an element: the schema's initial values, then its attributes. */
export const fromAttributes = (schema, element) =>
  withValues(
    schema,
    initialState(schema),
    Object.keys(schema).map((name) => [name, element.getAttribute(name)]),
  );

/** `mean:1.2,n:64`, naming only what differs from `base`. */
export const serialise = (schema, state, base) =>
  Object.entries(schema)
    .map(([name, field]) => [name, field.format(state[name]), field.format(base[name])])
    .filter(([, now, before]) => now !== before)
    .map(([name, now]) => `${name}:${now}`)
    .join(",");

export const deserialise = (schema, base, text, refused) =>
  withValues(
    schema,
    base,
    String(text)
      .slice(0, 500)
      .split(",")
      .map((part) => {
        const colon = part.indexOf(":");
        return colon < 0 ? [part, null] : [part.slice(0, colon), part.slice(colon + 1)];
      }),
    refused,
  );
