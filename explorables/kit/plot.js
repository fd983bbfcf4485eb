// SVG panels at the size of the screen's pixels: no scaling, so letters stay letters.

import { select } from "d3-selection";

import { freshId, h, setAttributes, svg } from "./dom.js";

/**
 * A titled panel with a clipped drawing area. `role` is "img" for a picture with a text
 * alternative, "group" where it holds handles. Layers are drawn in the order asked for.
 */
export function panel({ name, title, role = "img", margin, clipped, free = [] }) {
  const titleId = freshId(`${name}-title`);
  const clipId = freshId(`${name}-clip`);
  const heading = h("p", { class: "panel-title", id: titleId }, title);
  const clipRect = svg("rect");
  const layers = {};
  const layer = (id, parent) => {
    layers[id] = svg("g", { class: id });
    parent.append(layers[id]);
  };
  const inner = svg("g", { "clip-path": `url(#${clipId})` });
  const root = svg(
    "svg",
    { class: `plot ${name}`, role, "aria-labelledby": titleId },
    svg("defs", {}, svg("clipPath", { id: clipId }, clipRect)),
  );
  layer("axis-x", root);
  layer("axis-y", root);
  root.append(inner);
  for (const id of clipped) layer(id, inner);
  for (const id of free) layer(id, root);
  return {
    element: h("div", { class: `panel panel-${name}` }, heading, root),
    root,
    heading,
    layers,
    margin,
    resize(width, height) {
      this.width = width;
      this.height = height;
      this.left = margin.left;
      this.right = width - margin.right;
      this.top = margin.top;
      this.bottom = height - margin.bottom;
      setAttributes(root, { width, height, viewBox: `0 0 ${width} ${height}` });
      setAttributes(clipRect, {
        x: this.left,
        y: this.top,
        width: Math.max(0, this.right - this.left),
        height: Math.max(0, this.bottom - this.top),
      });
    },
    /** What the picture shows, in words, in place of the title. */
    describe(text) {
      root.removeAttribute("aria-labelledby");
      root.setAttribute("aria-label", text);
    },
  };
}

/** A panel's title: what it shows, and a quiet word on how. */
export function retitle({ heading }, strong, quiet) {
  heading.replaceChildren(`${strong} `, h("span", {}, quiet));
}

/** Draws a d3 axis below the panel, or left of it. */
export const drawX = (panel, axis) => drawAxis(panel.layers["axis-x"], axis, 0, panel.bottom);
export const drawY = (panel, axis) => drawAxis(panel.layers["axis-y"], axis, panel.left, 0);

function drawAxis(layer, axis, x, y) {
  layer.setAttribute("transform", `translate(${x},${y})`);
  select(layer).call(axis.tickSizeOuter(0).tickSizeInner(4).tickPadding(5));
  // d3 sets a font of its own; the page's is the right one.
  for (const attribute of ["font-family", "font-size"]) layer.removeAttribute(attribute);
}

/** One element per key in a layer, made once and kept, so that updating costs no churn. */
export function keyed(layer, tag, key, attributes) {
  let element = layer.querySelector(`:scope > [data-key="${key}"]`);
  if (!element) {
    element = svg(tag, { "data-key": key });
    layer.append(element);
  }
  setAttributes(element, attributes);
  return element;
}

/** Text at a place, with a halo of the page's colour behind it. */
export function label(layer, key, content, attributes) {
  const element = keyed(layer, "text", key, attributes);
  if (element.textContent !== content) element.textContent = content;
  return element;
}

/** Removes what was `keyed` in a layer and is not in `keep`. */
export function prune(layer, keep) {
  for (const child of [...layer.children]) if (!keep.has(child.dataset.key)) child.remove();
}

/** A path of dots: with round caps, a line of no length is a dot, and a thousand are one element. */
export const dots = (points) => points.map(([x, y]) => `M${round(x)},${round(y)}h0`).join("");

