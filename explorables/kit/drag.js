// Handles inside an SVG that move along one axis or in the plane: mouse, touch, pen and keyboard.
//
// The hit area is a disc of 44 px. Along one axis `touch-action: pan-y` gives sideways moves to us
// and leaves the page scrollable from the handle; when the browser takes a gesture over, the drag
// just ends. A handle that moves in the plane keeps every move that starts on it.

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
  const element = disc(label, "handle", [
    svg("path", { class: "arrows", d: "M-12,-3.5l-4,3.5l4,3.5M12,-3.5l4,3.5l-4,3.5" }),
  ]);
  element.setAttribute("aria-orientation", "horizontal");
  followPointer(element, (x) => changed(toValue(x)));
  followKeys(element, (key, shift) => {
    const next = keyValue(key, shift, current(), range);
    if (next === undefined) return false;
    changed(next);
    return true;
  });

  return {
    element,
    show(value, x, y, newRange = range) {
      range = newRange;
      place(element, x, y, { ...range, value, text: text(value) });
    },
  };
}

/** How many steps right and up a key press asks for, or undefined if the key is not ours. */
export function keyStep(key, shift) {
  const stride = shift ? 10 : 1;
  const steps = {
    ArrowRight: [stride, 0],
    ArrowLeft: [-stride, 0],
    ArrowUp: [0, stride],
    ArrowDown: [0, -stride],
    PageUp: [0, 10],
    PageDown: [0, -10],
  };
  return Object.hasOwn(steps, key) ? steps[key] : undefined;
}

/**
 * A handle that moves in the plane. To readers of screens it is a slider for `range`, the number
 * that `show` is given, whose text says the whole place.
 *
 * @param moved called with a pointer's position, px in the SVG
 * @param stepped called with steps to the right and up
 */
export function planeHandle({ label, name, range, moved, stepped }) {
  const element = disc(label, `handle plane ${name}`, []);
  followPointer(element, moved);
  // Chromium does not see touch-action inside an SVG.
  element.addEventListener("touchstart", (event) => event.preventDefault(), { passive: false });
  followKeys(element, (key, shift) => {
    const steps = keyStep(key, shift);
    if (steps) stepped(...steps);
    return steps !== undefined;
  });
  return {
    element,
    show: (value, x, y, text) => place(element, x, y, { ...range, value, text }),
  };
}

const disc = (label, kind, more) =>
  svg(
    "g",
    { class: kind, role: "slider", tabindex: 0, "aria-label": label },
    svg("circle", { class: "hit", r: 22 }),
    svg("circle", { class: "ring", r: 11 }),
    svg("circle", { class: "knob", r: 7 }),
    more,
  );

function place(element, x, y, { min, max, value, text }) {
  element.knob = { x, y };
  setAttributes(element, {
    transform: `translate(${x},${y})`,
    "aria-valuemin": min,
    "aria-valuemax": max,
    "aria-valuenow": value,
    "aria-valuetext": text,
  });
}

/** Calls `moved(x, y)`, px in the SVG, while a pointer holds the element. */
function followPointer(element, moved) {
  let held = null; // pointer id, and how far off the knob's centre it was grabbed

  const position = (event) => {
    const { left, top } = element.ownerSVGElement.getBoundingClientRect();
    return [event.clientX - left, event.clientY - top];
  };

  element.addEventListener("pointerdown", (event) => {
    if (held || (event.pointerType === "mouse" && event.button !== 0)) return;
    const [x, y] = position(event);
    held = { id: event.pointerId, x: x - element.knob.x, y: y - element.knob.y };
    element.setPointerCapture(event.pointerId);
    element.classList.add("held");
    element.focus({ preventScroll: true });
    event.preventDefault(); // no text selection
  });
  element.addEventListener("pointermove", (event) => {
    if (event.pointerId !== held?.id) return;
    const [x, y] = position(event);
    moved(x - held.x, y - held.y);
  });
  const release = (event) => {
    if (event.pointerId !== held?.id) return;
    held = null;
    element.classList.remove("held");
  };
  element.addEventListener("pointerup", release);
  element.addEventListener("pointercancel", release);
  element.addEventListener("lostpointercapture", release);
}

/** Asks `pressed(key, shift)` whether a key is ours, and takes it from the page if so. */
function followKeys(element, pressed) {
  element.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (pressed(event.key, event.shiftKey)) event.preventDefault();
  });
}
