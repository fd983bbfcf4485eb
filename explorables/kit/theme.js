// The palette of the book, and which half of it the page asks for.
//
// Dark values are what `filter: invert(1) hue-rotate(180deg)` makes of the light ones, because the
// book's matplotlib figures go through that filter. The "-text" tones are darker (in the dark,
// lighter) where the line's colour is too faint for letters.

// Colours and dashes of `kllab.figures.LOOKS`; tests/test_explorables.py holds them together. A dash
// there is in line widths, here in px at a width of 2.
export const DASHES = { k1: "none", k2: "10 3.2", k3: "12 2.8 2.8 2.8", truth: "2.4 3.2", p: "6 2.4" };


export const LIGHT = {
  k1: "#d55e00",
  k2: "#009e73",
  k3: "#0072b2",
  truth: "#1b1b1b",
  q: "#6b6b6b",
  p: "#cc79a7",
  "k1-text": "#b04e00",
  "k2-text": "#00785a",
  "k3-text": "#0067a1",
  "q-text": "#595959",
  "p-text": "#a2487a",
  ink: "#1b1b1b",
  muted: "#565d66",
  rule: "#8a9099",
  faint: "#d9dce0",
  wash: "#f1f2f4",
  paper: "#ffffff",
};

export const DARK = {
  k1: "#f37c1e",
  k2: "#0caa7f",
  k3: "#42b4f4",
  truth: "#e4e4e4",
  q: "#949494",
  p: "#af5c8a",
  "k1-text": "#f59142",
  "k2-text": "#44be9d",
  "k3-text": "#42b4f4",
  "q-text": "#a8a8a8",
  "p-text": "#e586bc",
  ink: "#e4e4e4",
  muted: "#a3aab4",
  rule: "#7d858f",
  faint: "#3b3f46",
  wash: "#24272c",
  paper: "#121212",
};

// The page's own background where it says so: the book's theme, then JupyterLab's.
const paper = (value) => `var(--pst-color-background, var(--jp-layout-color0, ${value}))`;

const declarations = (palette) =>
  Object.entries({ ...palette, paper: paper(palette.paper) })
    .map(([name, value]) => `--kl-${name}: ${value};`)
    .join(" ");

export const themeCss = `
.figure { ${declarations(LIGHT)} color-scheme: light; }
.figure.dark { ${declarations(DARK)} color-scheme: dark; }
@media (forced-colors: active) { .figure { --kl-ink: CanvasText; --kl-muted: CanvasText; } }
`;

/** Whether the page is dark: the book's theme, then JupyterLab's, then the system's. */
export function isDark(doc = document) {
  const book = doc.documentElement.dataset.theme;
  if (book === "dark" || book === "light") return book === "dark";
  const lab = doc.body?.dataset.jpThemeLight;
  if (lab === "true" || lab === "false") return lab === "false";
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

/** Calls `changed(dark)` now and whenever the page's theme changes; returns a function that stops. */
export function watchTheme(changed) {
  const tell = () => changed(isDark());
  const observer = new MutationObserver(tell);
  observer.observe(document.documentElement, { attributeFilter: ["data-theme"] });
  observer.observe(document.body, { attributeFilter: ["data-jp-theme-light"] });
  const system = matchMedia("(prefers-color-scheme: dark)");
  system.addEventListener("change", tell);
  tell();
  return () => {
    observer.disconnect();
    system.removeEventListener("change", tell);
  };
}
