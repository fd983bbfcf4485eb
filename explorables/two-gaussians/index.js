// <kl-two-gaussians mean scale n seed runs show>: three estimators of KL(q||p) between Gaussians.

import { button, powersOfTwo, slider, toggles, wholeNumber } from "../kit/controls.js";
import { h } from "../kit/dom.js";
import { handle } from "../kit/drag.js";
import { KlFigure } from "../kit/element.js";
import { twoDigits } from "../kit/format.js";
import { buttons, controls, layOut } from "../kit/layout.js";
import { ESTIMATORS } from "../kit/math.js";
import { panel, retitle } from "../kit/plot.js";
import { Model } from "./model.js";
import {
  descriptions,
  drawDensities,
  drawDistributions,
  drawRunning,
  drawValues,
  xScale,
} from "./panels.js";
import { reading, tableRows } from "./reading.js";
import { MOST_RUNS, schema } from "./schema.js";

const css = `
.control-mean, .control-scale { --kl-accent: var(--kl-p-text); }
.control-seed { flex: 0 1 6rem; }
.numbers { max-width: 38rem; }
`;

export class TwoGaussians extends KlFigure {
  static schema = schema;
  static css = css;

  #model = new Model();
  #upTo = null; // samples of the latest run that have come in so far, while it is drawn
  #runsShown = null; // runs that have come in so far, while many are drawn

