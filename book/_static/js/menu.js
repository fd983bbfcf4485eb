// The theme's menus open as dialogs on a narrow page and lose the focus when they close; it goes
// back to the button that opened them.
(() => {
  let opener = null;
  document.addEventListener(
    "click",
    (event) => {
      opener = event.target.closest?.(".sidebar-toggle") ?? opener;
    },
    true,
  );
  // "close" does not bubble, so it is heard on its way down; the theme moves things after it.
  document.addEventListener("close", () => setTimeout(() => opener?.focus()), true);
})();
