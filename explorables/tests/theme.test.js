import assert from "node:assert/strict";
import { test } from "node:test";

import { DARK, LIGHT } from "../kit/theme.js";

const channels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255);

function luminance(hex) {
  const linear = channels(hex).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
}

function contrast(a, b) {
  const [light, dark] = [luminance(a), luminance(b)].sort((x, y) => y - x);
  return (light + 0.05) / (dark + 0.05);
}

/** What `filter: invert(1) hue-rotate(180deg)` makes of a colour. */
function inverted(hex) {
  const [r, g, b] = channels(hex).map((c) => 1 - c);
  const grey = 2 * (0.213 * r + 0.715 * g + 0.072 * b);
  const clamp = (c) => Math.round(255 * Math.min(Math.max(c, 0), 1));
  return `#${[grey - r, grey - g, grey - b].map((c) => clamp(c).toString(16).padStart(2, "0")).join("")}`;
}

const texts = (palette) => Object.keys(palette).filter((name) => /-text$|^(ink|muted)$/.test(name));

// The book's page, its theme's own dark one and JupyterLab's; `wash` lies under "below 0" and some buttons.
for (const [palette, papers] of [
  [LIGHT, ["#ffffff"]],
  [DARK, ["#121212", "#14181e", "#111111"]],
]) {
  test(`text has a contrast of 4.5, graphics of 3, on ${papers}`, () => {
    for (const paper of papers) {
      for (const name of texts(palette)) {
        assert.ok(contrast(palette[name], paper) >= 4.5, `${name} on ${paper}`);
      }
      for (const name of ["k1", "k2", "k3", "truth", "q", "p", "rule"]) {
        assert.ok(contrast(palette[name], paper) >= 3, `${name} on ${paper}`);
      }
    }
    assert.ok(contrast(palette.muted, palette.wash) >= 4.5);
    for (const name of ["k1", "k2", "k3", "truth"]) {
      assert.ok(contrast(palette[name], palette.wash) >= 3, `${name} on the wash`);
    }
  });
}

test("the dark lines are what the book's filter makes of the light ones", () => {
  for (const name of ["k1", "k2", "k3", "truth", "q", "p"]) {
    const [got, wanted] = [channels(DARK[name]), channels(inverted(LIGHT[name]))];
    got.forEach((c, i) => assert.ok(Math.abs(c - wanted[i]) < 0.02, `${name}: ${inverted(LIGHT[name])}`));
  }
});
