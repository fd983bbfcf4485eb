// <kl-prefixes loss q qa qb p pa pb>: the term that a loss on tokens drops, on a tree of two steps.

import { button, choice, slider } from "../kit/controls.js";
import { h } from "../kit/dom.js";
import { handle } from "../kit/drag.js";
import { KlFigure } from "../kit/element.js";
import { buttons, controls, layOut } from "../kit/layout.js";
import { panel, retitle } from "../kit/plot.js";
import { fillTable, numbersTable } from "../kit/table.js";
import { view } from "./model.js";
import { barScale, chanceScale, drawCurve, drawParts, drawTree, rangeWith } from "./panels.js";
import {
  COLUMNS,
  COMPONENTS,
  LOSSES,
  chanceText,
  descriptions,
  reading,
  tableRows,
  term,
} from "./reading.js";
import { schema } from "./schema.js";

const MOVE = 700; // ms

const css = `
.control-loss { flex: 1 1 100%; }
.control-q, .control-qa, .control-qb, .control-p, .control-pa, .control-pb { flex: 1 1 28%; }
.control-p, .control-pa, .control-pb { --kl-accent: var(--kl-p-text); }
.handle .knob, .handle .arrows { stroke: var(--kl-ink); }
.handle:hover .knob, .handle.held .knob { fill: var(--kl-ink); }
.half { stroke: var(--kl-q); stroke-width: 1px; }
.half.A { fill: var(--kl-q); fill-opacity: 0.45; }
.half.B { fill: var(--kl-q); fill-opacity: 0.12; }
.ribbon { fill: none; stroke: var(--kl-q); stroke-opacity: 0.3; }
.part.ink { fill: var(--kl-ink); }
.part.truth { fill: var(--kl-muted); }
.part.k2 { fill: var(--kl-k2); }
.part.k3 { fill: var(--kl-k3); }
.part.dropped { fill: var(--kl-wash); stroke: var(--kl-ink); stroke-width: 1.5px; stroke-dasharray: 4 3; }
.base { fill: none; stroke: var(--kl-rule); }
.line.ink, .step.ink { stroke: var(--kl-ink); }
.step, .stem { fill: none; }
.step { stroke-width: 2.5px; stroke-linecap: round; stroke-linejoin: round; }
.stem { stroke-width: 1px; stroke-dasharray: 3 3; }
.stem.ink { stroke: var(--kl-ink); }
.step.truth, .stem.truth { stroke: var(--kl-truth); }
.step.k2, .stem.k2 { stroke: var(--kl-k2); }
.step.k3, .stem.k3 { stroke: var(--kl-k3); }
.plot text.ink { fill: var(--kl-ink); }
.term { padding: 0.4rem 0.6rem; background: var(--kl-wash); border: 1.5px dashed var(--kl-ink); font-variant-numeric: tabular-nums; }
.numbers { max-width: 34rem; }
`;

export class Prefixes extends KlFigure {
  static schema = schema;
  static css = css;

  #moving = null; // q(A) on its way, while it moves by itself

  build() {
    const change = (name) => (value) => {
      this.animator.finish();
      this.update({ [name]: value });
    };
    const chance = (name, label) =>
      slider({ label, name, ...schema[name], text: chanceText, changed: change(name) });
    this.controls = {
      loss: choice({
        label: "loss, summed over tokens",
        name: "loss",
        options: Object.entries(LOSSES).map(([value, text]) => ({ value, text })),
        changed: change("loss"),
      }),
      q: chance("q", "q(A)"),
      qa: chance("qa", "q(A|A)"),
      qb: chance("qb", "q(A|B)"),
      p: chance("p", "p(A)"),
      pa: chance("pa", "p(A|A)"),
      pb: chance("pb", "p(A|B)"),
    };
    this.places = {
      token: button("Token loss rests", () => this.#moveTo("token")),
      least: button("Least KL(Q‖P)", () => this.#moveTo("least")),
    };
    this.panels = {
      tree: panel({
        name: "tree",
        title: "",
        role: "group",
        margin: { left: 4, right: 4, top: 0, bottom: 0 },
        clipped: [],
        free: ["ribbons", "bars", "labels", "handles"],
      }),
      parts: panel({
        name: "parts",
        title: "",
        margin: { left: 76, right: 52, top: 0, bottom: 20 },
        clipped: [],
        free: ["base", "bars", "labels"],
      }),
      curve: panel({
        name: "curve",
        title: "",
        role: "group",
        margin: { left: 34, right: 72, top: 28, bottom: 22 },
        clipped: ["curves"],
        free: ["axis-name", "marks", "labels", "names", "handles"],
      }),
    };
    const grip = (name, label, place, scale) =>
      handle({
        label,
        range: schema[name],
        current: () => (name === "q" ? view(this.state).q : this.state[name]),
        toValue: (px) => scale(this.panels[place]).invert(px),
        text: chanceText,
        changed: change(name),
      });
    this.handles = {
      tree: ["q", "qa", "qb"].map((name, i) =>
        grip(name, `${COMPONENTS[i]} in the tree`, "tree", (at) => barScale(at, i)),
      ),
      curve: grip("q", "q(A) on the curve", "curve", chanceScale),
    };
    this.panels.tree.layers.handles.append(...this.handles.tree.map(({ element }) => element));
    this.panels.curve.layers.handles.append(this.handles.curve.element);
    this.term = h("p", { class: "term" });
    this.table = numbersTable();
    const { loss, ...chances } = this.controls;
    const { tree, parts, curve } = this.panels;
    layOut(
      this,
      [
        [controls(loss, ...Object.values(chances)), tree.element, this.term],
        [parts.element, curve.element, buttons(Object.values(this.places))],
      ],
      { table: this.table },
    );
    retitle(tree, "Drag q: two tokens, A or B", "ticks: p");
    retitle(parts, "What the loss keeps", "gradient by logit");
    retitle(curve, "KL(Q‖P) as q(A) moves", "arrows: descent");
  }

  draw(width) {
    const { each } = this.columns(width);
    const { tree, parts, curve } = this.panels;
    tree.resize(each, 268);
    parts.resize(each, 266);
    curve.resize(each, 210);

    const state = { ...this.state, q: this.#moving ?? this.state.q };
    const seen = view(state);
    const { q, ...others } = this.controls;
    for (const [name, control] of Object.entries(others)) control.show(state[name]);
    q.show(seen.q, rangeWith(seen.q));
    for (const [name, place] of Object.entries(this.places)) {
      place.setAttribute("aria-pressed", String(this.state.q === name));
    }
    drawTree(tree, seen, this.handles.tree);
    drawParts(parts, state, seen);
    drawCurve(curve, state, seen, this.handles.curve);
    this.term.textContent = `Dropped: q(A) q(B) × (KL after A − KL after B) = ${term(seen)}`;
    const words = descriptions(state, seen);
    for (const [name, plot] of Object.entries(this.panels)) plot.describe(words[name]);
    fillTable(this.table, {
      caption: "Gradient by the logit of A",
      note: "own and later token: what is missing",
      columns: COLUMNS,
      rows: tableRows(seen),
    });
  }

  sentence() {
    return reading(this.state, view(this.state));
  }

  #moveTo(name) {
    this.animator.finish();
    const from = view(this.state).q;
    this.update({ q: name });
    const to = view(this.state).q;
    this.animator.run(MOVE, (progress) => {
      this.#moving = progress < 1 ? from + (to - from) * progress : null;
      this.redraw();
    });
  }
}
