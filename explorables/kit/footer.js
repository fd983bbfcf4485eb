// The line of buttons at a figure's end: its own, then Reset and the link.

import { button } from "./controls.js";
import { copyLink } from "./copy-link.js";
import { h } from "./dom.js";

export function footer(figure, own) {
  const reset = () => {
    figure.animator.finish();
    figure.reset();
  };
  return h(
    "div",
    { class: "footer" },
    own,
    button("Reset", reset, { kind: "quiet" }),
    copyLink(() => figure.link()),
  );
}
