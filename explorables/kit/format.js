// Numbers as text: three significant digits, a true minus sign, words for infinity.

/** 0.234, 12.3, 1230, 2.6e10, 0.00124; −0 never. */
export function nats(value) {
  if (Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  const text = size < 0.01 || size >= 1e5 ? size.toPrecision(2) : size.toFixed(digits);
  return (value < 0 ? "−" : "") + (text.includes("e") ? scientific(text) : text);
}

/** A share as a percentage: 35 %, 9.1 %, 0.3 %, 0 %, with a space that does not break. */
export function percent(share) {
  if (Number.isNaN(share)) return "–";
  if (!Number.isFinite(share)) return "∞";
  const value = Math.abs(100 * share);
  const text = value >= 10 ? value.toFixed(0) : value >= 0.995 ? value.toFixed(1) : value.toPrecision(1);
  if (value < 0.0005) return "0\u00a0%";
  return `${share < 0 ? "−" : ""}${Number(text).toString()}\u00a0%`;
}

/** A percentage that always carries its sign. */
export const signedPercent = (share) => {
  const text = percent(share);
  return share > 0 && /[1-9]/.test(text) ? `+${text}` : text;
};

/** The same without its percent sign, for columns that say it above. */
export const bare = (text) => text.replace("\u00a0%", "");

export const fixed = (value, digits) => value.toFixed(digits).replace("-", "−");

export const twoDigits = (value) => fixed(value, 2);

/** A coefficient as text, to three digits. */
export function coefficient(value) {
  const short = Number(value.toPrecision(3));
  const text = Math.abs(short) < 1e5 ? String(short) : short.toExponential().replace("e+", "e");
  return text.replaceAll("-", "−");
}

const scientific = (text) => {
  const [mantissa, exponent] = text.split("e");
  return `${mantissa}e${Number(exponent)}`.replace("e-", "e−");
};
