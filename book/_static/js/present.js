// A chapter as slides, in its own page: the button "Present", or the address …#present (=7 for the
// seventh slide). Browser figures move into their slide, keep their state, and move back.
(() => {
  const button = document.getElementById("present");
  const article = document.querySelector(".bd-article");
  if (!button || !article || !window.HTMLDialogElement) return;

  const SMALLEST = 15; // px; below that a slide scrolls instead of shrinking
  const SCALES = [1, 0.92, 0.85, 0.78, 0.72, 0.66, 0.6];
  const SWIPE = 50; // px
  const ICONS = {
    back: "M10 3L5 8l5 5",
    on: "M6 3l5 5-5 5",
    help: "M5.5 6a2.5 2.5 0 1 1 3.4 2.3c-.6.3-.9.7-.9 1.5M8 12.6v.1",
    full: "M2 6V2h4M10 2h4v4M14 10v4h-4M6 14H2v-4",
    close: "M3.5 3.5l9 9M12.5 3.5l-9 9",
  };
  const KEYS = [
    ["→, Space, Page down", "next slide"],
    ["←, Shift + Space, Page up", "slide before"],
    ["↓, ↑", "scroll a long slide, else next and before"],
    ["Home, End", "first slide, last slide"],
    ["F", "full screen"],
    ["?", "these keys"],
    ["Esc", "leave"],
  ];

  let view = null; // what exists only while the view is open

  const make = (tag, properties = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  };

  function icon(path) {
    const holder = make("span", { class: "icon", "aria-hidden": "true" });
    holder.innerHTML = `<svg viewBox="0 0 16 16"><path d="${path}"/></svg>`;
    return holder;
  }

  const tool = (name, label, act) =>
    make("button", { type: "button", class: `tool-${name}`, "aria-label": label, title: label, onclick: act }, icon(ICONS[name]));

  // ---- the address ------------------------------------------------------------------------

  /** The slide that the address asks for, counted from zero, or null where it asks for none. */
  function asked() {
    const match = /^#present(?:=(\d+))?$/.exec(location.hash);
    return match && Math.max(0, Number(match[1] ?? 1) - 1);
  }

  function write(hash, state = history.state, method = "replaceState") {
    try {
      history[method](state, "", `${location.pathname}${location.search}${hash}`);
    } catch {
      // A sandboxed frame has no address to write to; the view works without.
    }
  }

  /** The slide where the reader is: of the live figure in sight, or the first of the section. */
  function here(slides) {
    if (scrollY < innerHeight / 2) return 0;
    const above = (element) => element.getBoundingClientRect().top < innerHeight / 2;
    const seen = (part) => part.isConnected && above(part) && part.getBoundingClientRect().bottom > 0;
    const live = slides.findIndex(({ parts }) => parts.some(seen));
    if (live >= 0) return live;
    const begun = slides.findLast(({ section }) => above(section));
    return Math.max(0, slides.findIndex(({ section }) => section === begun?.section));
  }

  function follow() {
    const slide = asked();
    if (slide === null) close();
    else if (view) show(slide);
    else open(slide);
  }

  // ---- opening and closing ----------------------------------------------------------------

  function open(at = null) {
    if (view) return;
    const slides = window.klSpine.spine(article);
    at ??= here(slides);
    const name = slides[0].heading.textContent.trim();
    const stage = make("div", { class: "stage bd-content", tabindex: "-1", autofocus: "" });
    const deck = make("div", { class: "deck bd-article" });
    const progress = make("p", { class: "progress", role: "status" });
    const bar = make("span", { class: "done", "aria-hidden": "true" });
    const help = helpDialog();
    const tools = make(
      "div", { class: "tools" },
      tool("back", "Slide before", () => show(view.at - 1)), progress,
      tool("on", "Next slide", () => show(view.at + 1)),
      make("span", { class: "space" }),
      tool("help", "Keys", () => help.showModal()),
      ...(document.fullscreenEnabled ? [tool("full", "Full screen", fullScreen)] : []),
      tool("close", "Leave the presentation", leave),
    );
    // Paper lies down while slides are open; a style sheet cannot say this of a part of a page.
    const paper = make("style", {}, "@page { size: landscape; margin: 14mm; }");
    const dialog = make(
      "dialog", { class: "kl-present", "aria-label": `Slides: ${name}` }, paper, stage, bar, tools, help,
    );
    stage.append(deck);
    document.body.append(dialog);
    view = { dialog, stage, slides, progress, bar, help, moved: [], at: -1, scroll: [scrollX, scrollY], full: false };
    const live = [];
    view.frames = slides.map((slide, number) => frame(slide, number, live));
    deck.append(...view.frames);
    for (const [part, into] of live) moveIn(part, into);

    dialog.addEventListener("keydown", key);
    // Other ways to ask for an end, such as a phone's gesture; the browser may close without asking.
    dialog.addEventListener("cancel", (event) => {
      if (event.target !== dialog) return;
      event.preventDefault();
      leave();
    });
    dialog.addEventListener("close", (event) => event.target === dialog && leave());
    swipes(stage);
    view.size = new ResizeObserver(fit);
    view.size.observe(stage);
    dialog.showModal();
    show(at);
  }

  /** One slide: what it is called, and its parts; those that are alive go to `live`, with their slide. */
  function frame(slide, at, live) {
    const heading = make(at ? "h2" : "h1", {}, ...slide.heading.childNodes);
    const made = make("div", {
      class: at ? "slide" : "slide title", role: "group", "aria-roledescription": "slide",
      "aria-label": `${at + 1} of ${view.slides.length}`, hidden: "",
    });
    if (slide.kicker) made.append(make("p", { class: "kicker" }, slide.kicker));
    made.append(heading);
    for (const part of slide.parts) {
      if (part.isConnected) live.push([part, made]);
      else made.append(part);
    }
    return made;
  }

  function moveIn(part, into) {
    // The page keeps its height behind the slides.
    const place = make("div", { style: `height: ${part.offsetHeight}px` });
    part.replaceWith(place);
    into.classList.add("with-live");
    into.append(part);
    view.moved.push([part, place]);
  }

  /** Puts the page back as it was. Without `link`, focus and scroll position go back too. */
  function close(link = asked() === null && location.hash.length > 1) {
    if (!view) return;
    const { dialog, moved, size, scroll, full } = view;
    // Going back leads to an address without what was changed on a slide: figures take it along.
    for (const [figure] of moved) figure.address?.write(figure.linkText());
    for (const [figure, place] of moved) place.replaceWith(figure);
    size.disconnect();
    view = null;
    dialog.close();
    dialog.remove();
    if (full && document.fullscreenElement) document.exitFullscreen();
    button.focus({ preventScroll: true });
    if (!link) scrollTo({ left: scroll[0], top: scroll[1], behavior: "instant" });
  }

  /** Leaves as the browser's Back does, where that leads to the page itself. */
  function leave() {
    if (!view) return;
    if (history.state?.klPresent) history.back();
    else {
      write("");
      close(false);
    }
  }

  // ---- slides -----------------------------------------------------------------------------

  function show(wanted) {
    const { frames, stage, progress, bar } = view;
    const at = Math.min(Math.max(wanted, 0), frames.length - 1);
    if (at === view.at) return;
    const lost = frames[view.at]?.contains(document.activeElement);
    view.at = at;
    frames.forEach((slide, i) => (slide.hidden = i !== at));
    stage.scrollTop = 0;
    if (lost) stage.focus();
    const spoken = make("span", { class: "visually-hidden" }, `: ${frames[at].querySelector("h1, h2").textContent}`);
    progress.replaceChildren(make("span", { class: "visually-hidden" }, "Slide "), `${at + 1} of ${frames.length}`, spoken);
    bar.style.width = `${(100 * (at + 1)) / frames.length}%`;
    for (const [name, off] of [["back", at === 0], ["on", at === frames.length - 1]])
      view.dialog.querySelector(`.tool-${name}`).setAttribute("aria-disabled", off);
    write(at ? `#present=${at + 1}` : "#present");
    fit();
  }

  const wide = (slide) =>
    [...slide.querySelectorAll("mjx-container[display], .cell_output > *, .pst-scrollable-table-container, pre")].some(
      (box) => box.scrollWidth > box.clientWidth + 1,
    );

  /** Shrinks a slide until it fits, down to the smallest type; then it scrolls and takes the focus. */
  function fit() {
    if (!view) return;
    const { stage, frames, at } = view;
    const slide = frames[at];
    if (!slide) return;
    const tall = () => stage.scrollHeight > stage.clientHeight + 1;
    stage.style.removeProperty("--kl-scale");
    const size = parseFloat(getComputedStyle(slide).fontSize);
    for (const scale of SCALES) {
      if (scale < 1 && size * scale < SMALLEST) break;
      stage.style.setProperty("--kl-scale", scale);
      // A live figure has its own measures.
      if (slide.matches(".with-live") || !(tall() || wide(slide))) break;
    }
    const scrolls = tall();
    stage.tabIndex = scrolls ? 0 : -1;
    if (scrolls) {
      stage.setAttribute("role", "group");
      stage.setAttribute("aria-label", "Slide, scrolls");
    } else {
      stage.removeAttribute("role");
      stage.removeAttribute("aria-label");
    }
    // The theme takes tab stops away from what it cannot measure, as on the slides that are not shown.
    for (const box of slide.querySelectorAll('[tabindex="-1"]')) box.removeAttribute("tabindex");
    // js/scroll.js looks again at what scrolls sideways when something was opened.
    view.dialog.dispatchEvent(new Event("toggle"));
  }

  // ---- keys, fingers, screen --------------------------------------------------------------

  function key(event) {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    const target = event.composedPath()[0];
    if (event.key === "Escape" && !view.help.open) {
      // Some fields keep Esc from closing a dialog.
      event.preventDefault();
      return leave();
    }
    // Figures, fields and boxes that scroll sideways have uses of their own for these keys.
    if (event.composedPath().some((node) => node.localName && window.klSpine.isLive(node))) return;
    if (target.closest?.("input, select, textarea, .help")) return;
    if (event.key === " " && target.closest?.("button, a, summary")) return;
    if (/Left|Right/.test(event.key) && target.closest?.("[data-scrolls]")) return;
    const { stage, at, frames } = view;
    const room = (down) =>
      down ? stage.scrollTop + stage.clientHeight < stage.scrollHeight - 1 : stage.scrollTop > 0;
    // A long slide is read to its end before the next one comes.
    const page = (down) => {
      if (!room(down)) return show(at + (down ? 1 : -1));
      stage.scrollBy({ top: (down ? 0.85 : -0.85) * stage.clientHeight, behavior: "instant" });
    };
    const line = (down) => {
      if (!room(down)) return stage.tabIndex === 0 ? undefined : show(at + (down ? 1 : -1));
      stage.scrollBy({ top: down ? 60 : -60, behavior: "instant" });
    };
    const acts = {
      ArrowRight: () => show(at + 1), ArrowLeft: () => show(at - 1),
      PageDown: () => page(true), PageUp: () => page(false), " ": () => page(!event.shiftKey),
      ArrowDown: () => line(true), ArrowUp: () => line(false),
      Home: () => show(0), End: () => show(frames.length - 1),
      "?": () => view.help.showModal(), f: fullScreen, F: fullScreen,
    };
    if (!Object.hasOwn(acts, event.key)) return;
    event.preventDefault();
    acts[event.key]();
  }

  function swipes(stage) {
    let from = null;
    const inert = (target) => target.closest("input, select, [data-scrolls]") || target.closest(".with-live > :not(h1, h2, p)");
    stage.addEventListener("touchstart", (event) => {
      from = event.touches.length === 1 && !inert(event.target) ? event.touches[0] : null;
    }, { passive: true });
    stage.addEventListener("touchend", (event) => {
      if (!from) return;
      const to = event.changedTouches[0];
      const [x, y] = [to.clientX - from.clientX, to.clientY - from.clientY];
      from = null;
      if (Math.abs(x) > SWIPE && Math.abs(x) > 2 * Math.abs(y)) show(view.at + (x < 0 ? 1 : -1));
    });
  }

  function fullScreen() {
    if (!document.fullscreenEnabled) return;
    if (document.fullscreenElement) document.exitFullscreen();
    else document.documentElement.requestFullscreen().then(() => view && (view.full = true), () => {});
  }

  function helpDialog() {
    const rows = KEYS.map(([keys, act]) => make("div", {}, make("dt", {}, keys), make("dd", {}, act)));
    const help = make("dialog", { class: "help", "aria-label": "Keys" }, make("dl", {}, ...rows));
    const words = "On a touch screen, swipe. A printout has one slide a page. To link to a slide, copy the address.";
    help.append(make("p", {}, words), make("button", { type: "button", onclick: () => help.close() }, "Close"));
    return help;
  }

  // ---- start ------------------------------------------------------------------------------

  // Slides are copies of formulas that are typeset.
  const loaded = new Promise((done) => {
    if (document.readyState === "complete") done();
    else addEventListener("load", done, { once: true });
  }).then(() => window.MathJax?.startup?.promise);

  button.hidden = false;
  button.addEventListener("click", async () => {
    await loaded;
    if (view) return;
    write("#present", { ...history.state, klPresent: true }, "pushState");
    open();
  });
  // Before the figures' own listeners, which then read an address that holds their state.
  addEventListener("popstate", follow, { capture: true });
  loaded.then(() => asked() !== null && follow());
})();
