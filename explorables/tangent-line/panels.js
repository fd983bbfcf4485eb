// The three pictures. Each function draws one panel from the view; none of them computes results.

import { axisBottom, axisLeft } from "d3-axis";
import { scaleLinear } from "d3-scale";

import { coefficient, nats, percent } from "../kit/format.js";
import { GENERATORS, controlled, normalPdf } from "../kit/math.js";
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
  spreadLabels,
} from "../kit/plot.js";
import { DASHES } from "../kit/theme.js";

const R_MAX = 4;
const rGrid = Array.from({ length: 241 }, (_, i) => Math.max(0.004, (R_MAX * i) / 240));

// 0 with KL(q||p) is k1 and the tangent is k3, so they keep those looks for every f.
const LOOK = { zero: "k1", tangent: "k3", best: "ink", yours: "ink" };
const lookOf = ({ kind }) => LOOK[kind];

export const rScale = (panel) => scaleLinear([0, R_MAX], [panel.left, panel.right]);
export const lambdaScale = (panel, { min, max }) => scaleLinear([min, max], [panel.left, panel.right]);

// ---- a: the curve, the line, and the gap between them ----------------------------------------

export function drawCurve(panel, state, view, handle) {
  const { f, slope } = GENERATORS[state.f];
  const { lambda, value, yours } = view;
  const x = rScale(panel);
  const y = scaleLinear(curveRange(f, slope), [panel.bottom, panel.top]);
  const line = (r) => -lambda * (r - 1);
  const at = (r) => f(Math.log(r));
  drawX(panel, axisBottom(x).ticks(5));
  drawY(panel, axisLeft(y).ticks(6));
  nameAxis(panel, "r");

  drawDensity(panel, x, state.mean);
  drawBelow(panel, x, (r) => y(at(r)), (r) => y(line(r)), yours.below);
  level(panel, "curves", "zero", y(0), { stroke: "var(--kl-faint)" });
  keyed(panel.layers.curves, "path", "line", {
    d: polyline([0, R_MAX].map((r) => [x(r), y(line(r))])),
    class: `line ${lookOf(yours)}`,
    "stroke-dasharray": DASHES[lookOf(yours)] ?? "none",
    "stroke-width": 1.75,
  });
  keyed(panel.layers.curves, "path", "f", {
    d: polyline(rGrid.map((r) => [x(r), Math.max(y(at(r)), -1e4)])),
    class: "line curve",
    "stroke-width": 2.5,
  });

  const [top, foot] = [y(at(state.r)), y(line(state.r))].map((v) => clamp(v, panel.top, panel.bottom));
  keyed(panel.layers.gap, "path", "gap", {
    d: `M${x(state.r)},${top}V${foot}M${x(state.r) - 5},${foot}h10`,
    class: `line ${lookOf(yours)}`,
    "stroke-width": 3.5,
  });
  handle.show(state.r, x(state.r), top);
  // Curve and line part away from r = 1, so there is room between them on the far side.
  const right = state.r >= 1 ? x(state.r) < panel.right - 74 : x(state.r) < panel.left + 74;
  const px = x(state.r) + (right ? 22 : -22);
  const beside = Math.max(x.invert(px + (right ? 20 : -20)), 0.004);
  const between = 0.5 * (clamp(y(at(beside)), panel.top, panel.bottom) + clamp(y(line(beside)), panel.top, panel.bottom));
  const py = clamp(between + (value < 0 ? -3 : 5), panel.top + 14, panel.bottom - 30);
  const where = { x: px, "text-anchor": right ? "start" : "end" };
  label(panel.layers.labels, "gap", nats(value), { ...where, y: py, class: "ink strong large halo" });
  label(panel.layers.labels, "sign", value < 0 ? "below 0" : "", { ...where, y: py + 15, class: "halo" });
  sideLabels({ ...panel, layers: { labels: panel.layers.names } }, [
    { name: "curve", y: y(at(R_MAX)), text: "f(r)" },
    { name: lookOf(yours), y: y(line(R_MAX)), text: "−λ(r − 1)" },
  ]);
}

// The middle of the curve and of its tangent; the rest may leave the panel.
function curveRange(f, slope) {
  const grid = rGrid.filter((r) => r >= 0.13);
  const values = [...grid.map((r) => f(Math.log(r))), slope * (R_MAX - 1), -slope];
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return [low - 0.18 * (high - low), high + 0.04 * (high - low)];
}

function drawDensity(panel, x, mean) {
  const density = (r) => normalPdf(Math.log(r) / mean + 0.5 * mean) / (mean * r);
  // Around r = 1 a small mean makes a peak that the grid of the curve would miss.
  const at = [...rGrid, ...Array.from({ length: 61 }, (_, i) => Math.exp(mean * (i / 10 - 3)))]
    .filter((r) => r <= R_MAX)
    .sort((a, b) => a - b);
  const values = at.map(density);
  const scale = (0.15 * (panel.bottom - panel.top)) / Math.max(...values);
  const outline = polyline(at.map((r, i) => [x(r), panel.bottom - scale * values[i]]));
  keyed(panel.layers.density, "path", "density", {
    d: `${outline}L${x(at.at(-1))},${panel.bottom}L${panel.left},${panel.bottom}Z`,
    class: "area q",
    "fill-opacity": 0.3,
  });
  label(panel.layers.labels, "density", "density of r under q", {
    x: panel.right,
    y: panel.bottom - 7,
    "text-anchor": "end",
    class: "q halo",
  });
}

