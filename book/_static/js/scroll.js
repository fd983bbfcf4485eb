// Boxes that scroll sideways must be reachable with the keyboard: those that do get a tab stop.
// While something is hidden on the right, the style sheet fades that edge.
(() => {
  const boxes =
    ".bd-article mjx-container[display], .bd-article div.highlight pre, .bd-article .cell_output .text_html," +
    ".bd-article .cell_output pre, .bd-article .pst-scrollable-table-container, .bd-article .math-wrapper";
  const label = (box) =>
    box.matches("mjx-container") ? "Formula, scrolls sideways"
      : box.querySelector("table") || box.matches("table") ? "Table, scrolls sideways"
        : "Code or output, scrolls sideways";

  const fade = (box) =>
    box.toggleAttribute("data-more", box.scrollLeft + box.clientWidth < box.scrollWidth - 2);

  const update = () => {
    for (const box of document.querySelectorAll(boxes)) {
      const scrolls = box.scrollWidth > box.clientWidth;
      // Minus one also where the theme says that nothing scrolls; it is late to change its mind.
      if (scrolls && box.tabIndex < 0) {
        box.tabIndex = 0;
        box.dataset.scrolls = "";
        if (!box.hasAttribute("role")) box.setAttribute("role", "group");
        if (!box.hasAttribute("aria-label")) box.setAttribute("aria-label", label(box));
        box.addEventListener("scroll", () => fade(box), { passive: true });
      } else if (!scrolls && "scrolls" in box.dataset) {
        for (const name of ["tabindex", "role", "aria-label", "data-scrolls"]) box.removeAttribute(name);
      }
      fade(box);
    }
  };

  let waiting = 0;
  const soon = () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(update);
  };
  addEventListener("load", () => {
    soon();
    // Formulas get their width when they are typeset.
    window.MathJax?.startup?.promise?.then(soon);
  });
  addEventListener("resize", soon);
  document.addEventListener("toggle", soon, true);
})();
