// The search shows below each result where the words stand, and fetches the page for that.
(() => {
  // From a folder a browser fetches nothing, so there the results come without.
  if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

  // A formula would stand there as TeX, often cut in the middle.
  const formula = /<(span|div) class="math notranslate nohighlight"[^>]*>.*?<\/\1>/gs;
  const { htmlToText } = Search;
  Search.htmlToText = (html, anchor) => htmlToText(html.replace(formula, "…"), anchor);
})();
