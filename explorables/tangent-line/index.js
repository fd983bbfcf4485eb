// <kl-tangent-line f mean lambda r seed>: a divergence as the mean gap between a curve and a line.

import { button, choice, slider } from "../kit/controls.js";
import { handle } from "../kit/drag.js";
import { KlFigure } from "../kit/element.js";
import { coefficient, twoDigits } from "../kit/format.js";
import { buttons, controls, layOut } from "../kit/layout.js";
import { GENERATORS } from "../kit/math.js";
import { panel, retitle } from "../kit/plot.js";
import { fillTable, numbersTable } from "../kit/table.js";
import { Model, SAMPLES } from "./model.js";
import { drawCurve, drawStrip, drawVariance, lambdaScale, rScale } from "./panels.js";
import { FORMULAS, TARGETS, descriptions, reading, tableRows } from "./reading.js";
import { schema } from "./schema.js";

const css = `
.control-f { flex: 1 1 100%; }
.handle .knob, .handle .arrows { stroke: var(--kl-ink); }
.handle:hover .knob, .handle.held .knob { fill: var(--kl-ink); }
.line.curve, .line.ink, .dots.ink, .stem.ink { stroke: var(--kl-ink); }
.stem { fill: none; stroke-width: 1px; }
.stem.k1 { stroke: var(--kl-k1); }
.stem.k3 { stroke: var(--kl-k3); }
.plot text.ink, .plot text.curve { fill: var(--kl-ink); }
.plot text.large { font-size: 14px; }
.area.below { fill: var(--kl-k1); fill-opacity: 0.28; }
.numbers { max-width: 34rem; }
.numbers tbody th { white-space: normal; }
.numbers tr.current > * { background: var(--kl-wash); }
`;

export class TangentLine extends KlFigure {
  static schema = schema;
  static css = css;

  #model = new Model();

  build() {
    const change = (name) => (value) => this.update({ [name]: value });
    const view = () => this.#model.view(this.state);
    const { mean, r } = schema;
    this.controls = {
      f: choice({
        label: "generator f",
        name: "f",
        options: Object.keys(GENERATORS).map((f) => ({ value: f, text: `${f}: f(r) = ${FORMULAS[f]}` })),
        changed: change("f"),
      }),
      r: slider({ label: "r = p/q", name: "r", ...r, text: twoDigits, changed: change("r") }),
      mean: slider({ label: "mean of p", name: "mean", ...mean, text: twoDigits, changed: change("mean") }),
      lambda: slider({
        label: "λ, for a line of slope −λ",
        name: "lambda",
        text: coefficient,
        changed: change("lambda"),
      }),
    };
    this.slopes = {
      0: button("λ = 0", () => this.update({ lambda: 0 })),
      tangent: button("tangent", () => this.update({ lambda: "tangent" })),
      best: button("least variance, λ*", () => this.update({ lambda: "best" })),
    };
    this.panels = {
      curve: panel({
        name: "curve",
        title: "",
        role: "group",
        margin: { left: 34, right: 74, top: 10, bottom: 22 },
        clipped: ["density", "below", "curves", "gap"],
        free: ["axis-name", "names", "labels", "handles"],
      }),
      variance: panel({
        name: "variance",
        title: "",
        role: "group",
        margin: { left: 46, right: 26, top: 28, bottom: 22 },
        clipped: ["curves"],
        free: ["axis-name", "stems", "dots", "labels", "handles"],
      }),
      strip: panel({
        name: "strip",
        title: "",
        margin: { left: 10, right: 22, top: 4, bottom: 22 },
        clipped: ["negative", "dots", "curves"],
        free: ["axis-name", "labels"],
      }),
    };
    this.handles = {
      r: handle({
        label: "r on the curve",
        range: r,
        current: () => this.state.r,
        toValue: (px) => rScale(this.panels.curve).invert(px),
        text: twoDigits,
        changed: change("r"),
      }),
      lambda: handle({
        label: "λ on the parabola",
        range: view().range,
        current: () => view().lambda,
        toValue: (px) => {
          const { range } = view();
          return snap(lambdaScale(this.panels.variance, range).invert(px), range);
        },
        text: coefficient,
        changed: change("lambda"),
      }),
    };
    this.panels.curve.layers.handles.append(this.handles.r.element);
    this.panels.variance.layers.handles.append(this.handles.lambda.element);
    this.table = numbersTable();
    const { f, lambda } = this.controls;
    const { curve, variance, strip } = this.panels;
    const again = button("New samples", () => this.update({ seed: (this.state.seed + 1) % 2 ** 32 }));
    layOut(
      this,
      [
        [controls(f, this.controls.r, this.controls.mean), curve.element],
        [
          controls(lambda),
          buttons(Object.values(this.slopes)),
          variance.element,
          strip.element,
        ],
      ],
      { table: this.table, own: again },
    );
  }

  draw(width) {
    const { wide, each } = this.columns(width);
    const { curve, variance, strip } = this.panels;
    curve.resize(each, wide ? 362 : 320);
    variance.resize(each, 190);
    strip.resize(each, 150);

    const { state } = this;
    const view = this.#model.view(state);
    for (const name of ["f", "r", "mean"]) this.controls[name].show(state[name]);
    this.controls.lambda.show(view.lambda, view.range);
    for (const [name, pressed] of Object.entries(this.slopes)) {
      pressed.setAttribute("aria-pressed", String(String(state.lambda) === name));
    }
    drawCurve(curve, state, view, this.handles.r);
    drawVariance(variance, state, view, this.handles.lambda);
    drawStrip(strip, state, view);
    retitle(curve, "Drag r along the curve", "the gap is its value");
    retitle(variance, "Variance of one sample", "drag λ");
    retitle(strip, `${SAMPLES} samples of v`, "in nats; the truth dotted");
    const words = descriptions(state, view);
    strip.describe(words.strip);
    variance.describe(words.variance);
    fillTable(this.table, {
      caption: "One sample of f(r) + λ(r − 1)",
      note: `exact, for ${TARGETS[state.f]}`,
      columns: ["λ", "variance", "sd / mean", "below 0"],
      rows: tableRows(view),
    });
  }

  sentence() {
    return reading(this.state, this.#model.view(this.state));
  }
}

const snap = (value, { min, max, step }) =>
  Number(Math.min(Math.max(Math.round(value / step) * step, min), max).toPrecision(6));

