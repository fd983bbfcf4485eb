// Two bundles from the same modules. Browsers refuse ES modules from file://, so the book gets a
// classic script; a live notebook gets one module that it can inline.
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

import { build } from "esbuild";

const root = fileURLToPath(new URL("..", import.meta.url));
const { dependencies } = JSON.parse(readFileSync(`${root}package.json`, "utf8"));

const banner =
  "/*! Estimating KL, browser figures (MIT). Includes " +
  Object.keys(dependencies)
    .map((name) => {
      const { version, license } = JSON.parse(
        readFileSync(`${root}node_modules/${name}/package.json`, "utf8"),
      );
      return `${name} ${version} (${license})`;
    })
    .join(", ") +
  "; d3 (c) Mike Bostock, fft.js (c) Fedor Indutny, jsep (c) Stephen Oney. */";

const shared = {
  bundle: true,
  minify: true,
  target: ["es2022"],
  charset: "utf8",
  banner: { js: banner },
  logLevel: "info",
};

await build({
  ...shared,
  entryPoints: [`${root}explorables/book.js`],
  format: "iife",
  outfile: `${root}book/_vendor/js/explorables.js`,
});

await build({
  ...shared,
  entryPoints: [`${root}explorables/live.js`],
  format: "esm",
  outfile: `${root}src/kllab/static/explorables.js`,
});
