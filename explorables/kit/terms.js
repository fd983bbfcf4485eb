// Sums of divergences as text.

export const SYMBOLS = {
  kl_qp: "KL(q‖p)",
  kl_pq: "KL(p‖q)",
  chi2_qp: "χ²(q‖p)",
  chi2_pq: "χ²(p‖q)",
  tv: "TV(q, p)",
  hellinger2: "H²(q, p)",
  js: "JS(q, p)",
  jeffreys: "J(q, p)",
};

/** { kl_qp: 1, kl_pq: -1 } as KL(q‖p) − KL(p‖q), what is added first; sizes by `text`. */
export function sumOf(terms, text = String) {
  const factor = (size) => (size === 1 ? "" : size === 0.5 ? "½ " : `${text(size)} `);
  return Object.entries(terms)
    .sort(([, a], [, b]) => (a < 0) - (b < 0))
    .map(([name, value], i) => {
      const sign = value < 0 ? (i ? " − " : "−") : i ? " + " : "";
      return `${sign}${factor(Math.abs(value))}${SYMBOLS[name] ?? name}`;
    })
    .join("");
}
