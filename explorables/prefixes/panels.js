// The three pictures. Each function draws one panel from the view; none of them computes results.

import { axisBottom, axisLeft } from "d3-axis";
import { scaleLinear } from "d3-scale";

import {
  drawX,
  drawY,
  keyed,
  label,
  nameAxis,
  polyline,
  sideLabels,
  spreadLabels,
} from "../kit/plot.js";
import { DASHES } from "../kit/theme.js";
import { COMPONENTS, chanceText, short, signed } from "./reading.js";

const LOOK = { k2: "k2", k3: "k3", kl: "truth" };

// ---- a: the tree -------------------------------------------------------------------------------

const BAR = 24; // px
const ROWS = { bar: [22, 148], name: [12, 138], leaf: 228 };

/** The bar of node 0 (start), 1 (after A) or 2 (after B): its border stands at q of A. */
export function barOf({ left, right }, i) {
  const all = right - left;
  const width = (i ? 0.42 : 0.46) * all;
  const middle = left + (i ? [0.25, 0.75][i - 1] : 0.5) * all;
  return { x: middle - width / 2, width, y: ROWS.bar[Math.min(i, 1)] };
}

export const barScale = (panel, i) => {
  const { x, width } = barOf(panel, i);
  return scaleLinear([0, 1], [x, x + width]);
};

export function drawTree(panel, view, handles) {
  const { nodes, leaves } = view;
  nodes.forEach((node, i) => {
    const { x, width, y } = barOf(panel, i);
    const border = barScale(panel, i)(node.q);
    const halves = { A: [x, border], B: [border, x + width] };
    for (const [letter, [from, to]] of Object.entries(halves)) {
      keyed(panel.layers.bars, "rect", `${i}${letter}`, {
        x: from,
        y,
        width: Math.max(0, to - from),
        height: BAR,
        class: `half ${letter}`,
      });
      label(panel.layers.labels, `${i}${letter}`, to - from > 44 ? letter : "", {
        x: letter === "A" ? from + 10 : to - 10,
        y: y + 16,
        "text-anchor": "middle",
        class: "truth strong",
      });
    }
    const mark = barScale(panel, i)(node.p);
    keyed(panel.layers.bars, "path", `p${i}`, { d: `M${mark},${y - 5}v${BAR + 10}`, class: "line p" });
    const cost = i ? `after ${node.prefix}: KL ` : "start: KL ";
    label(panel.layers.labels, `kl${i}`, cost + short(node.kl), {
      x: x + width / 2,
      y: ROWS.name[Math.min(i, 1)],
      "text-anchor": "middle",
      class: `halo strong ${i ? "truth" : ""}`,
    });
    handles[i].show(node.q, border, y + BAR / 2, rangeWith(node.q));
  });
  const middles = nodes.map(({ q }, i) => {
    const bar = barScale(panel, i);
    return { A: bar(q / 2), B: bar((1 + q) / 2) };
  });
  [1, 2].forEach((i) => {
    const from = [middles[0][nodes[i].prefix], ROWS.bar[0] + BAR];
    const to = [barScale(panel, i)(0.5), ROWS.name[1] - 13];
    ribbon(panel, nodes[i].prefix, from, to, nodes[i].reach);
    const outside = i === 1 ? -1 : 1;
    const at = { x: (from[0] + to[0]) / 2 + 24 * outside, "text-anchor": i === 1 ? "end" : "start" };
    const reached = i === 1 ? nodes[0].p : 1 - nodes[0].p;
    label(panel.layers.labels, `q${i}`, `q ${chanceText(nodes[i].reach)}`, { ...at, y: 66, class: "q" });
    label(panel.layers.labels, `reach${i}`, `p ${chanceText(reached)}`, { ...at, y: 81, class: "p" });
  });
  leaves.forEach(({ name, q, p }, k) => {
    const node = 1 + (k >> 1);
    const x = barScale(panel, node)(k & 1 ? 0.8 : 0.2);
    ribbon(panel, name, [middles[node][name[1]], ROWS.bar[1] + BAR], [x, ROWS.leaf - 13], q);
    const at = { x, "text-anchor": "middle" };
    label(panel.layers.labels, name, name, { ...at, y: ROWS.leaf, class: "truth strong" });
    label(panel.layers.labels, `q${name}`, `q ${short(q)}`, { ...at, y: ROWS.leaf + 15, class: "q" });
    label(panel.layers.labels, `p${name}`, `p ${short(p)}`, { ...at, y: ROWS.leaf + 30, class: "p" });
  });
}

function ribbon(panel, key, [x, y], [toX, toY], share) {
  const middle = (y + toY) / 2;
  keyed(panel.layers.ribbons, "path", key, {
    d: `M${x},${y}C${x},${middle} ${toX},${middle} ${toX},${toY}`,
    class: "ribbon",
    "stroke-width": Math.max(1, 24 * share).toFixed(1),
  });
}

const [LOW, HIGH, STEP] = [0.02, 0.98, 0.01];

/** The range of a probability's control; where it has a name, it may lie beyond. */
export const rangeWith = (q) => ({ min: Math.min(LOW, q), max: Math.max(HIGH, q), step: STEP });

// ---- b: what is kept, what is dropped, and their sum -------------------------------------------

const GROUP = 80; // px

