// The base of every figure: one state, its link, its theme, its size, a lazy start.
//
// A figure is a custom element with a shadow root. Its child content is a static figure: it shows
// until the script has drawn, where scripts are off, and on paper.

import { Announcer } from "./announce.js";
import { h } from "./dom.js";
import { AddressWriter, deepLink, readQuery } from "./link.js";
import { Animator } from "./motion.js";
import { deserialise, fromAttributes, serialise, withValues } from "./state.js";
import { baseCss } from "./style.js";
import { watchTheme } from "./theme.js";

const NEAR = "600px"; // how close to the viewport a figure starts
const TWO_COLUMNS = 600; // px of width
const GAP = 24; // px between two columns

export class KlFigure extends HTMLElement {
  /** The fields of the state, see state.js. */
  static schema = {};
  /** Whether the page's address belongs to the figure; false in a live notebook. */
  static ownsAddress = false;

  #stops = [];
  #started = false;
  #frame = 0;
  #width = 0;

  // ---- what a figure implements -----------------------------------------------------------

  /** Makes the figure's parts and puts them in place, see layout.js; called once. */
  build() {}
  /** Draws `this.state` at `width` px; called at most once a frame. */
  draw(_width) {}
  /** The current result as one sentence. */
  sentence() {
    return "";
  }

  /** Chooses one column or two for `width` px: { wide, each }, with the width of one. */
  columns(width) {
    const wide = width >= TWO_COLUMNS;
    this.figure.classList.toggle("wide", wide);
    return { wide, each: wide ? Math.floor((width - GAP) / 2) : width };
  }

  // ---- life -------------------------------------------------------------------------------

  connectedCallback() {
    if (!this.shadowRoot) this.#prepare();
    const near = new IntersectionObserver(
      (entries) => {
        if (entries.some((entry) => entry.isIntersecting)) this.#start();
      },
      { rootMargin: NEAR },
    );
    near.observe(this);
    this.#stops.push(() => near.disconnect());
    if (this.#started) this.#observe();
  }

  disconnectedCallback() {
    for (const stop of this.#stops) stop();
    this.#stops = [];
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.animator.finish();
    this.announcer.stop();
    this.address.flush();
  }

  #prepare() {
    const { schema, ownsAddress } = this.constructor;
    this.id ||= this.#freeId();
    // JupyterLab sees keys of a shadow root as the host's, and would take "1" for a command.
    this.dataset.lmSuppressShortcuts = "true";
    this.base = fromAttributes(schema, this);
    this.state = this.base;
    /** Texts of the link that the schema has refused, by field; gone with the next change. */
    this.refused = {};
    this.animator = new Animator();
    this.announcer = new Announcer();
    this.address = new AddressWriter(this.id, { enabled: ownsAddress });
    this.toggleAttribute("data-fallback", this.childNodes.length > 0);
    const root = this.attachShadow({ mode: "open" });
    this.fallback = h("slot");
    this.figure = h("div", { class: "figure", hidden: true });
    root.append(h("style", {}, baseCss + (this.constructor.css ?? "")), this.fallback, this.figure);
  }

  // Two figures of a kind on one page get two names, in the page's order. A section may already
  // have the plain name.
  #freeId() {
    const stem = `fig-${this.localName.replace(/^kl-/, "")}`;
    let id = stem;
    for (let i = 2; document.getElementById(id); i++) id = `${stem}-${i}`;
    return id;
  }

  #start() {
    if (this.#started) return;
    this.#started = true;
    this.#readAddress();
    this.build();
    this.fallback.style.display = "none";
    this.figure.hidden = false;
    this.#observe();
    this.style.minHeight = "0"; // what the page reserved has done its work
    // The browser looked for the fragment before this element had its name and its height.
    if (this.constructor.ownsAddress && location.hash === `#${encodeURIComponent(this.id)}`) {
      this.scrollIntoView({ block: "start", behavior: "instant" });
    }
  }

  #observe() {
    const size = new ResizeObserver(() => this.#measure());
    size.observe(this.figure);
    const seen = new IntersectionObserver((entries) => {
      this.animator.visible = entries.at(-1).isIntersecting;
    });
    seen.observe(this);
    const reread = () => {
      this.#readAddress();
      this.redraw();
    };
    const hidden = () => document.hidden && this.animator.finish();
    addEventListener("popstate", reread);
    document.addEventListener("visibilitychange", hidden);
    this.#stops.push(
      () => size.disconnect(),
      () => seen.disconnect(),
      () => removeEventListener("popstate", reread),
      () => document.removeEventListener("visibilitychange", hidden),
      watchTheme((dark) => this.figure.classList.toggle("dark", dark)),
    );
    this.#measure();
  }

  #measure() {
    const width = Math.floor(this.figure.clientWidth);
    if (width === 0 || width === this.#width) return;
    this.#width = width;
    this.draw(width);
    this.announcer.say(this.sentence());
  }

  // ---- state ------------------------------------------------------------------------------

  #readAddress() {
    if (!this.address.enabled) return;
    this.address.flush();
    const text = readQuery(location.search, this.id);
    this.refused = {};
    const refuse = (name, value) => (this.refused[name] = value);
    this.state = deserialise(this.constructor.schema, this.base, text ?? "", refuse);
  }

  /** Changes some values; they pass through the schema like those of a link. */
  update(values) {
    const entries = Object.entries(values).map(([name, value]) => [
      name,
      Array.isArray(value) ? value.join("+") : value,
    ]);
    const { schema } = this.constructor;
    const state = withValues(schema, this.state, entries);
    // A drag reports every pixel, but most of them snap to the value that is there already.
    if (serialise(schema, state, this.state) === "") return;
    this.state = state;
    this.#told();
  }

  /** Back to what the page's author set. */
  reset() {
    this.state = this.base;
    this.#told();
  }

  #told() {
    this.refused = {};
    this.address?.write(this.linkText());
    this.redraw();
    this.dispatchEvent(new CustomEvent("kl-state", { detail: { ...this.state } }));
  }

  /** Draws in the next frame, once, however many changes come before it. */
  redraw() {
    if (!this.#started || this.#frame) return;
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0;
      if (this.#width) this.draw(this.#width);
      this.announcer.say(this.sentence());
    });
  }

  linkText() {
    return serialise(this.constructor.schema, this.state, this.base);
  }

  /** The link that opens this state, or null where no page can be named. */
  link() {
    const page = this.constructor.ownsAddress ? location.href : this.getAttribute("page");
    return page ? deepLink(page, this.id, this.linkText()) : null;
  }
}
