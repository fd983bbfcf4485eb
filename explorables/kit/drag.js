// A handle inside an SVG that moves along one axis: mouse, touch, pen and keyboard.
//
// Its hit area is a disc of 44 px. `touch-action: pan-y` gives sideways moves to us and leaves the
// page scrollable from the handle; when the browser takes a gesture over, the drag just ends.

import { setAttributes, svg } from "./dom.js";

/** The value that a key press asks for, or undefined if the key is not ours. */
export function keyValue(key, shift, value, { min, max, step }) {
  const stride = shift ? 10 * step : step;
  const moves = {
    ArrowRight: value + stride,
    ArrowUp: value + stride,
    ArrowLeft: value - stride,
    ArrowDown: value - stride,
    PageUp: value + 10 * step,
    PageDown: value - 10 * step,
    Home: min,
    End: max,
  };
  return Object.hasOwn(moves, key) ? Math.min(Math.max(moves[key], min), max) : undefined;
}

/**
 * @param range { min, max, step } of the value; `show` may bring another one
 * @param current the value now; a key may come before the last one has been drawn
 * @param toValue pointer position (px in the SVG) -> value
 * @param changed called with the new value
 */
export function handle({ label, range, current, toValue, text, changed }) {
  const element = svg(
    "g",
    {
      class: "handle",
      role: "slider",
      tabindex: 0,
      "aria-label": label,
      "aria-orientation": "horizontal",
    },
    svg("circle", { class: "hit", r: 22 }),
    svg("circle", { class: "ring", r: 11 }),
    svg("circle", { class: "knob", r: 7 }),
    svg("path", { class: "arrows", d: "M-12,-3.5l-4,3.5l4,3.5M12,-3.5l4,3.5l-4,3.5" }),
  );
  let held = null; // pointer id, and how far off the knob's centre it was grabbed

  const pointerX = (event) => event.clientX - element.ownerSVGElement.getBoundingClientRect().left;

  element.addEventListener("pointerdown", (event) => {
    if (held || (event.pointerType === "mouse" && event.button !== 0)) return;
    held = { id: event.pointerId, offset: pointerX(event) - element.knobX };
    element.setPointerCapture(event.pointerId);
    element.classList.add("held");
    element.focus({ preventScroll: true });
    event.preventDefault(); // no text selection
  });
  element.addEventListener("pointermove", (event) => {
    if (event.pointerId !== held?.id) return;
    changed(toValue(pointerX(event) - held.offset));
  });
  const release = (event) => {
    if (event.pointerId !== held?.id) return;
    held = null;
    element.classList.remove("held");
  };
  element.addEventListener("pointerup", release);
  element.addEventListener("pointercancel", release);
  element.addEventListener("lostpointercapture", release);
  element.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const next = keyValue(event.key, event.shiftKey, current(), range);
    if (next === undefined) return;
    event.preventDefault();
    changed(next);
  });

  return {
    element,
    show(value, x, y, newRange = range) {
      range = newRange;
      element.knobX = x;
      setAttributes(element, {
        transform: `translate(${x},${y})`,
        "aria-valuemin": range.min,
        "aria-valuemax": range.max,
        "aria-valuenow": value,
        "aria-valuetext": text(value),
      });
    },
  };
}