export function drawParts(panel, state, { parts }) {
  const rows = parts.map((part) => lanes(state.loss, part));
  const ends = rows.flat().flatMap(({ from, to }) => [from, to]);
  const [low, high] = [Math.min(...ends, 0), Math.max(...ends, 0)];
  const pad = high > low ? 0.06 * (high - low) : 0.05;
  const x = scaleLinear([low - pad, high + pad], [panel.left, panel.right]);
  drawX(panel, axisBottom(x).ticks(3));
  keyed(panel.layers.base, "path", "zero", { d: `M${x(0)},${panel.top}V${panel.bottom}`, class: "base" });
  rows.forEach((all, i) => {
    const top = panel.top + i * GROUP;
    label(panel.layers.labels, `name${i}`, `logit of ${COMPONENTS[i]}`, {
      x: 0,
      y: top + 12,
      class: "truth strong",
    });
    const each = 58 / all.length;
    for (let k = 0; k < MOST_LANES; k++) {
      const { name, look, from, to, value } = all[k] ?? NO_LANE;
      const y = top + 17 + k * each;
      const key = `${i}${k}`;
      keyed(panel.layers.bars, "rect", key, {
        x: Math.min(x(from), x(to)),
        y: y + 2,
        width: Math.abs(x(to) - x(from)),
        height: name ? each - 4 : 0,
        class: `part ${look}`,
      });
      keyed(panel.layers.base, "path", key, {
        d: k + 1 < all.length ? `M${x(to)},${y + 2}V${y + 2 * each - 2}` : "",
        class: "base",
      });
      const baseline = y + each / 2 + 4;
      label(panel.layers.labels, key, name, { x: panel.left - 8, y: baseline, "text-anchor": "end" });
      label(panel.layers.labels, `${key}=`, name && signed(value), {
        x: panel.width,
        y: baseline,
        "text-anchor": "end",
        class: "truth",
      });
    }
  });
}

const MOST_LANES = 4;
const NO_LANE = { name: "", look: "", from: 0, to: 0, value: 0 };

function lanes(loss, { kept, own, later, sum }) {
  const dropped =
    loss === "k3"
      ? [
          { name: "own", look: "dropped", from: kept, to: kept + own, value: own },
          { name: "later", look: "dropped", from: kept + own, to: sum, value: later },
        ]
      : [{ name: "dropped", look: "dropped", from: kept, to: sum, value: later }];
  return [
    { name: "kept", look: LOOK[loss], from: 0, to: kept, value: kept },
    ...dropped,
    { name: "∇KL(Q‖P)", look: "ink", from: 0, to: sum, value: sum },
  ];
}

// ---- c: KL as the first step moves -------------------------------------------------------------

const grid = Array.from({ length: 197 }, (_, i) => 0.01 + 0.005 * i);

export const chanceScale = (panel) => scaleLinear([0, 1], [panel.left, panel.right]);

export function drawCurve(panel, state, view, handle) {
  const { q, kl, curve, believed, rest, least, parts } = view;
  const x = chanceScale(panel);
  const highest = 1.05 * Math.max(...grid.map(curve), 0.02);
  const y = scaleLinear([Math.min(0, 1.1 * Math.min(...grid.map(believed))), highest], [
    panel.bottom,
    panel.top,
  ]);
  drawX(panel, axisBottom(x).ticks(5));
  drawY(panel, axisLeft(y).ticks(4));
  nameAxis(panel, "q(A)", 16);
  const look = LOOK[state.loss];
  const trace = (f) => polyline(grid.map((at) => [x(at), Math.max(y(f(at)), -1e4)]));
  keyed(panel.layers.curves, "path", "believed", {
    d: trace(believed),
    class: `line ${look}`,
    "stroke-dasharray": DASHES[look],
  });
  keyed(panel.layers.curves, "path", "kl", { d: trace(curve), class: "line ink" });

  const marks = [
    { key: "rest", at: rest, text: "token loss rests", look },
    { key: "least", at: least, text: "least KL", look: "ink" },
  ];
  const places = spreadLabels(
    marks.map(({ at }) => x(at.q)),
    marks.map(({ text }) => 6.5 * text.length + 10),
    panel.left + 20,
    panel.right - 10,
  );
  marks.forEach(({ key, at, text, look: own }, i) => {
    keyed(panel.layers.marks, "path", key, {
      d: `M${x(at.q)},${y(at.kl)}V${panel.top}L${places[i]},${panel.top - 8}`,
      class: `stem ${own}`,
    });
    label(panel.layers.labels, key, text, {
      x: places[i],
      y: panel.top - 12,
      "text-anchor": "middle",
      class: `${own} strong`,
    });
  });
  const low = y(kl) - panel.top < 56; // no room above
  const steps = [
    { key: "token", gradient: parts[0].kept, look, lane: 1 },
    { key: "sequence", gradient: parts[0].sum, look: "ink", lane: 2 },
  ];
  for (const { key, gradient, look: own, lane } of steps) {
    keyed(panel.layers.marks, "path", `step-${key}`, {
      d: arrow(x(q), y(kl) + (low ? 1 : -1) * (8 + 14 * lane), gradient),
      class: `step ${own}`,
    });
  }
  handle.show(q, x(q), y(kl), rangeWith(q));
  sideLabels({ ...panel, layers: { labels: panel.layers.names } }, [
    { name: "ink", y: y(curve(0.99)), text: "KL(Q‖P)" },
    { name: look, y: y(believed(0.99)), text: "token loss" },
  ]);
}

// Where descent goes: against the gradient, and further where that is larger.
function arrow(x, y, gradient) {
  if (gradient === 0) return "";
  const side = gradient < 0 ? 1 : -1;
  const length = side * Math.min(8 + 120 * Math.abs(gradient), 60);
  return `M${x},${y}h${length}m${-6 * side},-5l${6 * side},5l${-6 * side},5`;
}
