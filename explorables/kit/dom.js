// Elements in one call. Strings become text nodes, never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

export const h = (tag, properties, ...children) =>
  fill(document.createElement(tag), properties, children);

export const svg = (tag, properties, ...children) =>
  fill(document.createElementNS(SVG, tag), properties, children);

export const setAttributes = (element, attributes) => {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
};

let counter = 0;
/** An id that is new on this page, for labels and clip paths. */
export const freshId = (stem) => `kl-${stem}-${++counter}`;
