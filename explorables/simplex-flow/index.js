// <kl-simplex-flow penalty usage q p reward beta>: what a penalty follows on the simplex of three
// tokens, beside the gradient of KL(q‖p).

import { button, choice, slider } from "../kit/controls.js";
import { h } from "../kit/dom.js";
import { planeHandle } from "../kit/drag.js";
import { KlFigure } from "../kit/element.js";
import { fixed, twoDigits } from "../kit/format.js";
import { buttons, controls, layOut } from "../kit/layout.js";
import { reducedMotion } from "../kit/motion.js";
import { panel, retitle } from "../kit/plot.js";
import { fillTable, numbersTable } from "../kit/table.js";
import { Model, PENALTIES, TOKENS, USAGES, stepped, timeAt, withShare } from "./model.js";
import { drawDistance, drawOwn, drawTruth, triangleHeight, weights } from "./panels.js";
import { FORMULAS, PLACES, bestName, descriptions, goalName, placed, reading, tableRows } from "./reading.js";
import { schema } from "./schema.js";

const FIRST_REWARD = [1, 0, 0];
const DURATION = 2400; // ms
const oneDigit = (value) => fixed(value, 1);

const css = `
.columns .buttons { align-items: end; min-height: 3.27rem; }
.shares { display: flex; gap: 0 0.9rem; min-width: 0; margin: 0; padding: 0; border: 0; }
.shares legend { padding: 0; font-weight: 600; }
.shares .control { flex: 1 1 4.5rem; }
.extras { align-items: end; }
.extras[hidden] { display: none; }
.extras .shares { flex: 3 1 13rem; }
.extras .control-beta { flex: 1 1 4.5rem; }
.shares.p { --kl-accent: var(--kl-p-text); }
.shares.p legend { color: var(--kl-p-text); }
.outline { fill: none; stroke: var(--kl-rule); }
.field { fill: none; stroke-width: 1.6px; stroke-linecap: round; stroke-linejoin: round; }
.field.k1 { stroke: var(--kl-k1); }
.field.k2 { stroke: var(--kl-k2); }
.field.k3 { stroke: var(--kl-k3); }
.field.truth, .field.ink { stroke: var(--kl-muted); }
.line.path, .distance .line { stroke-width: 2.5px; }
.line.path.truth, .distance .line.truth { stroke-width: 2px; }
.line.step { stroke-width: 3px; }
.line.step.truth { stroke-width: 2px; }
.line.ink, .dots.ink { stroke: var(--kl-ink); }
.dots.truth { stroke: var(--kl-truth); }
.plot text.ink { fill: var(--kl-ink); }
.plot text.q { fill: var(--kl-ink); }
.law.q { fill: var(--kl-ink); }
.law.p { fill: var(--kl-p); }
.best { fill: var(--kl-paper); stroke: var(--kl-ink); stroke-width: 2px; }
.handle.plane.q .knob { fill: var(--kl-ink); stroke: var(--kl-ink); }
.handle.plane.p .knob { fill: var(--kl-p); stroke: var(--kl-p-text); }
.numbers th { white-space: normal; }
.numbers tbody th { font-weight: 400; }
`;

export class SimplexFlow extends KlFigure {
  static schema = schema;
  static css = css;

  #model = new Model();
  #progress = null; // how much of the paths has been walked, while they are