export const polyline = (points) =>
  points.map(([x, y], i) => `${i ? "L" : "M"}${round(x)},${round(y)}`).join("");

const round = (value) => Math.round(value * 10) / 10;

export const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

/** A line across the panel at a height. */
export const level = (panel, layer, key, y, attributes) =>
  keyed(panel.layers[layer], "line", key, { x1: panel.left, x2: panel.right, y1: y, y2: y, ...attributes });

/**
 * Moves labels apart along one axis: each keeps its place if it can, none comes closer than `gap`
 * to its neighbour, and all stay within [low, high] if they fit. Same order as `wanted`. `gap` may
 * be a list of sizes, one per label; neighbours then stand half of both apart.
 */
export function spreadLabels(wanted, gap, low, high) {
  const size = (i) => (typeof gap === "number" ? gap : gap[i]);
  const order = wanted.map((_, i) => i).sort((a, b) => wanted[a] - wanted[b]);
  const apart = (rank) => 0.5 * (size(order[rank - 1]) + size(order[rank]));
  const at = order.map((i) => clamp(wanted[i], low, high));
  for (let i = 1; i < at.length; i++) at[i] = Math.max(at[i], at[i - 1] + apart(i));
  let limit = high;
  for (let i = at.length - 1; i >= 0; i--) {
    at[i] = Math.min(at[i], limit);
    if (i) limit = at[i] - apart(i);
  }
  const placed = new Array(wanted.length);
  order.forEach((i, rank) => (placed[i] = at[rank]));
  return placed;
}

/** Powers of two up to n as ticks, as many as have room. */
export function runningTicks(axis, n, panel) {
  const ticks = Array.from({ length: Math.log2(Math.max(n, 2)) + 1 }, (_, i) => 2 ** i);
  const every = Math.ceil((ticks.length * 30) / (panel.right - panel.left));
  return axis.tickValues(ticks.filter((_, i) => i % every === 0)).tickFormat(String);
}

/** The variable's name, right of the tick labels. */
export const nameAxis = (panel, text, offset = 12) =>
  label(panel.layers["axis-name"], "name", text, {
    x: panel.right + offset,
    y: panel.bottom + 18,
    class: "halo",
  });

/** No divergence is negative: marks the region below zero wherever an estimate can enter it. */
export function drawNegative(panel, area) {
  const box = {
    x: area.x ?? panel.left,
    y: area.y ?? panel.top,
    width: Math.max(0, area.width ?? panel.right - panel.left),
    height: Math.max(0, area.height ?? panel.bottom - panel.top),
  };
  keyed(panel.layers.negative, "rect", "box", { ...box, fill: "var(--kl-wash)" });
  const vertical = area.x !== undefined;
  keyed(panel.layers.negative, "line", "zero", {
    x1: vertical ? box.x + box.width : box.x,
    x2: box.x + box.width,
    y1: box.y,
    y2: vertical ? box.y + box.height : box.y,
    stroke: "var(--kl-rule)",
  });
  const roomy = vertical ? box.width > 52 : box.height > 18;
  label(panel.layers.negative, "word", roomy ? "below 0" : "", {
    x: box.x + 6,
    y: vertical ? box.y + 13 : box.y + box.height - 6,
  });
}

/** Names of curves right of the panel, each near its end and clear of the others. */
export function sideLabels(panel, ends) {
  const inside = ends.map((end) => ({ ...end, y: clamp(end.y, panel.top, panel.bottom) }));
  const placed = spreadLabels(inside.map((end) => end.y), 14, panel.top + 4, panel.bottom - 2);
  inside.forEach(({ name, text }, i) => {
    label(panel.layers.labels, name, text, {
      x: panel.right + 7,
      y: placed[i] + 4,
      class: `${name} strong`,
    });
  });
  prune(panel.layers.labels, new Set(ends.map((end) => end.name)));
}
