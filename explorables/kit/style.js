// What all figures share. Fonts come from the page; sizes are relative to it.

import { themeCss } from "./theme.js";

export const baseCss = `
${themeCss}
:host { display: block; }
:host([hidden]) { display: none; }
* { box-sizing: border-box; }

.figure { color: var(--kl-ink); font-family: inherit; font-size: 0.875rem; line-height: 1.45; }
.figure p { margin: 0; }
.vh { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }

/* Paper shows the static figure. So does a page whose script has not come this far. */
.figure[hidden] { display: none; }
@media print {
  :host([data-fallback]) .figure { display: none; }
  :host([data-fallback]) slot { display: contents !important; }
}

/* Two columns where there is room, and what goes below both */
.columns { display: grid; grid-template-columns: minmax(0, 1fr); gap: 1rem 1.5rem; }
.figure.wide .columns { grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); }
.column { display: flex; flex-direction: column; gap: 0.6rem; min-width: 0; }
.below { display: flex; flex-direction: column; gap: 0.75rem; margin-top: 1rem; }

/* Controls */
.controls { display: flex; flex-wrap: wrap; gap: 0.25rem 1.25rem; align-items: start; }
.control { display: grid; grid-template-columns: 1fr auto; flex: 1 1 8.5rem; min-width: 0; column-gap: 0.5rem; }
.control label { white-space: nowrap; }
.control .value { font-variant-numeric: tabular-nums; font-weight: 600; }
.control input[type="range"] { grid-column: 1 / -1; width: 100%; min-width: 0; height: 2rem; margin: 0; accent-color: var(--kl-accent, var(--kl-ink)); cursor: pointer; touch-action: pan-y; }
.control input[type="number"], .control input[type="text"], .control select { grid-column: 1 / -1; width: 100%; height: 2rem; padding: 0 0.5rem; font: inherit; font-variant-numeric: tabular-nums; color: inherit; background: var(--kl-paper); border: 1px solid var(--kl-rule); border-radius: 4px; }
.control input[aria-invalid="true"] { border-color: var(--kl-k1-text); }
.control .problem { grid-column: 1 / -1; color: var(--kl-k1-text); overflow-wrap: anywhere; }
button { min-height: 2.5rem; padding: 0 0.9rem; font: inherit; font-weight: 600; color: var(--kl-ink); background: var(--kl-paper); border: 1px solid var(--kl-rule); border-radius: 6px; cursor: pointer; }
button:hover:not([aria-disabled="true"]) { background: var(--kl-wash); border-color: var(--kl-ink); }
.buttons { display: flex; flex-wrap: wrap; gap: 0.5rem; }
.buttons button { flex: 1 1 auto; padding: 0 0.6rem; }
button.main { color: var(--kl-paper); background: var(--kl-ink); border-color: var(--kl-ink); }
button.main:hover:not([aria-disabled="true"]) { color: var(--kl-paper); background: var(--kl-muted); }
button[aria-pressed="true"] { background: var(--kl-wash); border-color: var(--kl-ink); box-shadow: inset 0 -3px var(--kl-ink); }
button.quiet { padding: 0 0.4rem; font-weight: 400; color: var(--kl-muted); background: none; border-color: transparent; text-decoration: underline; text-underline-offset: 3px; }
button.quiet:hover { color: var(--kl-ink); background: none; border-color: transparent; }
button[aria-disabled="true"] { color: var(--kl-muted); background: var(--kl-wash); border-color: var(--kl-faint); cursor: default; }
.toggles { display: flex; flex-wrap: wrap; gap: 0 0.9rem; margin: 0; padding: 0; border: 0; min-width: 0; }
.toggles legend { float: left; margin: 0 0.9rem 0 0; padding: 0; line-height: 2.5rem; font-size: inherit; }
.toggles label { display: inline-flex; align-items: center; gap: 0.3rem; min-height: 2.5rem; cursor: pointer; }
.toggles input { width: 1.1rem; height: 1.1rem; margin: 0; accent-color: var(--kl-ink); }
.swatch { flex: none; }
input:focus-visible, select:focus-visible, button:focus-visible, .link-text:focus-visible { outline: 3px solid var(--kl-k3); outline-offset: 2px; }

/* Plots */
.panel { min-width: 0; }
.panel-title { margin: 0 0 0.15rem !important; font-weight: 600; line-height: 1.35; }
.panel-title span { font-weight: 400; color: var(--kl-muted); }
.plot { display: block; overflow: visible; font-family: inherit; }
.plot text { font-size: 12px; fill: var(--kl-muted); }
.plot .tick line { stroke: var(--kl-rule); }
.plot .domain { stroke: var(--kl-rule); }
.plot .tick text { fill: var(--kl-muted); font-variant-numeric: tabular-nums; }
.plot .halo { paint-order: stroke; stroke: var(--kl-paper); stroke-width: 4px; stroke-linejoin: round; }
.line { fill: none; stroke-width: 2px; stroke-linejoin: round; }
.line.k1, .dots.k1, .ghost.k1 { stroke: var(--kl-k1); }
.line.k2, .dots.k2, .ghost.k2 { stroke: var(--kl-k2); }
.line.k3, .dots.k3, .ghost.k3 { stroke: var(--kl-k3); }
.line.truth { stroke: var(--kl-truth); stroke-width: 1.25px; }
.line.q { stroke: var(--kl-q); }
.line.p { stroke: var(--kl-p); stroke-width: 2.5px; }
.plot text.k1 { fill: var(--kl-k1-text); }
.plot text.k2 { fill: var(--kl-k2-text); }
.plot text.k3 { fill: var(--kl-k3-text); }
.plot text.q { fill: var(--kl-q-text); }
.plot text.p { fill: var(--kl-p-text); }
.plot text.truth { fill: var(--kl-ink); }
.plot text.strong { font-weight: 600; }
.area { stroke: none; }
.area.k1 { fill: var(--kl-k1); }
.area.k2 { fill: var(--kl-k2); }
.area.k3 { fill: var(--kl-k3); }
.area.q { fill: var(--kl-q); }
.area.p { fill: var(--kl-p); }
.dots { fill: none; stroke-linecap: round; }
.ghost { fill: none; stroke-width: 1px; stroke-linejoin: round; }

/* Handles: fat where they are touched, small where they are seen */
.handle { cursor: ew-resize; outline: none; }
/* Chromium does not see touch-action inside an SVG. */
.plot:has(.handle:not(.plane)) { touch-action: pan-y pinch-zoom; }
.handle.plane { cursor: move; touch-action: none; }
.handle .hit { fill: transparent; stroke: none; }
.handle .ring { fill: none; stroke: none; }
.handle .knob { fill: var(--kl-paper); stroke: var(--kl-p-text); stroke-width: 2.5px; }
.handle .arrows { fill: none; stroke: var(--kl-p-text); stroke-width: 1.75px; stroke-linecap: round; stroke-linejoin: round; }
.handle:hover .knob, .handle.held .knob { fill: var(--kl-p-text); }
.handle:focus-visible .ring { stroke: var(--kl-k3); stroke-width: 3px; }

/* Reading, table, footer */
.reading { max-width: 46em; font-size: 0.95rem; }
.numbers { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; line-height: 1.3; }
.numbers caption { padding: 0 0 0.3rem; text-align: left; font-weight: 600; caption-side: top; }
.numbers caption span { font-weight: 400; color: var(--kl-muted); }
.numbers th, .numbers td { padding: 0.25rem 0.3rem; text-align: right; font-weight: 400; white-space: nowrap; border: 0; background: none; }
.numbers thead th { color: var(--kl-muted); vertical-align: bottom; }
.numbers thead tr:last-child th { border-bottom: 1px solid var(--kl-rule); }
.numbers th.group { text-align: center; color: var(--kl-ink); white-space: normal; }
.numbers tbody th { text-align: left; font-weight: 600; }
.numbers tbody tr + tr > * { border-top: 1px solid var(--kl-faint); }
.numbers .seen { color: var(--kl-muted); }
.figure:not(.wide) .numbers { font-size: 0.8125rem; }
.footer { display: flex; flex-wrap: wrap; gap: 0.25rem 0.75rem; align-items: center; }
.link-text { flex: 1 1 12rem; min-width: 0; height: 2.25rem; padding: 0 0.5rem; font: inherit; color: inherit; background: var(--kl-wash); border: 1px solid var(--kl-rule); border-radius: 4px; }
`;