function drawBelow(panel, x, curve, line, { from, to, share }) {
  const [low, high] = [Math.exp(from), Math.min(Math.exp(to), R_MAX)];
  const inside = Array.from({ length: 61 }, (_, i) => Math.max(low + ((high - low) * i) / 60, 0.004));
  const there = share > 0 && low < R_MAX;
  const outline = [
    ...inside.map((r) => [x(r), curve(r)]),
    ...inside.reverse().map((r) => [x(r), line(r)]),
  ];
  keyed(panel.layers.below, "path", "below", {
    d: there ? `${polyline(outline)}Z` : "",
    class: "area below",
  });
}

// ---- b: variance against lambda --------------------------------------------------------------

export function drawVariance(panel, state, view, handle) {
  const { exact, range, lines, yours } = view;
  const variance = (lambda) => exact.least + exact.curvature * (lambda - exact.best) ** 2;
  const x = lambdaScale(panel, range);
  const highest = 1.25 * Math.max(...lines.map((line) => line.variance));
  const y = scaleLinear([0, Math.min(Math.max(highest, 1.6 * exact.least), 6 * exact.least)], [
    panel.bottom,
    panel.top,
  ]);
  const crowded = panel.right - panel.left < 320 ? 5 : 7;
  drawX(panel, axisBottom(x).ticks(crowded));
  drawY(panel, axisLeft(y).ticks(4).tickFormat(coefficient));
  nameAxis(panel, "λ");
  const points = Array.from({ length: 121 }, (_, i) => range.min + ((range.max - range.min) * i) / 120);
  keyed(panel.layers.curves, "path", "parabola", {
    d: polyline(points.map((lambda) => [x(lambda), Math.max(y(variance(lambda)), -1e4)])),
    class: "line curve",
  });

  const outside = ({ variance: height }) => y(height) < panel.top;
  const names = lines.map((line) => (outside(line) ? `${line.name} ↑` : line.name));
  const places = spreadLabels(
    lines.map((line) => x(line.lambda)),
    names.map((name) => 7 * name.length + 8),
    panel.left,
    panel.right - 20,
  );
  const kept = new Set();
  lines.forEach((line, i) => {
    const look = lookOf(line);
    const px = x(line.lambda);
    keyed(panel.layers.stems, "path", line.kind, {
      d: `M${px},${panel.bottom}V${panel.top}L${places[i]},${panel.top - 8}`,
      class: `stem ${look}`,
    });
    keyed(panel.layers.dots, "path", line.kind, {
      d: outside(line) ? "" : dots([[px, y(line.variance)]]),
      class: `dots ${look}`,
      "stroke-width": 8,
    });
    label(panel.layers.labels, line.kind, names[i], {
      x: places[i],
      y: panel.top - 12,
      "text-anchor": "middle",
      class: `${look} strong`,
    });
    kept.add(line.kind);
  });
  for (const layer of ["stems", "dots", "labels"]) prune(panel.layers[layer], kept);
  handle.show(yours.lambda, x(yours.lambda), clamp(y(yours.variance), panel.top, panel.bottom), range);
}

// ---- c: what samples are worth ---------------------------------------------------------------

export function drawStrip(panel, state, view) {
  const { rows, window, exact } = view;
  const x = scaleLinear(window, [panel.left, panel.right]);
  drawX(panel, axisBottom(x).ticks(5));
  drawNegative(panel, { x: panel.left, width: x(0) - panel.left });
  nameAxis(panel, "v", 8);
  const height = (panel.bottom - panel.top) / 2;
  const kept = new Set(["truth", "zero"]);
  rows.forEach(({ line, values }, row) => {
    const top = panel.top + row * height + 22;
    const room = height - 30;
    const key = `row-${row}`;
    keyed(panel.layers.dots, "path", key, {
      d: dots(
        Array.from(values, (value, i) => [
          clamp(x(value), panel.left + 3, panel.right - 3),
          top + room * ((0.5 + i * 0.6180339887) % 1),
        ]),
      ),
      class: `dots ${lookOf(line)}`,
      "stroke-width": 5,
      "stroke-opacity": 0.7,
    });
    label(panel.layers.labels, key, `${rowName(line)}: ${belowName(line)}`, {
      x: panel.right,
      y: panel.top + row * height + 13,
      "text-anchor": "end",
      class: `${lookOf(line)} strong halo`,
    });
    kept.add(key);
  });
  keyed(panel.layers.curves, "line", "truth", {
    x1: x(exact.divergence),
    x2: x(exact.divergence),
    y1: panel.top,
    y2: panel.bottom,
    class: "line truth",
    "stroke-dasharray": DASHES.truth,
  });
  for (const layer of ["dots", "labels"]) prune(panel.layers[layer], kept);
}

function rowName({ name, lambda }) {
  if (name.startsWith("0")) return name;
  return name === "λ*" ? `λ* = ${coefficient(lambda)}` : [name, `λ = ${coefficient(lambda)}`].filter(Boolean).join(", ");
}

const belowName = ({ below }) => (below.share === 0 ? "none below 0" : `${percent(below.share)} below 0`);
