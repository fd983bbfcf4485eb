// The five pictures. Each function draws one panel from the view; none of them computes results.

import { max, min } from "d3-array";
import { axisBottom, axisLeft } from "d3-axis";
import { scaleLinear, scaleLog } from "d3-scale";

import { nats, percent } from "../kit/format.js";
import { ESTIMATORS, OCTAVES } from "../kit/math.js";
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
import { TAIL_RANK } from "./model.js";
import { whole } from "./reading.js";

const rankScale = (panel) => scaleLog([1, 2 ** OCTAVES], [panel.left, panel.right]);
const RANK_TICKS = [1, 10, 100, 1000, 10000];
const shortRank = (rank) => (rank < 1000 ? String(rank) : `${rank / 1000}k`);

function rankAxis(panel) {
  const x = rankScale(panel);
  drawX(panel, axisBottom(x).tickValues(RANK_TICKS).tickFormat(shortRank));
  nameAxis(panel, "rank", -18);
  return x;
}

const centre = (octave) => 2 ** (octave + 0.5);

// ---- a: the two laws -------------------------------------------------------------------------

export function drawLaw(panel, { exact }) {
  const x = rankAxis(panel);
  const { law } = exact;
  const seen = law.filter(({ most }) => most > 0);
  const least = Math.min(law.at(-1).p, min(seen, (bin) => bin.least));
  const step = Math.ceil(-Math.log10(least) / 3); // decades between ticks
  const y = scaleLog([10 ** (-3 * step), 1], [panel.bottom, panel.top]);
  drawY(panel, axisLeft(y).tickValues([0, 1, 2, 3].map((k) => 10 ** (-k * step))).tickFormat(power));
  const band = [
    ...seen.map(({ rank, most }) => [x(rank), y(most)]),
    ...seen.toReversed().map(({ rank, least }) => [x(rank), y(least)]),
  ];
  keyed(panel.layers.curves, "path", "band", { d: `${polyline(band)}Z`, class: "area q", "fill-opacity": 0.3 });
  keyed(panel.layers.curves, "path", "q", {
    d: polyline(seen.map(({ rank, q }) => [x(rank), y(q)])),
    class: "line q",
  });
  keyed(panel.layers.curves, "path", "p", {
    d: polyline(law.map(({ rank, p }) => [x(rank), y(p)])),
    class: "line p",
    "stroke-dasharray": DASHES.p,
  });
  const last = seen.at(-1);
  sideLabels(panel, [
    { name: "p", y: y(law.at(-1).p), text: "p" },
    { name: "q", y: y(last.q), text: "q" },
  ]);
}

const power = (value) => (value === 1 ? "1" : `1e−${Math.round(-Math.log10(value))}`);

// ---- b: what each octave adds to KL ----------------------------------------------------------

export function drawMeans(panel, { exact }) {
  const x = rankAxis(panel);
  const names = ["k1", "k3"];
  const all = exact.octaves.flatMap(({ mean }) => names.map((name) => mean[name]));
  const low = Math.min(0, min(all));
  const high = max(all) || 1;
  const pad = 0.06 * (high - low);
  const y = scaleLinear([low - (low < 0 ? pad : 0), high + pad], [panel.bottom, panel.top]);
  drawY(panel, axisLeft(y).ticks(5));
  drawNegative(panel, { y: y(0), height: panel.bottom - y(0) });
  // k1 left and k3 right within each octave.
  names.forEach((name, side) => {
    keyed(panel.layers.bars, "path", name, {
      d: exact.octaves
        .map(({ from, mean }) => {
          const [left, right] = [x(from * 2 ** (0.5 * side)), x(from * 2 ** (0.5 + 0.5 * side))];
          const inset = side ? [0.5, 1.5] : [1.5, 0.5];
          return bar(left + inset[0], right - inset[1], y(0), y(mean[name]));
        })
        .join(""),
      class: `area ${name}`,
      "fill-opacity": 0.85,
    });
    label(panel.layers.labels, name, name, {
      x: panel.right - 4 - 24 * (1 - side),
      y: panel.top + 12,
      "text-anchor": "end",
      class: `${name} strong halo`,
    });
  });
}

const bar = (left, right, base, top) =>
  `M${left.toFixed(1)},${base.toFixed(1)}V${top.toFixed(1)}H${right.toFixed(1)}V${base.toFixed(1)}Z`;

// ---- c: what each octave adds to the variance ------------------------------------------------

