// Animation that stops when nobody can see it, and does not start where motion is unwanted.

export const reducedMotion = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

export class Animator {
  #frame = 0;
  #finish = null;
  #visible = true;

  /** While the figure is off screen, an animation ends at once with its result. */
  set visible(value) {
    this.#visible = value;
    if (!value) this.finish();
  }

  get running() {
    return this.#finish !== null;
  }

  /** Calls `draw(progress)` with progress going from 0 to 1 in `duration` ms, ending at 1. */
  run(duration, draw) {
    this.finish();
    if (reducedMotion() || !this.#visible || document.hidden) {
      draw(1);
      return;
    }
    let began = null;
    this.#finish = () => draw(1);
    const step = (now) => {
      began ??= now;
      const progress = Math.min((now - began) / duration, 1);
      if (progress >= 1) return this.finish();
      draw(progress);
      this.#frame = requestAnimationFrame(step);
    };
    this.#frame = requestAnimationFrame(step);
  }

  /** Jumps to the result of the animation in progress, if there is one. */
  finish() {
    cancelAnimationFrame(this.#frame);
    const last = this.#finish;
    this.#finish = null;
    last?.();
  }
}
