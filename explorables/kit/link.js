// Where a state lives in the address: one query parameter per figure, named by its id. The
// fragment stays free for section anchors and brings a deep link to the figure itself; the query
// needs no server and works from file://.

/** The text that belongs to `key` in a query string, or null. */
export const readQuery = (search, key) => new URLSearchParams(search).get(key);

/** `search` with the parameter `key` set to `text`, or without it if `text` is empty. */
export function writeQuery(search, key, text) {
  const others = search
    .replace(/^\?/, "")
    .split("&")
    .filter((part) => part && decodeName(part.split("=")[0]) !== key);
  // Names, digits and , : ; + - * / ^ . ( ) occur in `text`; all but the plus sign stand for themselves.
  const own = text ? [`${encodeURIComponent(key)}=${text.replaceAll("+", "%2B")}`] : [];
  const all = [...others, ...own].join("&");
  return all ? `?${all}` : "";
}

function decodeName(name) {
  try {
    return decodeURIComponent(name);
  } catch {
    return name; // a stray percent sign in somebody else's parameter
  }
}

/** The address of this page that opens at the figure, in this state. */
export const deepLink = (address, key, text) => {
  const url = new URL(address);
  return `${url.origin === "null" ? `${url.protocol}//${url.host}` : url.origin}${url.pathname}${writeQuery(url.search, key, text)}#${encodeURIComponent(key)}`;
};

/**
 * Keeps the address in step with a figure, at most every `interval` ms (browsers limit
 * replaceState). Where the page is not ours (a live notebook), `enabled` is false.
 */
export class AddressWriter {
  #timer = 0;
  #latest = null;

  constructor(key, { enabled, interval = 400 }) {
    this.key = key;
    this.enabled = enabled;
    this.interval = interval;
  }

  write(text) {
    if (!this.enabled) return;
    this.#latest = text;
    this.#timer ||= setTimeout(() => this.flush(), this.interval);
  }

  flush() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    if (this.#latest === null) return;
    const search = writeQuery(location.search, this.key, this.#latest);
    this.#latest = null;
    if (search === location.search) return;
    try {
      history.replaceState(history.state, "", `${location.pathname}${search}${location.hash}`);
    } catch {
      this.enabled = false; // a sandboxed frame has no address to write to
    }
  }
}
