// Draws one panel from the view; none of them computes results.

import { axisBottom, axisLeft } from "d3-axis";
import { scaleLinear } from "d3-scale";

import { coefficient, nats } from "../kit/format.js";
import { k3 } from "../kit/math.js";
import {
  clamp,
  dots,
  drawNegative,
  drawX,
  drawY,
  keyed,
  level,
  label,
  nameAxis,
  polyline,
  prune,
  sideLabels,
} from "../kit/plot.js";
import { DASHES } from "../kit/theme.js";
import { GRID, REACH } from "./fit.js";
import { WEIGHT } from "./reading.js";

const R_MAX = 4;
const MIDDLE = GRID.length / 2;
const EVERY = 64;

// Of the grid, enough points for a curve, and both sides of a jump at 0.
const SHOWN = (() => {
  const shown = [MIDDLE - 1, MIDDLE];
  for (let i = MIDDLE + EVERY; i < GRID.length; i += EVERY) shown.push(i), shown.unshift(GRID.length - 1 - i);
  return shown;
})();
const SHOWN_R = SHOWN.filter((i) => GRID[i] <= Math.log(R_MAX) + 0.02);

export const lScale = (panel) => scaleLinear([-REACH, REACH], [panel.left, panel.right]);

const BEYOND = 12; // px

/** A curve with a gap wherever it has no finite value; what leaves the panel does not go far. */
function curve(panel, points) {
  const stretches = [[]];
  for (const [x, y] of points) {
    if (Number.isFinite(y)) stretches.at(-1).push([x, clamp(y, panel.top - BEYOND, panel.bottom + BEYOND)]);
    else if (stretches.at(-1).length) stretches.push([]);
  }
  return stretches.map(polyline).join("");
}

/** The range of what is given, with room around it; 0 is in it. */
function range(values) {
  const finite = values.filter((value) => Math.abs(value) < 1e12);
  const [low, high] = [Math.min(0, ...finite), Math.max(0, ...finite)];
  const size = high - low || 1;
  return [low - 0.12 * size, high + 0.12 * size];
}

function axes(panel, x, y, name) {
  drawX(panel, axisBottom(x).ticks(6).tickFormat(coefficient));
  drawY(panel, axisLeft(y).ticks(5).tickFormat(coefficient));
  nameAxis(panel, name);
}

const near = (part, reach) => SHOWN.filter((i) => Math.abs(GRID[i]) <= reach).map((i) => part[i]);

// ---- a: the value of a sample -------------------------------------------------------------------

export function drawValue(panel, view, handle) {
  const { sample, flats } = view;
  const { value } = view.curve;
  const x = lScale(panel);
  const usual = near(value, 2);
  const beyond = (v) => Math.abs(v) > 4 * Math.max(...usual.map(Math.abs));
  const bounds = [value[0], value.at(-1)].filter((v, i) => flats.value.some((flat) => flat[i] === [-Infinity, Infinity][i]));
  const seen = [...usual, ...bounds.filter((v) => !beyond(v))];
  const y = scaleLinear(range([...seen, clamp(sample.value, 2 * Math.min(0, ...seen), 2 * Math.max(0, ...seen))]), [
    panel.bottom,
    panel.top,
  ]);
  axes(panel, x, y, "l");
  drawNegative(panel, { y: y(0), height: panel.bottom - y(0) });
  const kept = new Set();
  const shown = flats.value
    .map(([from, to]) => [Math.max(from, -REACH), Math.min(to, REACH)])
    .filter(([from, to]) => to - from > 0.01);
  shown.forEach(([from, to], i) => {
    const inside = SHOWN.filter((k) => GRID[k] >= from && GRID[k] <= to);
    keyed(panel.layers.flats, "path", `flat-${i}`, {
      d: curve(panel, inside.map((k) => [x(GRID[k]), y(value[k])])),
      class: "flat",
    });
    kept.add(`flat-${i}`);
  });
  prune(panel.layers.flats, kept);
  keyed(panel.layers.curves, "path", "h", {
    d: curve(panel, SHOWN.map((i) => [x(GRID[i]), y(value[i])])),
    class: "line curve",
    "stroke-width": 2.5,
  });

  const finite = Number.isFinite(sample.value);
  const [px, py] = [x(sample.l), finite ? clamp(y(sample.value), panel.top, panel.bottom) : panel.bottom];
  const foot = clamp(y(0), panel.top, panel.bottom);
  keyed(panel.layers.gap, "path", "gap", { d: `M${px},${py}V${foot}`, class: "line sample", "stroke-width": 3.5 });
  handle.show(sample.l, px, py);
  const right = px < panel.right - 90;
  label(panel.layers.labels, "sample", finite ? nats(sample.value) : "no number", {
    x: px + (right ? 20 : -20),
    y: clamp(py + 5, panel.top + 12, panel.bottom - 22),
    "text-anchor": right ? "start" : "end",
    class: "ink strong large halo",
  });
  const widest = [...shown].sort(([a, b], [c, d]) => d - c - (b - a))[0];
  const middle = widest ? x(0.5 * (widest[0] + widest[1])) : 0;
  const free = widest && x(widest[1]) - x(widest[0]) > 30 && Math.abs(middle - px) > 84;
  label(panel.layers.labels, "flat", free ? "flat" : "", {
    x: middle,
    y: panel.top + 12,
    "text-anchor": "middle",
    class: "k1 strong halo",
  });
}

