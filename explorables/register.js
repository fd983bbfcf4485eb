// Makes the custom elements known, once a page, however often the bundle is loaded.

import { Dictionary } from "./dictionary/index.js";
import { Prefixes } from "./prefixes/index.js";
import { SimplexFlow } from "./simplex-flow/index.js";
import { TangentLine } from "./tangent-line/index.js";
import { TwoGaussians } from "./two-gaussians/index.js";
import { VocabularyFigure } from "./vocabulary/index.js";

export const figures = {
  "kl-simplex-flow": SimplexFlow,
  "kl-two-gaussians": TwoGaussians,
  "kl-prefixes": Prefixes,
  "kl-tangent-line": TangentLine,
  "kl-vocabulary": VocabularyFigure,
  "kl-dictionary": Dictionary,
};

export function register({ ownsAddress }) {
  for (const [tag, figure] of Object.entries(figures)) {
    if (customElements.get(tag)) continue;
    figure.ownsAddress = ownsAddress;
    customElements.define(tag, figure);
  }
}
