// <kl-dictionary formula usage l>: type a penalty, and see which divergence it follows.

import { button, choice, slider, textLine } from "../kit/controls.js";
import { h } from "../kit/dom.js";
import { handle } from "../kit/drag.js";
import { KlFigure } from "../kit/element.js";
import { twoDigits } from "../kit/format.js";
import { buttons, controls, layOut } from "../kit/layout.js";
import { panel, retitle } from "../kit/plot.js";
import { fillTable, numbersTable } from "../kit/table.js";
import { LONGEST, VOCABULARY, parse, print } from "./formula.js";
import { Model, TOKENS } from "./model.js";
import { drawGenerator, drawValue, drawWeight, lScale } from "./panels.js";
import { EXAMPLES, PLACE, WEIGHT, descriptions, reading, tableRows, titles } from "./reading.js";
import { schema } from "./schema.js";

const css = `
.control-example, .control-formula { flex: 1 1 100%; }
.control-formula input { font-family: ui-monospace, Consolas, Menlo, monospace; }
.hint { grid-column: 1 / -1; color: var(--kl-muted); font-size: 0.8125rem; overflow-wrap: anywhere; }
.handle .knob, .handle .arrows { stroke: var(--kl-ink); }
.handle:hover .knob, .handle.held .knob { fill: var(--kl-ink); }
.line.curve, .dots.ink { stroke: var(--kl-ink); }
.line.sample { stroke: var(--kl-k3); }
.line.sample.thin { stroke-width: 1px; }
.flat { fill: none; stroke: var(--kl-k1); stroke-opacity: 0.4; stroke-width: 9px; }
.plot text.ink, .plot text.curve { fill: var(--kl-ink); }
.plot text.large { font-size: 14px; }
.numbers { max-width: 40rem; }
.numbers th, .numbers td { white-space: normal; }
`;

export class Dictionary extends KlFigure {
  static schema = schema;
  static css = css;

  #model = new Model();

  build() {
    const { l } = schema;
    const change = (values) => {
      this.controls.formula.clear();
      this.update(values);
    };
    this.controls = {
      example: choice({
        label: "an example",
        name: "example",
        options: [{ value: "", text: "your own" }, ...EXAMPLES],
        changed: (formula) => (formula ? change({ formula }) : this.controls.formula.input.select()),
      }),
      formula: textLine({
        label: "or a formula: h in l = log r",
        name: "formula",
        most: LONGEST,
        typed: (text) => this.#typed(text),
      }),
      l: slider({ label: "a sample’s log r", name: "l", ...l, text: twoDigits, changed: (value) => this.update({ l: value }) }),
    };
    this.controls.formula.element.append(h("p", { class: "hint" }, VOCABULARY));
    this.usages = Object.fromEntries(
      schema.usage.options.map((usage) => [usage, button(PLACE[usage], () => this.update({ usage }))]),
    );
    const side = { left: 40, right: 66, top: 10, bottom: 22 };
    this.panels = {
      value: panel({
        name: "value",
        title: "",
        role: "group",
        margin: { ...side, right: 24 },
        clipped: ["negative", "flats", "curves", "gap"],
        free: ["axis-name", "labels", "handles"],
      }),
      weight: panel({ name: "weight", title: "", margin: side, clipped: ["curves", "dots"], free: ["axis-name", "labels"] }),
      f: panel({ name: "f", title: "", margin: side, clipped: ["curves", "dots"], free: ["axis-name", "labels"] }),
    };
    this.handle = handle({
      label: "log r of the sample",
      range: l,
      current: () => this.state.l,
      toValue: (px) => lScale(this.panels.value).invert(px),
      text: twoDigits,
      changed: (value) => this.update({ l: value }),
    });
    this.panels.value.layers.handles.append(this.handle.element);
    this.table = numbersTable();
    const { example, formula } = this.controls;
    const { value, weight, f } = this.panels;
    layOut(
      this,
      [
        [
          controls(example, formula),
          buttons(Object.values(this.usages)),
          controls(this.controls.l),
          value.element,
        ],
        [weight.element, f.element],
      ],
      { table: this.table },
    );
  }

  /** Takes over a formula that is one; returns what is wrong with another. */
  #typed(text) {
    try {
      const formula = print(parse(text));
      this.refused = {};
      this.update({ formula });
      this.redraw(); // also where it is the same formula in other words
      return "";
    } catch (error) {
      return `Not taken over: ${error.message}.`;
    }
  }

  reset() {
    this.controls.formula.clear();
    super.reset();
  }

  draw(width) {
    const { wide, each } = this.columns(width);
    const { value, weight, f } = this.panels;
    value.resize(each, wide ? 250 : 230);
    weight.resize(each, wide ? 232 : 200);
    f.resize(each, wide ? 232 : 200);

    const { state } = this;
    const view = this.#model.view(state);
    const known = EXAMPLES.some((example) => example.value === state.formula);
    this.controls.example.show(known ? state.formula : "");
    this.controls.formula.show(state.formula, this.#refusal());
    this.controls.l.show(state.l);
    for (const [usage, pressed] of Object.entries(this.usages)) {
      pressed.setAttribute("aria-pressed", String(usage === state.usage));
    }
    drawValue(value, view, this.handle);
    drawWeight(weight, state, view);
    drawGenerator(f, view);
    const said = titles(view);
    retitle(value, "Drag a sample; its value h", said.value);
    retitle(weight, `Weight on its score, ${WEIGHT[state.usage]}`, said.weight);
    retitle(f, "f, less its tangent at r = 1", said.f);
    const words = descriptions(state, view);
    for (const [name, plot] of Object.entries(this.panels)) plot.describe(words[name]);
    const law = (masses) => `(${masses.map((mass) => String(mass).replace(/^0/, "")).join(", ")})`;
    fillTable(this.table, {
      caption: `${state.formula.replaceAll("-", "−")}, ${PLACE[state.usage]}`,
      note: `three tokens: q = ${law(TOKENS.q)}, p = ${law(TOKENS.p)}`,
      columns: ["value", "gradient"],
      rows: tableRows(view),
    });
  }

  /** What is wrong with the formula that came in a link. */
  #refusal() {
    const { formula } = this.refused;
    if (formula === undefined) return "";
    const shown = formula.length > 60 ? `${formula.slice(0, 60)}…` : formula;
    try {
      parse(formula.replaceAll(";", ","));
      return "";
    } catch (error) {
      return `The link’s formula is not taken over: “${shown}”, ${error.message}.`;
    }
  }

  sentence() {
    return reading(this.state, this.#model.view(this.state));
  }
}
