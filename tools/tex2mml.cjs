// TeX to MathML by MathJax, one formula a line: JSON {tex, display} in, JSON {mml} or {error} out.
const readline = require("node:readline");

require("mathjax")
  .init({ loader: { load: ["input/tex"] } })
  .then((MathJax) => {
    const convert = ({ tex, display }) => {
      try {
        const mml = MathJax.tex2mml(tex, { display });
        const error = /data-mjx-error="([^"]*)"/.exec(mml);
        return error ? { error: error[1] } : { mml };
      } catch (error) {
        return { error: String(error.message ?? error) };
      }
    };
    readline
      .createInterface({ input: process.stdin })
      .on("line", (line) => console.log(JSON.stringify(convert(JSON.parse(line)))));
  });
