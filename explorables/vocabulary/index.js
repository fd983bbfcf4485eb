// <kl-vocabulary temperature top noise n seed sample>: where KL and its noise come from among 65,535
// tokens.

import { button, powersOfTwo, slider, wholeNumber } from "../kit/controls.js";
import { KlFigure } from "../kit/element.js";
import { twoDigits } from "../kit/format.js";
import { buttons, controls, layOut } from "../kit/layout.js";
import { TOKENS } from "../kit/math.js";
import { panel, retitle } from "../kit/plot.js";
import { fillTable, numbersTable } from "../kit/table.js";
import { Model } from "./model.js";
import { drawCarriers, drawLaw, drawMeans, drawRunning, drawVariances } from "./panels.js";
import { descriptions, reading, tableRows, whole } from "./reading.js";
import { schema } from "./schema.js";

const css = `
.control { flex-basis: 6rem; min-width: min-content; }
.control-n { flex-basis: 8.5rem; }
.control-seed { flex: 0 1 6rem; }
.numbers { max-width: 34rem; }
`;

const margin = { left: 46, right: 24, top: 8, bottom: 22 };

export class VocabularyFigure extends KlFigure {
  static schema = schema;
  static css = css;

  #model = null;

  build() {
    this.#model = new Model();
    const change = (name) => (value) => this.update({ [name]: value });
    const setting = (name, label) =>
      slider({ label, name, ...schema[name], text: twoDigits, changed: change(name) });
    this.controls = {
      temperature: setting("temperature", "temperature"),
      noise: setting("noise", "noise"),
      top: setting("top", "top-p"),
      n: slider({
        label: "samples, n",
        name: "n",
        min: 0,
        max: Math.log2(schema.n.max),
        step: 1,
        scale: powersOfTwo,
        text: whole,
        changed: change("n"),
      }),
      seed: wholeNumber({ label: "seed", name: "seed", ...schema.seed, changed: change("seed") }),
    };
    const free = ["axis-name", "labels"];
    this.panels = {
      law: panel({ name: "law", title: "", margin, clipped: ["curves"], free }),
      mean: panel({ name: "mean", title: "", margin, clipped: ["negative", "bars"], free }),
      variance: panel({ name: "variance", title: "", margin, clipped: ["negative", "curves"], free: ["dots", ...free] }),
      running: panel({
        name: "running",
        title: "",
        margin: { ...margin, right: 74 },
        clipped: ["negative", "truth", "curves"],
        free: ["dots", ...free],
      }),
      carriers: panel({ name: "carriers", title: "", margin, clipped: ["curves"], free: ["dots", ...free] }),
    };
    this.next = button("", () => this.update({ sample: (this.state.sample % schema.sample.max) + 1 }), { kind: "main" });
    this.table = numbersTable();
    const { temperature, noise, top, n, seed } = this.controls;
    const { law, mean, variance, running, carriers } = this.panels;
    layOut(
      this,
      [
        [controls(temperature, noise, top), law.element, mean.element, variance.element],
        [controls(n, seed), buttons(this.next), running.element, carriers.element],
      ],
      { table: this.table },
    );
    retitle(law, `p and q over ${whole(TOKENS)} tokens`, "by rank");
    retitle(mean, "What each octave adds to KL", "in nats");
    retitle(variance, "Share of the variance", "tail shaded");
    retitle(running, "Averages as they come in", "in nats");
    retitle(carriers, "Share of the k3 mean", "a line a sample");
  }

  draw(width) {
    const { wide, each } = this.columns(width);
    const { state, panels } = this;
    panels.law.resize(each, 120);
    panels.mean.resize(each, 150);
    panels.variance.resize(each, 160);
    panels.running.resize(each, wide ? 210 : 190);
    panels.carriers.resize(each, wide ? 190 : 160);

    const view = this.#model.view(state);
    for (const [name, control] of Object.entries(this.controls)) control.show(state[name]);
    this.next.textContent = state.n === 1 ? "Next sample" : `Next sample of ${whole(state.n)}`;
    drawLaw(panels.law, view);
    drawMeans(panels.mean, view);
    drawVariances(panels.variance, view);
    drawRunning(panels.running, state, view);
    drawCarriers(panels.carriers, view);
    const words = descriptions(state, view);
    for (const [name, plot] of Object.entries(panels)) plot.describe(words[name]);
    fillTable(this.table, {
      caption: state.n === 1 ? "One sample" : `Averages of ${whole(state.n)}`,
      note: "exact, with the tail’s share of the variance, and this sample",
      columns: ["mean", "sd", "tail’s share", "seen"],
      rows: tableRows(state, view),
    });
  }

  sentence() {
    return reading(this.state, this.#model.view(this.state));
  }
}
