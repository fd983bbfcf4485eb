// Where a figure's parts stand: two columns or one, and what is below them.

import { h } from "./dom.js";
import { footer } from "./footer.js";

export const controls = (...parts) => h("div", { class: "controls" }, parts.map(({ element }) => element));
export const buttons = (...all) => h("div", { class: "buttons" }, all);

/** Each of `columns` is a list of elements; the sentence, `table` and the buttons are below them. */
export function layOut(figure, columns, { table = null, own = [] } = {}) {
  figure.figure.append(
    h("div", { class: "columns" }, columns.map((parts) => h("div", { class: "column" }, parts))),
    h("div", { class: "below" }, figure.announcer.element, table, footer(figure, own)),
  );
}
