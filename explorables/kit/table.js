// The table of numbers under a figure's plots.

import { h } from "./dom.js";

export const numbersTable = () => h("table", { class: "numbers" });

const column = (text) => h("th", { scope: "col" }, text);

/** `rows` are { name, cells, current }, texts; `current` marks the row of the present state. */
export function fillTable(table, { caption, note, columns, rows }) {
  table.replaceChildren(
    h("caption", {}, `${caption} `, h("span", {}, note)),
    h("thead", {}, h("tr", {}, h("td", {}), columns.map(column))),
    h(
      "tbody",
      {},
      rows.map(({ name, cells, current }) =>
        h(
          "tr",
          { class: current && "current" },
          h("th", { scope: "row" }, name),
          cells.map((cell) => h("td", {}, cell)),
        ),
      ),
    ),
  );
}
