// Rest on a link within the book, or reach it with the keyboard, and a card shows what is there.
// The cards are in preview-cards.js, which is asked for when the first one is wanted. A finger
// follows the link at once. Esc puts a card away; it stays while the pointer is on it or on its link.
(() => {
  if (!HTMLElement.prototype.showPopover) return;
  const LINKS = ".bd-article a.internal[href]:not(.headerlink, table.atlas a, .solution > .admonition-title a)"; // as in kl_previews.py
  const REST = 250; // ms of rest before a card comes
  const GRACE = 200; // ms to get from a link to its card
  const GAP = 6; // px
  const root = new URL(document.documentElement.dataset.content_root || "./", location.href);

  let cards = null; // the file, once asked for
  let shown = null; // { link, card, stop }
  let timer = 0;
  let wanted = null; // the link whose card is on its way

  function load() {
    cards ??= new Promise((done) => {
      const script = document.createElement("script");
      script.src = new URL("_static/js/preview-cards.js", root);
      script.addEventListener("load", () => done(window.klPreviewCards ?? {}));
      script.addEventListener("error", () => done({}));
      document.head.append(script);
    });
    return cards;
  }

  /** A link's target from the book's root, as the file has it; null for what is elsewhere. */
  function key(link) {
    const target = new URL(link.href);
    target.search = "";
    return target.href.startsWith(root.href) ? decodeURIComponent(target.href.slice(root.href.length)) : null;
  }

  function make(html) {
    const card = document.createElement("div");
    card.className = "kl-preview bd-content";
    card.id = "kl-preview";
    card.popover = "manual";
    card.setAttribute("role", "tooltip");
    const text = document.createElement("div");
    text.className = "bd-article";
    text.innerHTML = html; // written by the build, from this book
    for (const image of text.querySelectorAll("img")) image.src = new URL(image.getAttribute("src"), root);
    card.append(text);
    return card;
  }

  async function show(link, at) {
    wanted = link;
    const html = (await load())[key(link)];
    if (wanted !== link || shown?.link === link || !link.isConnected) return;
    hide();
    if (!html || (!window.MathJax && html.includes('class="math'))) return;
    const card = make(html);
    // What is outside of a modal dialog cannot be pointed at.
    (link.closest("dialog") ?? document.body).append(card);
    const title = link.getAttribute("title"); // the browser's own tip would lie on the card
    link.removeAttribute("title");
    link.setAttribute("aria-describedby", card.id);
    const stop = new AbortController();
    shown = { link, card, stop, title };
    const move = () => place(card, link, at);
    addEventListener("scroll", () => (inView(link) ? move() : hide()), { capture: true, passive: true, signal: stop.signal });
    addEventListener("resize", hide, { signal: stop.signal });
    card.addEventListener("pointerenter", () => clearTimeout(timer));
    card.addEventListener("pointerleave", () => later(hide, GRACE));
    card.addEventListener("load", move, true); // an image has its height now
    card.showPopover();
    move();
    await window.MathJax?.startup?.promise;
    await window.MathJax?.typesetPromise?.([card]);
    if (shown?.card === card) move();
  }

  function hide() {
    clearTimeout(timer);
    if (!shown) return;
    const { link, card, stop, title } = shown;
    shown = null;
    stop.abort();
    window.MathJax?.typesetClear?.([card]);
    card.remove();
    link.removeAttribute("aria-describedby");
    if (title !== null) link.setAttribute("title", title);
  }

  /** Below the line of the link that the pointer is on, or above it where there is more room. */
  function place(card, link, at) {
    const lines = [...link.getClientRects()];
    const line = lines.find((box) => at && at.y >= box.top - 1 && at.y <= box.bottom + 1 && at.x >= box.left - 1 && at.x <= box.right + 1) ?? lines[0];
    if (!line) return;
    const { clientWidth: width, clientHeight: height } = document.documentElement;
    const below = height - line.bottom;
    const down = card.offsetHeight + 2 * GAP <= below || below >= line.top;
    card.style.maxHeight = `${(down ? below : line.top) - 2 * GAP}px`;
    const left = Math.min(Math.max(GAP, line.left), width - card.offsetWidth - GAP);
    card.style.left = `${Math.max(0, left)}px`;
    card.style.top = `${down ? line.bottom + GAP : line.top - GAP - card.offsetHeight}px`;
  }

  const inView = (link) => {
    const { top, bottom } = link.getBoundingClientRect();
    return bottom > 0 && top < document.documentElement.clientHeight;
  };

  function later(act, delay) {
    clearTimeout(timer);
    timer = setTimeout(act, delay);
  }

  const linkOf = (event) => event.target.closest?.(LINKS);

  document.addEventListener("pointerover", (event) => {
    const link = event.pointerType === "mouse" && linkOf(event);
    if (!link) return;
    clearTimeout(timer);
    if (shown?.link === link) return;
    load(); // comes while the pointer rests
    later(() => show(link, { x: event.clientX, y: event.clientY }), REST);
  });
  document.addEventListener("pointerout", (event) => {
    const link = event.pointerType === "mouse" && linkOf(event);
    if (!link || link.contains(event.relatedTarget)) return;
    wanted = null;
    // A link that has the focus keeps its card.
    if (shown?.link === link && link.matches(":focus-visible")) clearTimeout(timer);
    else later(hide, GRACE);
  });
  document.addEventListener("focusin", (event) => {
    const link = linkOf(event);
    if (link?.matches(":focus-visible")) show(link);
    else if (shown && !shown.card.contains(event.target)) hide();
  });
  document.addEventListener("focusout", (event) => {
    wanted = null;
    if (shown?.link === event.target) hide();
  });
  document.addEventListener("click", () => {
    wanted = null;
    hide();
  });
  // Before a dialog hears of it: Esc puts away the card first.
  addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    wanted = null;
    clearTimeout(timer);
    if (!shown) return;
    event.preventDefault();
    event.stopPropagation();
    hide();
  }, true);
})();
