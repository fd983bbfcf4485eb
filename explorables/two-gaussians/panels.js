// The four pictures. Each function draws one panel from the view; none of them computes results.

import { median } from "d3-array";
import { axisBottom, axisLeft } from "d3-axis";
import { scaleLinear, scaleLog } from "d3-scale";

import { fixed, nats, signedPercent } from "../kit/format.js";
import { PER_SAMPLE, logRatio, normalPdf } from "../kit/math.js";
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
  runningTicks,
  sideLabels,
} from "../kit/plot.js";
import { DASHES } from "../kit/theme.js";
import { binEdges, exactCurve, histogram, meanRange } from "./model.js";

export const X_RANGE = [-4.6, 4.6];
const CURVE_POINTS = 240;

const xGrid = Array.from(
  { length: CURVE_POINTS + 1 },
  (_, i) => X_RANGE[0] + ((X_RANGE[1] - X_RANGE[0]) * i) / CURVE_POINTS,
);

export const xScale = (panel) => scaleLinear(X_RANGE, [panel.left, panel.right]);

const dotSize = (n) => (n <= 64 ? 5.5 : n <= 256 ? 4 : 3);

// ---- a: the two densities, p to be dragged ---------------------------------------------------

export function drawDensities(panel, state, view, handles) {
  const x = xScale(panel);
  const peak = normalPdf(0, 0, state.scale);
  const y = scaleLinear([0, 1.16 * Math.max(normalPdf(0), peak)], [panel.bottom, panel.top]);
  const curve = (mean, scale) => polyline(xGrid.map((v) => [x(v), y(normalPdf(v, mean, scale))]));
  drawX(panel, axisBottom(x).ticks(7));

  const p = curve(state.mean, state.scale);
  nameAxis(panel, "x");
  keyed(panel.layers.curves, "path", "fill", {
    d: `${p}L${panel.right},${panel.bottom}L${panel.left},${panel.bottom}Z`,
    class: "area p",
    "fill-opacity": 0.16,
  });
  keyed(panel.layers.curves, "path", "q", { d: curve(0, 1), class: "line q", "stroke-width": 2 });
  keyed(panel.layers.curves, "path", "p", {
    d: p,
    class: "line p",
    "stroke-dasharray": DASHES.p,
  });
  keyed(panel.layers.curves, "path", "rug", {
    d: Array.from(view.x, (v) => `M${x(v).toFixed(1)},${panel.bottom}v-9`).join(""),
    class: "line q",
    "stroke-width": state.n > 128 ? 0.75 : 1.5,
    "stroke-opacity": state.n > 128 ? 0.45 : 0.9,
  });

  const flank = state.mean + state.scale;
  handles.mean.show(state.mean, x(state.mean), y(peak));
  handles.scale.show(state.scale, x(flank), y(normalPdf(state.scale, 0, state.scale)));

  // q is named on the side that p has left.
  const side = state.mean >= 0 ? -1 : 1;
  const anchor = side < 0 ? "end" : "start";
  label(panel.layers.labels, "q", "q, sampled", {
    x: x(side * 1.25) + side * 6,
    y: y(normalPdf(1.25)) - 4,
    "text-anchor": anchor,
    class: "q strong halo",
  });
  const outside = state.mean >= 0 ? 1 : -1;
  const at = state.mean + outside * 1.55 * state.scale;
  const pLabel = clamp(x(at) + outside * 8, panel.left + 14, panel.right - 14);
  label(panel.layers.labels, "p", "p", {
    x: pLabel,
    y: y(normalPdf(1.55 * state.scale, 0, state.scale)) - 6,
    "text-anchor": "middle",
    class: "p strong halo",
  });
}

// ---- b: what one sample is worth -------------------------------------------------------------

export function drawValues(panel, state, view) {
  const x = xScale(panel);
  const logR = xGrid.map(logRatio(state));
  const [low, high] = valueRange(state, logR);
  const y = scaleLinear([low, high], [panel.bottom, panel.top]);
  drawX(panel, axisBottom(x).ticks(7));
  drawY(panel, axisLeft(y).ticks(5));
  nameAxis(panel, "x");
  drawNegative(panel, { y: y(0), height: panel.bottom - y(0) });

  const names = new Set();
  const ends = [];
  for (const name of state.show) {
    const points = xGrid.map((v, i) => [x(v), clampTo(y(PER_SAMPLE[name](logR[i])), panel, -40)]);
    keyed(panel.layers.curves, "path", name, {
      d: polyline(points),
      class: `line ${name}`,
      "stroke-dasharray": DASHES[name],
    });
    // A value outside the panel is drawn on its edge rather than left out.
    keyed(panel.layers.dots, "path", name, {
      d: dots(
        Array.from(view.x, (v, i) => [x(v), clampTo(y(view.values[name][i]), panel, 3)]),
      ),
      class: `dots ${name}`,
      "stroke-width": dotSize(state.n),
      "stroke-opacity": state.n > 128 ? 0.5 : 0.85,
    });
    names.add(name);
    ends.push({ name, y: points.at(-1)[1], text: name });
  }
  prune(panel.layers.curves, names);
  prune(panel.layers.dots, names);
  sideLabels(panel, ends);
}