  build() {
    const update = (values) => {
      this.animator.finish();
      this.update(values);
    };
    const change = (name) => (value) => update({ [name]: value });
    const shares = (name, legend, field, text, put) => {
      const sliders = TOKENS.map((token, i) =>
        slider({
          label: token,
          name: `${name}${token}`,
          ...field,
          text,
          changed: (value) => update({ [name]: put(this.state[name], i, value) }),
        }),
      );
      const element = h("fieldset", { class: `shares ${name}` }, h("legend", {}, legend), sliders.map((s) => s.element));
      return { element, show: (values) => sliders.forEach((s, i) => s.show(values[i])) };
    };
    const { q, p, reward, beta } = schema;
    this.controls = {
      penalty: choice({
        label: "penalty",
        name: "penalty",
        options: Object.keys(PENALTIES).map((value) => ({ value, text: FORMULAS[value] })),
        changed: change("penalty"),
      }),
      usage: choice({
        label: "placed",
        name: "usage",
        options: USAGES.map((value) => ({ value, text: PLACES[value] })),
        changed: change("usage"),
      }),
      q: shares("q", "policy q", q, twoDigits, withShare),
      p: shares("p", "reference p", p, twoDigits, withShare),
    };
    const put = (values, i, value) => values.map((old, j) => (i === j ? value : old));
    this.extra = {
      reward: shares("reward", "reward R", reward, oneDigit, put),
      beta: slider({ label: "β", name: "beta", ...beta, text: twoDigits, changed: change("beta") }),
    };
    this.extras = h("div", { class: "controls extras" });
    this.rewarded = button("With a reward", () =>
      update({ reward: this.state.reward === "none" ? FIRST_REWARD : "none" }),
    );
    this.run = button("Let it run", () => this.#run(), { kind: "main" });
    const margin = { left: 18, right: 18, top: 20, bottom: 20 };
    this.panels = {
      own: panel({
        name: "own",
        title: "",
        role: "group",
        margin,
        clipped: [],
        free: ["outline", "field", "paths", "marks", "steps", "labels", "handles"],
      }),
      truth: panel({
        name: "true",
        title: "",
        margin,
        clipped: [],
        free: ["outline", "field", "paths", "marks", "labels"],
      }),
      distance: panel({
        name: "distance",
        title: "",
        margin: { left: 34, right: 74, top: 8, bottom: 22 },
        clipped: ["curves"],
        free: ["axis-name", "labels"],
      }),
    };
    const point = (name, text) =>
      planeHandle({
        label: text,
        name,
        range: schema[name],
        moved: (x, y) => update({ [name]: weights(this.panels.own, x, y) }),
        stepped: (right, up) => update({ [name]: stepped(this.state[name], right, up) }),
      });
    this.handles = { p: point("p", "reference p"), q: point("q", "policy q") };
    this.panels.own.layers.handles.append(this.handles.p.element, this.handles.q.element);
    this.table = numbersTable();
    const { penalty, usage } = this.controls;
    const { own, truth, distance } = this.panels;
    layOut(this, [
      [controls(penalty, usage), this.controls.q.element, own.element],
      [
        buttons(reducedMotion() ? null : this.run, this.rewarded),
        this.controls.p.element,
        truth.element,
      ],
      [this.extras, distance.element],
      [this.table],
    ]);
  }

  draw(width) {
    const { wide, each } = this.columns(width);
    const { own, truth, distance } = this.panels;
    for (const triangle of [own, truth]) triangle.resize(each, triangleHeight(each, triangle.margin));
    distance.resize(each, wide ? 230 : 190);

    const { state } = this;
    const view = this.#model.view(state);
    for (const [name, control] of Object.entries(this.controls)) control.show(state[name]);
    this.#showReward();
    const time = this.#progress === null ? Infinity : timeAt(view, this.#progress);
    drawOwn(own, state, view, time, this.handles);
    drawTruth(truth, state, view, time);
    drawDistance(distance, state, view, time);
    const goal = state.reward === "none" ? "KL(q‖p)" : "the goal";
    retitle(own, placed(state), "drag q and p");
    retitle(truth, `−∇${goalName(state)}`.replace("−E[R] + β KL(q‖p)", "(−E[R] + β KL)"), "what is wanted");
    retitle(distance, `KL(q‖${bestName(state)}) on the way`, "against learning rate × steps");
    const words = descriptions(state, view);
    for (const [name, plot] of Object.entries(this.panels)) plot.describe(words[name]);
    fillTable(this.table, {
      caption: "At q, and at the end",
      note: "exact",
      columns: [placed(state).replace("in the reward", "in reward"), goal],
      rows: tableRows(state, view),
    });
  }

  sentence() {
    return reading(this.state, this.#model.view(this.state));
  }

  #showReward() {
    const { reward, beta } = this.state;
    const on = reward !== "none";
    this.rewarded.setAttribute("aria-pressed", String(on));
    if (on && !this.extras.firstChild) this.extras.append(this.extra.reward.element, this.extra.beta.element);
    if (!on) this.extras.replaceChildren();
    this.extras.hidden = !on;
    if (on) {
      this.extra.reward.show(reward);
      this.extra.beta.show(beta);
    }
  }

  #run() {
    this.animator.run(DURATION, (progress) => {
      this.#progress = progress < 1 ? progress : null;
      this.redraw();
    });
  }
}
