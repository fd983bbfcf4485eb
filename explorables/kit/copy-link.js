// A button that copies the link to the present state, and shows it where copying is refused.

import { button } from "./controls.js";
import { h } from "./dom.js";

/** `link()` gives the address, or null where there is none: then there is no button. */
export function copyLink(link) {
  if (link() === null) return [];
  const field = h("input", {
    class: "link-text",
    type: "text",
    readonly: true,
    hidden: true,
    "aria-label": "Link to this state",
  });
  let timer = 0;
  const copy = button(
    "Copy link",
    async () => {
      clearTimeout(timer);
      try {
        await navigator.clipboard.writeText(link());
        copy.textContent = "Link copied";
        timer = setTimeout(() => (copy.textContent = "Copy link"), 2500);
      } catch {
        field.value = link(); // no clipboard here: the reader copies it by hand
        field.hidden = false;
        field.select();
      }
    },
    { kind: "quiet" },
  );
  return [copy, field];
}
