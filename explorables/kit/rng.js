// A small seeded generator: xoshiro128** (Blackman and Vigna 2018), seeded by splitmix32.
// The same numbers come out in every browser; an independent Python version holds it to them.

const mix32 = (state) => {
  let z = state;
  z = Math.imul(z ^ (z >>> 16), 0x85ebca6b);
  z = Math.imul(z ^ (z >>> 13), 0xc2b2ae35);
  return (z ^ (z >>> 16)) >>> 0;
};

const rotateLeft = (x, k) => (x << k) | (x >>> (32 - k));

export class Rng {
  #s = new Uint32Array(4);
  #spare = NaN;

  /**
   * Stream number `stream` of `seed`, both unsigned 32-bit integers. Streams of one seed differ in
   * all four state words, so that a run can be drawn again without drawing the ones before it.
   */
  constructor(seed, stream = 0) {
    let state = (mix32(seed >>> 0) ^ Math.imul(stream >>> 0, 0x9e3779b9)) >>> 0;
    for (let i = 0; i < 4; i++) {
      state = (state + 0x9e3779b9) >>> 0;
      this.#s[i] = mix32(state ^ mix32((stream + i) >>> 0));
    }
    if (this.#s.every((word) => word === 0)) this.#s[0] = 1; // the one state that stays put
  }

  /** The next unsigned 32-bit integer. */
  uint32() {
    const s = this.#s;
    const result = Math.imul(rotateLeft(Math.imul(s[1], 5), 7), 9) >>> 0;
    const t = s[1] << 9;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotateLeft(s[3], 11);
    return result;
  }

  /** Uniform on [0, 1) with 53 bits, from two integers: 27 high bits, then 26. */
  uniform() {
    const high = this.uint32() >>> 5;
    const low = this.uint32() >>> 6;
    return (high * 0x4000000 + low) / 0x20000000000000;
  }

  /** Standard normal, by Box and Muller; the sine partner comes out on the next call. */
  normal() {
    if (!Number.isNaN(this.#spare)) {
      const value = this.#spare;
      this.#spare = NaN;
      return value;
    }
    const radius = Math.sqrt(-2 * Math.log1p(-this.uniform()));
    const angle = 2 * Math.PI * this.uniform();
    this.#spare = radius * Math.sin(angle);
    return radius * Math.cos(angle);
  }

  /** `count` standard normals as a Float64Array. */
  normals(count) {
    return Float64Array.from({ length: count }, () => this.normal());
  }
}
