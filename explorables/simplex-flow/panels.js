// The three pictures. Each function draws one panel from the view; none of them computes results.

import { axisBottom, axisLeft } from "d3-axis";
import { scaleLinear, scaleLog } from "d3-scale";

import { dots, drawX, drawY, keyed, label, nameAxis, polyline, prune, sideLabels } from "../kit/plot.js";
import { DASHES } from "../kit/theme.js";
import { LATTICE, START, TOKENS, distanceAt, lastTime, lawAt } from "./model.js";
import { PENALTY_NAMES, bestName } from "./reading.js";

const HEIGHT = Math.sqrt(3) / 2; // of a triangle with side 1
const LONGEST = 0.095; // an arrow of the field, in sides
const HEAD = 2.6; // rad between the shaft and a barb

// ---- laws as points --------------------------------------------------------------------------

/** The height of a panel whose triangle fills its width. */
export const triangleHeight = (width, { left, right, top, bottom }) =>
  Math.round((width - left - right) * HEIGHT) + top + bottom;

/** A is at the left below, B at the right below, C above. */
export function place(panel, [, b, c]) {
  const side = panel.right - panel.left;
  return [panel.left + (b + c / 2) * side, panel.bottom - c * HEIGHT * side];
}

/** The weights of the tokens at a point; outside the triangle those on its nearest side are 0. */
export function weights(panel, x, y) {
  const side = panel.right - panel.left;
  const c = (panel.bottom - y) / (HEIGHT * side);
  const b = (x - panel.left) / side - c / 2;
  return [1 - b - c, b, c].map((weight) => Math.max(weight, 0));
}

/** A difference of two laws as a move in the panel. */
function shift(panel, [, b, c]) {
  const side = panel.right - panel.left;
  return [(b + c / 2) * side, -c * HEIGHT * side];
}

// ---- the two triangles -----------------------------------------------------------------------

const lookOf = ({ penalty }) => (Object.hasOwn(DASHES, penalty) ? penalty : "ink");

/** `time` is how far the paths have come, Infinity when they are whole. */
export function drawOwn(panel, state, view, time, handles) {
  const taken = drawTriangle(panel, state, view, view.own, lookOf(state), time);
  const scale = scaleOf(view);
  const arrows = [
    ["wanted", view.truth.step, "truth"],
    ["own", view.own.step, lookOf(state)],
  ];
  for (const [key, step, look] of arrows) {
    const [shaft, head] = arrow(place(panel, state.q), shift(panel, scale(step, 2.4)), 9, 8);
    for (const [part, d] of [["shaft", shaft], ["head", head]]) {
      keyed(panel.layers.steps, "path", `${key}-${part}`, {
        d,
        class: `line step ${look}`,
        "stroke-dasharray": look === "truth" && part === "shaft" ? DASHES.truth : "none",
      });
    }
  }
  for (const name of ["p", "q"]) {
    const law = state[name];
    handles[name].show(law[0], ...place(panel, law), law.map((share, i) => `${TOKENS[i]} ${share}`).join(", "));
  }
  nameLaws(panel, state, view, taken);
}

export function drawTruth(panel, state, view, time) {
  const taken = drawTriangle(panel, state, view, view.truth, "truth", time);
  for (const name of ["p", "q"]) {
    const [cx, cy] = place(panel, state[name]);
    keyed(panel.layers.marks, "circle", name, { cx, cy, r: 5, class: `law ${name}` });
  }
  nameLaws(panel, state, view, taken);
}

/** Outline, field, path and π*; returns the boxes that are taken, for the names of the laws. */
function drawTriangle(panel, state, view, side, look, time) {
  const corners = [[1, 0, 0], [0, 1, 0], [0, 0, 1]].map((law) => place(panel, law));
  keyed(panel.layers.outline, "path", "outline", { d: `${polyline(corners)}Z`, class: "outline" });
  const names = [
    { dx: -4, dy: 15, "text-anchor": "end" },
    { dx: 4, dy: 15, "text-anchor": "start" },
    { dx: 0, dy: -6, "text-anchor": "middle" },
  ];
  TOKENS.forEach((token, i) => {
    const { dx, dy, ...where } = names[i];
    const [x, y] = corners[i];
    label(panel.layers.labels, token, token, { x: x + dx, y: y + dy, class: "strong ink", ...where });
  });

  const scale = scaleOf(view);
  const arrows = LATTICE.map((law, i) => {
    const [x, y] = place(panel, law);
    const [dx, dy] = shift(panel, scale(side.field[i], 1));
    return arrow([x - dx / 2, y - dy / 2], [dx, dy], 0, 4.5).join("") || dots([[x, y]]);
  });
  keyed(panel.layers.field, "path", "field", { d: arrows.join(""), class: `field ${look}` });

  const walked = side.path.filter(({ t }) => t < time).map(({ q }) => q);
  const last = time === Infinity ? side.end : lawAt(side, time);
  const points = [...walked, last].map((law) => place(panel, law));
  keyed(panel.layers.paths, "path", "path", {
    d: polyline(points),
    class: `line path ${look}`,
    "stroke-dasharray": DASHES[look] ?? "none",
  });
  const moved = side.path.length > 1;
  keyed(panel.layers.paths, "path", "end", {
    d: moved ? dots([points.at(-1)]) : "",
    class: `dots ${look}`,
    "stroke-width": 10,
  });

  const [x, y] = place(panel, view.best);
  const diamond = state.reward === "none" ? "" : `M${x},${y - 7}l7,7l-7,7l-7,-7Z`;
  keyed(panel.layers.marks, "path", "best", { d: diamond, class: "best" });
  return corners.map(([cx, cy], i) => box(cx + [-9, 9, 0][i], cy + [11, 11, -10][i], 12, 14));
}