  build() {
    const change = (name) => (value) => {
      this.animator.finish();
      this.update({ [name]: value });
    };
    const { mean, scale } = schema;
    this.controls = {
      mean: slider({ label: "mean of p", name: "mean", ...mean, text: twoDigits, changed: change("mean") }),
      scale: slider({ label: "scale of p", name: "scale", ...scale, text: twoDigits, changed: change("scale") }),
      n: slider({
        label: "samples per run, n",
        name: "n",
        min: 0,
        max: Math.log2(schema.n.max),
        step: 1,
        scale: powersOfTwo,
        changed: change("n"),
      }),
      seed: wholeNumber({ label: "seed", name: "seed", ...schema.seed, changed: change("seed") }),
      show: toggles({ legend: "Show", options: ESTIMATORS, changed: change("show") }),
    };
    this.handles = {
      mean: handle({
        label: "mean of p",
        range: mean,
        current: () => this.state.mean,
        toValue: (px) => xScale(this.panels.densities).invert(px),
        text: twoDigits,
        changed: change("mean"),
      }),
      scale: handle({
        label: "scale of p",
        range: scale,
        current: () => this.state.scale,
        toValue: (px) => xScale(this.panels.densities).invert(px) - this.state.mean,
        text: twoDigits,
        changed: change("scale"),
      }),
    };
    this.panels = {
      densities: panel({
        name: "densities",
        title: "Drag p: its peak or its side",
        role: "group",
        margin: { left: 34, right: 30, top: 14, bottom: 22 },
        clipped: ["curves"],
        free: ["axis-name", "labels", "handles"],
      }),
      values: panel({
        name: "values",
        title: "",
        margin: { left: 34, right: 30, top: 8, bottom: 22 },
        clipped: ["negative", "curves", "dots"],
        free: ["axis-name", "labels"],
      }),
      running: panel({
        name: "running",
        title: "",
        margin: { left: 40, right: 74, top: 8, bottom: 22 },
        clipped: ["negative", "ghosts", "truth", "curves", "dots"],
        free: ["axis-name", "labels"],
      }),
      distributions: panel({
        name: "distributions",
        title: "",
        margin: { left: 6, right: 8, top: 20, bottom: 22 },
        clipped: ["negative", "bars", "base", "curves", "truth"],
        free: ["labels"],
      }),
    };
    this.panels.densities.layers.handles.append(this.handles.scale.element, this.handles.mean.element);
    this.one = button("", () => this.#drawOne(), { kind: "main" });
    this.many = button("", () => this.#drawMany(100));
    this.table = h("table", { class: "numbers" });
    const { densities, values, running, distributions } = this.panels;
    layOut(
      this,
      [
        [
          controls(this.controls.mean, this.controls.scale),
          this.controls.show.element,
          densities.element,
          values.element,
        ],
        [
          controls(this.controls.n, this.controls.seed),
          buttons(this.one, this.many),
          running.element,
          distributions.element,
        ],
      ],
      { table: this.table },
    );
  }

  draw(width) {
    this.#resize(width);
    const state = { ...this.state, runs: this.#runsShown ?? this.state.runs };
    const view = this.#model.view(state, this.#upTo ?? state.n);
    for (const [name, control] of Object.entries(this.controls)) control.show(state[name]);
    this.one.textContent = state.n === 1 ? "Draw one sample" : `Draw one run of ${state.n}`;
    const full = this.state.runs >= MOST_RUNS;
    this.many.textContent = full ? `${MOST_RUNS} is the most` : "Draw 100 runs";
    for (const control of [this.one, this.many]) control.setAttribute("aria-disabled", String(full));

    const { densities, values, running, distributions } = this.panels;
    drawDensities(densities, state, view, this.handles);
    drawValues(values, state, view);
    drawRunning(running, state, view);
    drawDistributions(distributions, state, view);

    const count = state.runs === 1 ? "1 run" : `${state.runs} runs`;
    retitle(values, "What each sample is worth", state.runs ? "in nats" : "no run yet");
    retitle(running, "Averages as they come in", "earlier runs faint");
    retitle(distributions, `Averages of ${count}`, "bars seen, line exact");
    const words = descriptions(state, view);
    for (const name of ["values", "running", "distributions"]) this.panels[name].describe(words[name]);
    fillTable(this.table, tableRows(view.exact, view.seen, state.show), count);
  }

  sentence() {
    return reading(this.state, this.#model.exact(this.state));
  }

  #resize(width) {
    const { wide, each } = this.columns(width);
    this.panels.densities.resize(each, 190);
    this.panels.values.resize(each, 210);
    this.panels.running.resize(each, 190);
    this.panels.distributions.resize(each, 210);
  }

  #drawOne() {
    if (this.state.runs >= MOST_RUNS) return;
    this.animator.finish();
    this.update({ runs: this.state.runs + 1 });
    const { n } = this.state;
    this.animator.run(Math.min(250 + 60 * n, 1200), (progress) => {
      this.#upTo = progress < 1 ? Math.max(1, Math.floor(n ** progress)) : null;
      this.redraw();
    });
  }

  #drawMany(more) {
    if (this.state.runs >= MOST_RUNS) return;
    this.animator.finish();
    const before = this.state.runs;
    this.update({ runs: Math.min(before + more, MOST_RUNS) });
    const added = this.state.runs - before;
    this.animator.run(1400, (progress) => {
      this.#runsShown = progress < 1 ? before + Math.floor(progress * added) : null;
      this.redraw();
    });
  }
}

function fillTable(table, rows, count) {
  const pair = ([exact, seen]) => [h("td", {}, exact), h("td", { class: "seen" }, seen)];
  const group = (text) => h("th", { class: "group", colspan: 2, scope: "colgroup" }, text);
  const column = (text) => h("th", { scope: "col" }, text);
  table.replaceChildren(
    h("caption", {}, "Averages, exactly and as seen ", h("span", {}, `in ${count}`)),
    h(
      "thead",
      {},
      h("tr", {}, h("td", {}), group("bias, % of KL"), group("sd, % of KL"), group("below 0")),
      h("tr", {}, h("td", {}), Array.from({ length: 3 }, () => [column("exact"), column("seen")])),
    ),
    h(
      "tbody",
      {},
      rows.map(({ name, bias, sd, below }) =>
        h("tr", {}, h("th", { scope: "row" }, name), pair(bias), pair(sd), pair(below)),
      ),
    ),
  );
}