export function drawVariances(panel, { exact }) {
  const x = rankAxis(panel);
  const highest = max(ESTIMATORS, (name) => max(exact.shares[name]));
  const y = scaleLinear([0, 1.12 * (highest || 1)], [panel.bottom, panel.top]);
  drawY(panel, axisLeft(y).ticks(4, "%"));
  keyed(panel.layers.negative, "rect", "tail", {
    x: x(TAIL_RANK),
    y: panel.top,
    width: panel.right - x(TAIL_RANK),
    height: panel.bottom - panel.top,
    fill: "var(--kl-wash)",
  });
  label(panel.layers.negative, "word", `q: ${percent(exact.tail.q)}`, {
    x: x(TAIL_RANK) + 6,
    y: panel.top + 13,
  });
  const names = new Set();
  const ends = [];
  for (const name of ESTIMATORS) {
    if (!exact[name].variance) continue;
    const points = exact.shares[name].map((share, octave) => [x(centre(octave)), y(share)]);
    keyed(panel.layers.curves, "path", name, {
      d: polyline(points),
      class: `line ${name}`,
      "stroke-dasharray": DASHES[name],
    });
    keyed(panel.layers.dots, "path", name, { d: dots(points), class: `dots ${name}`, "stroke-width": 5 });
    names.add(name);
    ends.push({ name, y: points.at(-1)[1], text: name });
  }
  for (const layer of ["curves", "dots"]) prune(panel.layers[layer], names);
  sideLabels(panel, ends);
}

// ---- d: the averages as samples come in ------------------------------------------------------

export function drawRunning(panel, { n }, { exact, batch }) {
  const x = scaleLog([1, Math.max(n, 2)], [panel.left, panel.right]);
  const late = ESTIMATORS.flatMap((name) => [...batch.running[name].subarray(Math.min(3, n - 1))]);
  const [low, high] = [Math.min(0, min(late)), Math.max(1.4 * exact.kl, max(late)) || 1];
  const pad = 0.05 * (high - low);
  const y = scaleLinear([low - pad, high + pad], [panel.bottom, panel.top]);
  drawX(panel, runningTicks(axisBottom(x), n, panel));
  drawY(panel, axisLeft(y).ticks(5));
  drawNegative(panel, { y: y(0), height: panel.bottom - y(0) });
  nameAxis(panel, "samples", 22);
  const ends = [{ name: "truth", y: y(exact.kl), text: `KL ${nats(exact.kl)}` }];
  for (const name of ESTIMATORS) {
    const values = batch.running[name];
    keyed(panel.layers.curves, "path", name, {
      d: polyline(Array.from(values, (value, i) => [x(i + 1), clamp(y(value), -2000, 4000)])),
      class: `line ${name}`,
      "stroke-dasharray": DASHES[name],
    });
    const last = values.at(-1);
    keyed(panel.layers.dots, "path", name, {
      d: dots([[x(n), y(last)]]),
      class: `dots ${name}`,
      "stroke-width": 7,
    });
    ends.push({ name, y: y(last), text: `${name} ${nats(last)}` });
  }
  level(panel, "truth", "truth", y(exact.kl), { class: "line truth", "stroke-dasharray": DASHES.truth });
  sideLabels(panel, ends);
}

// ---- e: who carries the batch ----------------------------------------------------------------

export function drawCarriers(panel, { batch }) {
  const x = rankAxis(panel);
  const { carrier, ranks, shares } = batch;
  const y = scaleLinear([0, 1.25 * (carrier?.share ?? 1)], [panel.bottom, panel.top]);
  drawY(panel, axisLeft(y).ticks(4, "%"));
  const place = Array.from(ranks, (rank, i) => [x(rank), y(shares[i])]);
  keyed(panel.layers.curves, "path", "stems", {
    d: carrier ? place.map(([px, py]) => `M${px.toFixed(1)},${panel.bottom}V${py.toFixed(1)}`).join("") : "",
    class: "line k3",
    "stroke-width": 1.5,
    "stroke-opacity": ranks.length > 512 ? 0.4 : 0.7,
  });
  const found = carrier ? place[carrier.at - 1] : null;
  keyed(panel.layers.dots, "path", "carrier", {
    d: found ? dots([found]) : "",
    class: "dots k3",
    "stroke-width": 8,
  });
  const right = found && found[0] < 0.5 * (panel.left + panel.right);
  label(panel.layers.labels, "carrier", carrier ? `rank ${whole(carrier.rank)}: ${percent(carrier.share)}` : "", {
    x: found ? found[0] + (right ? 9 : -9) : panel.left,
    y: found ? found[1] + 4 : panel.top,
    "text-anchor": right ? "start" : "end",
    class: "k3 strong halo",
  });
}