// ---- b: the weight that a sample puts on its score ----------------------------------------------

export function drawWeight(panel, state, view) {
  const { weight } = view.curve;
  const x = lScale(panel);
  const y = scaleLinear(range([-1.6, 1.6, ...near(weight, 1.6)]), [panel.bottom, panel.top]);
  axes(panel, x, y, "l");
  level(panel, "curves", "zero", y(0), { stroke: "var(--kl-faint)" });
  const mark = view.sample.weight - view.atOne;
  twoCurves(panel, {
    yours: SHOWN.map((i) => [x(GRID[i]), y(weight[i])]),
    truth: SHOWN.map((i) => [x(GRID[i]), y(-GRID[i])]),
    marks: [[x(view.sample.l), y(mark)], [x(view.sample.l), y(view.sample.kl)]],
    name: WEIGHT[state.usage],
  });
}

// ---- c: the generator ---------------------------------------------------------------------------

export function drawGenerator(panel, view) {
  const { f } = view.curve;
  const x = scaleLinear([0, R_MAX], [panel.left, panel.right]);
  const inside = SHOWN_R.filter((i) => GRID[i] >= -2).map((i) => f[i]);
  const y = scaleLinear(range([k3(-2), k3(Math.log(R_MAX)), ...inside]), [panel.bottom, panel.top]);
  axes(panel, x, y, "r");
  level(panel, "curves", "zero", y(0), { stroke: "var(--kl-faint)" });
  const r = Math.exp(view.sample.l);
  const nearest = GRID.findIndex((l) => l >= view.sample.l);
  twoCurves(panel, {
    yours: SHOWN_R.map((i) => [x(Math.exp(GRID[i])), y(f[i])]),
    truth: SHOWN_R.map((i) => [x(Math.exp(GRID[i])), y(k3(GRID[i]))]),
    marks: r <= R_MAX ? [[x(r), y(f[nearest])], [x(r), y(k3(view.sample.l))]] : [],
    name: "f",
  });
}

/** Yours and, dotted, that of KL(q‖p), with the marked sample on both and their names beside. */
function twoCurves(panel, { yours, truth, marks, name }) {
  const { curves, dots: layer } = panel.layers;
  keyed(curves, "path", "truth", {
    d: curve(panel, truth),
    class: "line truth",
    "stroke-dasharray": DASHES.truth,
    "stroke-width": 2,
  });
  keyed(curves, "path", "yours", { d: curve(panel, yours), class: "line curve", "stroke-width": 2.5 });
  const inside = marks.filter(([, y]) => Number.isFinite(y) && y >= panel.top && y <= panel.bottom);
  keyed(curves, "path", "sample", {
    d: marks.length ? `M${marks[0][0]},${panel.top}V${panel.bottom}` : "",
    class: "line sample thin",
  });
  keyed(layer, "path", "marks", { d: dots(inside), class: "dots ink", "stroke-width": 8 });
  const last = (points) => points.findLast(([, y]) => Number.isFinite(y))?.[1] ?? panel.bottom;
  sideLabels(panel, [
    { name: "curve", y: last(yours), text: name },
    { name: "truth", y: last(truth), text: "KL(q‖p)" },
  ]);
}