/** The square root of a step's length decides on an arrow's, so that small ones are seen. */
function scaleOf({ truth }) {
  const usual = Math.max(...truth.field.map((v) => Math.hypot(...v)));
  return (vector, most) => {
    const length = Math.hypot(...vector);
    // A difference of laws is √2 times as long as its move along the side of the triangle.
    const wanted = most * LONGEST * Math.sqrt(Math.min(length / usual, 1)) * Math.SQRT2;
    return length < 1e-14 ? [0, 0, 0] : vector.map((part) => (part / length) * wanted);
  };
}

/** A shaft that begins `from` px away, and its two barbs; both empty where it has no length. */
function arrow([x, y], [dx, dy], from, head) {
  const length = Math.hypot(dx, dy);
  if (length < 1) return ["", ""];
  const [ux, uy] = [dx / length, dy / length];
  const tip = [x + ux * (from + length), y + uy * (from + length)];
  const barb = (turn) => {
    const [c, s] = [Math.cos(turn), Math.sin(turn)];
    const reach = Math.min(head, 0.6 * length);
    return [tip[0] + reach * (ux * c - uy * s), tip[1] + reach * (ux * s + uy * c)];
  };
  return [
    polyline([[x + ux * from, y + uy * from], tip]),
    polyline([barb(HEAD), tip, barb(-HEAD)]),
  ];
}

// ---- names that keep clear of each other -----------------------------------------------------

const box = (x, y, width, height) => ({ x, y, width, height }); // around a centre
const apart = (a, b) =>
  Math.abs(a.x - b.x) >= 0.5 * (a.width + b.width) || Math.abs(a.y - b.y) >= 0.5 * (a.height + b.height);
const AROUND = [[0, -1], [1, -1], [-1, -1], [1, 0], [-1, 0], [1, 1], [-1, 1], [0, 1]];

/** Writes q, p and π* beside their places, each where nothing stands yet. */
function nameLaws(panel, state, view, taken) {
  const laws = { q: state.q, p: state.p, ...(state.reward === "none" ? {} : { best: view.best }) };
  const knobs = Object.values(laws).map((law) => box(...place(panel, law), 16, 16));
  const boxes = [...taken, ...knobs];
  for (const [name, law] of Object.entries(laws)) {
    const text = name === "best" ? bestName(state) : name;
    const [x, y] = place(panel, law);
    const options = [19, 32].flatMap((far) =>
      AROUND.map(([dx, dy]) => box(x + dx * far, y + dy * far * 0.95, 9 * text.length + 2, 15)),
    );
    const free = options.find((option) => boxes.every((other) => apart(option, other))) ?? options[0];
    boxes.push(free);
    label(panel.layers.labels, name, text, {
      x: free.x,
      y: free.y + 4.5,
      "text-anchor": "middle",
      class: `${name === "best" ? "ink" : name} strong halo`,
    });
  }
  prune(panel.layers.labels, new Set([...TOKENS, ...Object.keys(laws)]));
}

// ---- how far the goal is, along both paths ---------------------------------------------------

export function drawDistance(panel, state, view, time) {
  const last = lastTime(view);
  const x = scaleLog([START, last], [panel.left, panel.right]);
  const sides = [
    { name: "truth", text: "true", ...view.truth },
    { name: lookOf(state), text: PENALTY_NAMES[state.penalty].replace(" upside down", " flipped"), ...view.own },
  ];
  const highest = Math.max(0.01, ...sides.flatMap(({ distance, left }) => [...distance, left]));
  const y = scaleLinear([0, 1.08 * highest], [panel.bottom, panel.top]);
  const decades = Array.from({ length: Math.round(Math.log10(last / START)) + 1 }, (_, i) => START * 10 ** i);
  drawX(panel, axisBottom(x).tickValues(decades).tickFormat((t) => String(Number(t.toPrecision(1)))));
  drawY(panel, axisLeft(y).ticks(5));
  nameAxis(panel, "time", 22);
  const until = Math.max(Math.min(time, last), START);
  for (const { name, ...side } of sides) {
    const between = side.path.map(({ t }) => t).filter((t) => t > START && t < until);
    const points = [START, ...between, until].map((t) => [x(t), y(distanceAt(side, t))]);
    keyed(panel.layers.curves, "path", name, {
      d: polyline(points),
      class: `line ${name}`,
      "stroke-dasharray": DASHES[name] ?? "none",
    });
  }
  prune(panel.layers.curves, new Set(sides.map(({ name }) => name)));
  sideLabels(
    panel,
    sides.map(({ name, text, ...side }) => ({ name, text, y: y(distanceAt(side, last)) })),
  );
}
