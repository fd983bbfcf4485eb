// The result as one sentence, seen by all and read out by screen readers, at most once a pause.

import { h } from "./dom.js";

export class Announcer {
  #timer = 0;

  constructor({ pause = 600 } = {}) {
    this.pause = pause;
    this.element = h("p", { class: "reading", role: "status", "aria-live": "polite" });
  }

  /** Shows `sentence` once nothing new has come for a pause; the first one shows at once. */
  say(sentence) {
    clearTimeout(this.#timer);
    const show = () => {
      if (this.element.textContent !== sentence) this.element.textContent = sentence;
    };
    if (this.element.textContent === "") show();
    else this.#timer = setTimeout(show, this.pause);
  }

  stop() {
    clearTimeout(this.#timer);
  }
}
