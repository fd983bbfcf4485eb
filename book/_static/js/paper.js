// Paper is white: a page that is dark on the screen is light while it is printed.
(() => {
  const root = document.documentElement;
  let before = null;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.dataset.theme = "light";
  });
  addEventListener("afterprint", () => {
    if (before) root.dataset.theme = before;
    before = null;
  });
})();
