// The spine of a chapter: which parts of its page go on slides. The rules, in words, are in
// CONTRIBUTING; nothing is written twice, so a slide says what the page says.
//
// A slide is { kicker, heading, parts, section }. A part is a copy of something on the page or, where it is
// alive, the thing itself, which is still in the page then.
window.klSpine = (() => {
  const PUZZLE = "the-puzzle";
  const WHOLE = new Set([PUZZLE, "what-to-take", "summary"]); // sections shown with all their words
  const QUESTIONS = "questions-to-discuss"; // one slide each
  const LEFT_OUT = new Set(["play", "exercises", "break-it", "what-this-page-leaves-open", "sources"]);
  const ON = ".on-slide, .tag_on-slide"; // an author's wish
  const OFF = ".off-slide, .tag_off-slide, table.atlas"; // the atlas has its own search, and too many rows
  const ENOUGH = 420; // characters of a puzzle, after which it goes on on a new slide
  const READING = /^In words\b/;

  const isLive = (element) => element.localName.startsWith("kl-");

  /** A copy without what may stand on a page only once, and without tab stops. */
  function copy(node) {
    const made = node.cloneNode(true);
    if (made.nodeType !== Node.ELEMENT_NODE) return made;
    for (const extra of made.querySelectorAll(".headerlink, button")) extra.remove(); // buttons copy code
    for (const element of [made, ...made.querySelectorAll("*")]) {
      const names = "scrolls" in element.dataset ? ["role", "aria-label", "data-scrolls"] : [];
      for (const name of ["id", "tabindex", "data-more", ...names]) element.removeAttribute(name);
    }
    return made;
  }

  /** The lines of a paragraph. In the source each sentence has one, and the page keeps the breaks. */
  function lines(paragraph) {
    const found = [[]];
    for (const child of paragraph.childNodes) {
      const [first, ...others] = child.nodeType === Node.TEXT_NODE ? child.data.split("\n") : [copy(child)];
      found.at(-1).push(first);
      for (const text of others) found.push([text]);
    }
    const made = found.map((parts) => {
      const line = document.createElement("p");
      line.append(...parts);
      return line;
    });
    return made.filter((line) => line.textContent.trim());
  }

  /** The outputs of a cell, or of a block that holds some. */
  const outputs = (cell) => [...cell.querySelectorAll(".cell_output > *")].filter((o) => !o.closest("details"));

  /** A copy of an output, inside of what the page's styles want around it. */
  function framed(output) {
    const frame = document.createElement("div");
    frame.className = "cell_output";
    frame.append(copy(output));
    return frame;
  }

  /** The paragraph that leads up to a block; code between the two does not count. */
  function leadOf(block) {
    let before = block.previousElementSibling;
    while (before?.matches(".cell") && outputs(before).every((output) => output.matches(".stream")))
      before = before.previousElementSibling;
    return before?.localName === "p" ? before : null;
  }

  const kindOf = (block) => {
    if (block.matches("section")) return "section";
    if (block.matches("div.math, .math-wrapper")) return "equation";
    // A block of code that is no cell is a quotation.
    if (block.matches('p, ul, ol, dl, blockquote, [class^="highlight-"]')) return "words";
    if (block.matches("div.admonition, div.proof"))
      return block.matches(".exercise, .solution, .tip") ? "nothing" : "box";
    if (block.matches("figure")) return "figure";
    if (block.matches("table, .pst-scrollable-table-container, .text_html:has(table)")) return "table";
    if (block.matches(".stream")) return "print";
    if (block.matches(".text_html") && isLive(block.firstElementChild)) return "live";
    return "nothing"; // code, and what nobody foresaw
  };

  /** What stands in a section, one by one; cells and containers are opened. */
  function* blocks(section) {
    for (const block of section.children) {
      if (block.matches(OFF) || block.querySelector(":scope > table.atlas")) continue;
      if (block.matches(".cell")) {
        for (const output of outputs(block)) yield { block: output, place: block };
      } else if (block.matches(".container") && !block.matches(ON)) yield* blocks(block);
      else yield { block, place: block };
    }
  }

  /** Adds the slides of a section and of those within it. */
  function addSection(section, kicker, slides) {
    if (LEFT_OUT.has(section.id) || section.matches(OFF)) return;
    const title = section.querySelector(":scope > :is(h1, h2, h3)");
    const below = copy(title).textContent.trim();
    const start = (...parts) => slides.push({ kicker, heading: copy(title), parts, section });

    if (section.id === QUESTIONS) {
      for (const question of section.querySelectorAll(":scope > ol > li")) {
        const words = document.createElement("div");
        words.className = "question";
        words.append(...copy(question).childNodes);
        start(words);
      }
      return;
    }

    const whole = WHOLE.has(section.id);
    start();
    const opening = slides.at(-1);
    let alone = true; // nothing but words stands on the slide so far
    const used = new Set(); // lines that are on a slide already
    const say = (line) => {
      if (!line || used.has(line.textContent)) return [];
      used.add(line.textContent);
      return [line];
    };
    const first = section.querySelector(":scope > p");
    if (first && !whole) opening.parts.push(...say(lines(first)[0]));

    const put = (...parts) => (alone ? slides.at(-1).parts.push(...parts) : start(...parts));
    const add = (...parts) => {
      put(...parts);
      alone = whole;
    };
    const addWords = (part) => {
      const last = slides.at(-1).parts;
      if (!whole) return last.push(part);
      const full = last.reduce((sum, shown) => sum + shown.textContent.length, 0) > ENOUGH;
      if (full && section.id === PUZZLE) alone = false;
      return add(part);
    };
    // A figure wants the room: only a sentence may stand above it.
    const addFigure = (part) => {
      if (whole && slides.at(-1).parts.length) start(part);
      else put(part);
      alone = false;
    };
    for (const { block, place } of blocks(section)) {
      const kind = kindOf(block);
      const wanted = place.matches(ON);
      if (kind === "section") addSection(block, below, slides);
      else if (kind === "equation") {
        const lead = leadOf(place);
        const next = block.nextElementSibling;
        const reading = next?.localName === "p" && READING.test(next.textContent) ? lines(next)[0] : null;
        if (whole) add(copy(block));
        else add(...say(lead && lines(lead).at(-1)), copy(block), ...say(reading));
      } else if (kind === "words") {
        // A sentence that ends in "two numbers warn" needs the two numbers.
        const led = !whole && block.matches("ul, ol") && leadOf(place);
        if (whole || wanted) addWords(copy(block));
        else if (led) add(...say(lines(led).at(-1)), copy(block));
      } else if (kind === "figure") {
        addFigure(place === block ? copy(block) : framed(block));
      } else if (kind === "table") {
        const lead = leadOf(place);
        const made = place === block ? copy(block) : framed(block);
        add(...(whole ? [] : say(lead && lines(lead).at(-1))), made);
      } else if (kind === "print") {
        if (whole || wanted) addWords(framed(block));
      } else if (kind === "box") add(copy(block));
      else if (kind === "live") {
        put(block.firstElementChild);
        alone = false;
      } else if (wanted) addWords(copy(block));
    }
    // A section that only holds others says nothing itself.
    if (!opening.parts.length) slides.splice(slides.indexOf(opening), 1);
  }

  /** The slides of a page's article. */
  function spine(article) {
    const chapter = article.querySelector("section");
    const slides = [{ kicker: "", heading: copy(chapter.querySelector("h1")), parts: [], section: chapter }];
    const claim = chapter.querySelector(":scope > p");
    if (claim) slides[0].parts.push(copy(claim));
    const name = slides[0].heading.textContent.trim();
    for (const section of chapter.querySelectorAll(":scope > section")) addSection(section, name, slides);
    return slides;
  }

  return { spine, isLive };
})();