function valueRange({ show }, logR) {
  // The middle of q, |x| < 2.5, sets the range; the rest of a curve may leave the panel.
  const central = logR.filter((_, i) => Math.abs(xGrid[i]) <= 2.5);
  const values = show.flatMap((name) => central.map(PER_SAMPLE[name]));
  const largest = Math.max(1e-9, ...values);
  const lowest = Math.min(0, ...values);
  const span = Math.min(largest, 6 * median(values) + 4 * Math.max(-lowest, 0.1 * largest));
  return [Math.min(lowest, -0.12 * span) - 0.04 * span, 1.06 * span];
}

/** A height within the panel, `inset` px from its edges. */
const clampTo = (at, panel, inset) => clamp(at, panel.top + inset, panel.bottom - inset);

// ---- c: the averages as samples come in ------------------------------------------------------

export function drawRunning(panel, state, view) {
  const { n, show } = state;
  const { kl } = view.exact;
  const x = scaleLog([1, Math.max(n, 2)], [panel.left, panel.right]);
  const [low, high] = runningRange(state, view);
  const y = scaleLinear([low, high], [panel.bottom, panel.top]);
  drawX(panel, runningTicks(axisBottom(x), n, panel));
  drawY(panel, axisLeft(y).ticks(5));
  drawNegative(panel, { y: y(0), height: panel.bottom - y(0) });

  nameAxis(panel, "samples", 22);
  const indices = logIndices(n);
  const path = (values) =>
    polyline(indices.filter((i) => i < values.length).map((i) => [x(i + 1), y(values[i])]));
  const names = new Set();
  const ends = [{ name: "truth", y: y(kl), text: `KL ${nats(kl)}` }];
  for (const name of show) {
    keyed(panel.layers.ghosts, "path", name, {
      d: view.ghosts.map((ghost) => path(ghost[name])).join(""),
      class: `ghost ${name}`,
      "stroke-opacity": 0.22,
    });
    const running = view.running[name];
    keyed(panel.layers.curves, "path", name, {
      d: path(running),
      class: `line ${name}`,
      "stroke-width": 2.25,
      "stroke-dasharray": DASHES[name],
    });
    const last = running.length - 1;
    keyed(panel.layers.dots, "path", name, {
      d: last >= 0 ? dots([[x(last + 1), y(running[last])]]) : "",
      class: `dots ${name}`,
      "stroke-width": 7,
    });
    names.add(name);
    if (last >= 0) {
      ends.push({ name, y: y(running[last]), text: `${name} ${nats(running[last])}` });
    }
  }
  for (const layer of ["ghosts", "curves", "dots"]) prune(panel.layers[layer], names);
  level(panel, "truth", "truth", y(kl), { class: "line truth", "stroke-dasharray": DASHES.truth });
  sideLabels(panel, ends);
}

function runningRange({ n, show }, { exact }) {
  // Room for averages of a few samples, where the paths begin.
  const spread = Math.sqrt(n / Math.min(n, 4));
  const finite = show.map((name) => {
    const { mean, sd } = exact[name];
    const usual = 2.2 * spread * exact.k1.sd;
    const reach = Math.min(Number.isFinite(sd) ? 2.2 * spread * sd : usual, 3 * usual);
    return [name === "k1" ? mean - reach : 0, mean + reach];
  });
  const low = Math.min(0, ...finite.map(([value]) => value));
  const widest = Math.max(1.3 * exact.kl, ...finite.map(([, value]) => value));
  const high = Math.min(widest, exact.kl + 6.6 * spread * exact.k1.sd);
  const span = high - low || 1;
  return [low - 0.06 * span, high + 0.02 * span];
}

/** At most about 90 positions of 0 … n−1, evenly spread on a logarithmic axis, ends included. */
export function logIndices(n) {
  const indices = new Set();
  for (let i = 0; i <= 90; i++) indices.add(Math.round(n ** (i / 90)) - 1);
  return [...indices];
}

// ---- d: averages of many runs against their exact distribution -------------------------------

