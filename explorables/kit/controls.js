// Native inputs with a visible label and a visible value.

import { freshId, h, setAttributes, svg } from "./dom.js";
import { DASHES } from "./theme.js";

/**
 * A labelled slider. `scale` maps a position of the input to a value and back, so that a slider
 * can run over powers of two; `text(value)` is what is shown and read out.
 */
export function slider({ label, name, min, max, step, scale = identity, text = String, changed }) {
  const id = freshId(name);
  // Not an <output>: that is a live region, and the slider itself tells its value.
  const output = h("span", { class: "value", "aria-hidden": "true" });
  const input = h("input", { id, type: "range", name, min, max, step });
  input.addEventListener("input", () => changed(scale.value(Number(input.value))));
  const element = h(
    "div",
    { class: `control control-${name}` },
    h("label", { for: id }, label),
    output,
    input,
  );
  return {
    element,
    input,
    /** `range` { min, max, step } is given where it changes with the state. */
    show(value, range) {
      if (range) setAttributes(input, { min: range.min, max: range.max, step: range.step });
      input.value = String(scale.position(value));
      input.setAttribute("aria-valuetext", text(value));
      output.textContent = text(value);
    },
  };
}

const identity = { value: (position) => position, position: (value) => value };
export const powersOfTwo = { value: (position) => 2 ** position, position: Math.log2 };

/** A labelled whole number, taken over when the reader leaves it or presses Enter. */
export function wholeNumber({ label, name, min, max, changed }) {
  const id = freshId(name);
  const input = h("input", { id, type: "number", name, min, max, step: 1, inputmode: "numeric" });
  let editing = false; // what is being typed must survive a redraw
  input.addEventListener("input", () => (editing = true));
  input.addEventListener("change", () => {
    editing = false;
    changed(input.value);
  });
  const element = h(
    "div",
    { class: `control control-${name}` },
    h("label", { for: id }, label),
    input,
  );
  return {
    element,
    input,
    show(value) {
      if (!editing) input.value = String(value);
    },
  };
}

const PATIENCE = 500; // ms after the last key before a mistake is told

/**
 * A labelled line of text. `typed(text)` gets every change of it and returns what is wrong with it, or
 * "". What is wrong stays, with its message, until the reader mends it or `clear` is called.
 */
export function textLine({ label, name, most, typed }) {
  const id = freshId(name);
  const problem = h("p", { class: "problem", id: freshId(`${name}-problem`), role: "alert" });
  const input = h("input", {
    id,
    type: "text",
    name,
    maxlength: most,
    spellcheck: "false",
    autocapitalize: "off",
    autocomplete: "off",
    "aria-describedby": problem.id,
  });
  let editing = false; // what is being typed must survive a redraw
  let message = "";
  let refused = false; // whether the message is about a text from elsewhere
  let timer = 0;
  const tell = (text, pause = 0) => {
    message = text;
    clearTimeout(timer);
    const show = () => {
      input.setAttribute("aria-invalid", String(message !== ""));
      if (problem.textContent !== message) problem.textContent = message;
    };
    if (pause && message) timer = setTimeout(show, pause);
    else show();
  };
  input.addEventListener("input", () => {
    editing = true;
    refused = false;
    tell(typed(input.value), PATIENCE);
  });
  input.addEventListener("change", () => {
    editing = refused = false;
    tell(typed(input.value));
  });
  const element = h(
    "div",
    { class: `control control-${name}` },
    h("label", { for: id }, label),
    input,
    problem,
  );
  return {
    element,
    input,
    /** `wrong`: what is wrong with a text that came from elsewhere, or "". */
    show(value, wrong = "") {
      if (wrong || refused) tell(wrong);
      refused = wrong !== "";
      if (!editing && (refused || !message)) input.value = value;
    },
    clear() {
      editing = refused = false;
      tell("");
    },
  };
}

/** A labelled list to choose one of `options` from, each { value, text }. */
export function choice({ label, name, options, changed }) {
  const id = freshId(name);
  const input = h(
    "select",
    { id, name },
    options.map(({ value, text }) => h("option", { value }, text)),
  );
  input.addEventListener("change", () => changed(input.value));
  const element = h(
    "div",
    { class: `control control-${name}` },
    h("label", { for: id }, label),
    input,
  );
  return { element, input, show: (value) => (input.value = value) };
}

export const button = (label, pressed, { kind = "plain" } = {}) =>
  h("button", { type: "button", class: kind, onclick: pressed }, label);

/** A short piece of an estimator's line, as it stands in the plots. */
export const swatch = (name) =>
  svg(
    "svg",
    { class: "swatch", width: 26, height: 10, "aria-hidden": "true" },
    svg("line", { x1: 1, x2: 25, y1: 5, y2: 5, class: `line ${name}`, "stroke-dasharray": DASHES[name] }),
  );

/** A group of checkboxes, one per option; the last one that is on cannot be switched off. */
export function toggles({ legend, options, changed }) {
  const boxes = options.map((option) => {
    const input = h("input", { type: "checkbox", value: option });
    input.addEventListener("change", () => {
      const on = boxes.filter((box) => box.input.checked).map((box) => box.option);
      if (on.length) changed(on);
      else input.checked = true;
    });
    return { option, input, label: h("label", {}, input, swatch(option), option) };
  });
  return {
    element: h(
      "fieldset",
      { class: "toggles" },
      h("legend", {}, legend),
      boxes.map((box) => box.label),
    ),
    boxes,
    show(on) {
      for (const box of boxes) box.input.checked = on.includes(box.option);
    },
  };
}