export function drawDistributions(panel, state, view) {
  const { show } = state;
  const { exact } = view;
  const range = meanRange(exact, show);
  const edges = binEdges(range);
  const x = scaleLinear([edges[0], edges.at(-1)], [panel.left, panel.right]);
  drawX(panel, axisBottom(x).ticks(6));
  drawNegative(panel, { x: panel.left, width: x(0) - panel.left });

  const names = new Set();
  const kept = new Set(["truth"]);
  const rowHeight = (panel.bottom - panel.top) / show.length;
  show.forEach((name, row) => {
    const base = panel.top + (row + 1) * rowHeight;
    const bars = histogram(view.means[name], exact[name].distribution, edges);
    const tallest = Math.max(...bars.exact, 1e-9);
    const y = scaleLinear([0, 1.3 * tallest], [base, base - rowHeight + 6]).clamp(true);
    keyed(panel.layers.bars, "path", name, {
      d: bars.seen
        .map((share, i) =>
          share ? rectangle(x(edges[i]) + 0.5, y(share), x(edges[i + 1]) - 0.5, base) : "",
        )
        .join(""),
      class: `area ${name}`,
      "fill-opacity": 0.34,
    });
    const curve = exactCurve(exact[name].distribution, edges);
    keyed(panel.layers.curves, "path", name, {
      d: polyline(curve.map(([value, share]) => [x(value), y(share)])),
      class: `line ${name}`,
      "stroke-width": 1.75,
      "stroke-dasharray": DASHES[name],
    });
    level(panel, "base", name, base, { stroke: "var(--kl-faint)" });
    names.add(name);
    label(panel.layers.labels, name, name, {
      x: panel.right - 2,
      y: base - rowHeight + 20,
      "text-anchor": "end",
      class: `${name} strong halo`,
    });
    kept.add(name);
    const note = noteFor(name, exact, bars.beyond);
    if (note) {
      label(panel.layers.labels, `${name}-note`, note, {
        x: panel.right - 2,
        y: base - rowHeight + 35,
        "text-anchor": "end",
        class: "halo",
      });
      kept.add(`${name}-note`);
    }
    if (name === "k2" && biased(exact)) {
      keyed(panel.layers.truth, "path", "k2-mean", {
        d: `M${x(exact.k2.mean)},${base - 1}v${-(rowHeight - 10)}`,
        class: "line k2",
        "stroke-width": 1.25,
      });
      names.add("k2-mean");
    }
  });
  for (const layer of ["bars", "curves", "base"]) prune(panel.layers[layer], names);
  keyed(panel.layers.truth, "line", "truth", {
    x1: x(exact.kl),
    x2: x(exact.kl),
    y1: panel.top - 2,
    y2: panel.bottom,
    class: "line truth",
    "stroke-dasharray": DASHES.truth,
  });
  prune(panel.layers.truth, new Set([...names, "truth"]));
  label(panel.layers.labels, "truth", `KL ${nats(exact.kl)}`, {
    x: clamp(x(exact.kl), panel.left + 30, panel.right - 30),
    y: panel.top - 6,
    "text-anchor": "middle",
    class: "truth strong halo",
  });
  prune(panel.layers.labels, kept);
}

function noteFor(name, exact, beyond) {
  const notes = [];
  if (name === "k2" && biased(exact)) notes.push(`mean ${signedPercent(exact.k2.bias / exact.kl)}`);
  if (beyond) notes.push(`${beyond} further right`);
  return notes.join(", ");
}

const biased = ({ k2, kl }) => Math.abs(k2.bias) > 0.02 * kl;

const rectangle = (left, top, right, bottom) =>
  `M${left.toFixed(1)},${bottom}V${top.toFixed(1)}H${right.toFixed(1)}V${bottom}Z`;

// ---- in words ------------------------------------------------------------------------------

/** The four pictures in words, for readers who do not see them. */
export function descriptions(state, view) {
  const { exact, running } = view;
  const last = (name) => nats(running[name].at(-1) ?? NaN);
  const list = (text) => state.show.map((name) => `${name} ${text(name)}`).join(", ");
  return {
    values:
      `Value of each sample against x. k1 is below 0 wherever p is denser than q; ` +
      `k2 and k3 touch 0 there and never go below. Shown: ${state.show.join(", ")}.`,
    running: state.runs
      ? `Averages of the latest run after ${state.n} samples: ${list(last)}; the true KL is ${nats(exact.kl)}.`
      : `No run yet; the true KL is ${nats(exact.kl)}.`,
    distributions:
      `Averages of ${state.runs} runs beside their exact distributions. Exact means: ` +
      `${list((name) => fixed(exact[name].mean, 3))}; the true KL is ${nats(exact.kl)}.`,
  };
}
