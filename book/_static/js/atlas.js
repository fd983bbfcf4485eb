// The atlas: words to search for, two choices, and an order. Without this script the table is whole
// and plain. What a reader chose stands in the address, so that a link shows the same rows.
(() => {
  const table = document.querySelector("table.atlas");
  if (!table) return;

  const headings = [...table.tHead.rows[0].cells];
  const titles = headings.map((cell) => cell.textContent.trim());
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const text = (cell) => cell.textContent.trim().replace(/\s+/g, " ");
  // In what order columns sort, and what a row is searched for.
  const keys = new Map(rows.map((row) => [row, [...row.cells].map(text)]));
  const plain = (words) => words.toLowerCase().normalize("NFKD").replaceAll("‖", "||");
  const searched = new Map(rows.map((row) => [row, plain(keys.get(row).join(" "))]));
  const USED = titles.indexOf("Used as");
  const AUDIT = titles.indexOf("Audit");

  // On a narrow screen rows are cards, by CSS; roles keep them a table for a screen reader.
  for (const [selector, role] of [["thead, tbody", "rowgroup"], ["tr", "row"], ["th", "columnheader"], ["td", "cell"]])
    for (const part of table.querySelectorAll(selector)) part.setAttribute("role", role);
  table.setAttribute("role", "table");
  table.setAttribute("aria-label", "Atlas");

  const make = (tag, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };
  const labelled = (label, field) => make("label", {}, make("span", { textContent: label }), field);
  const choice = (label, all, names) => {
    const field = make("select", {}, ...[all, ...names].map((name) => new Option(name, name === all ? "" : name)));
    return [labelled(label, field), field];
  };

  const words = make("input", { type: "search", autocomplete: "off", spellcheck: false });
  const [usedLabel, used] = choice("Used as", "anything", ["metric", "loss", "reward"]);
  const [auditLabel, audit] = choice("Audit says", "anything", ["agrees", "differs", "not judged"]);
  const [orderLabel, order] = choice("In order of", "the atlas", titles.flatMap((t) => [t, `${t}, backwards`]));
  const clear = make("button", { type: "button", textContent: "Show all" });
  const count = make("p", { className: "count" });
  count.setAttribute("role", "status");
  const tools = make(
    "form", { className: "atlas-tools" }, labelled("Words", words), usedLabel, auditLabel, orderLabel, clear, count,
  );
  tools.setAttribute("role", "search");
  tools.setAttribute("aria-label", "Rows of the atlas");
  tools.addEventListener("submit", (event) => event.preventDefault());
  (table.closest(".pst-scrollable-table-container") ?? table).before(tools);

  const buttons = titles.map((title, column) => {
    const button = make("button", { type: "button", textContent: title });
    button.addEventListener("click", () => {
      order.value = order.value === title ? `${title}, backwards` : title;
      update();
    });
    headings[column].replaceChildren(button);
    return button;
  });

  // Where rows are cards, headings are out of sight, and a list does what they do.
  const narrow = matchMedia("(max-width: 59.99rem)");
  const reach = () => buttons.forEach((button) => (button.tabIndex = narrow.matches ? -1 : 0));
  narrow.addEventListener("change", reach);
  reach();

  const compare = new Intl.Collator("en", { numeric: true }).compare;
  const fields = { words, used, audit, order };

  function update() {
    const wanted = plain(words.value).split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const cells = keys.get(row);
      row.hidden = !(
        wanted.every((word) => searched.get(row).includes(word)) &&
        cells[USED].startsWith(used.value) &&
        cells[AUDIT].startsWith(audit.value)
      );
      shown += !row.hidden;
    }
    const [title, backwards] = order.value.split(", ");
    const column = titles.indexOf(title);
    const sorted = [...rows];
    if (column >= 0)
      sorted.sort((a, b) => (backwards ? -1 : 1) * compare(keys.get(a)[column], keys.get(b)[column]));
    body.append(...sorted);
    buttons.forEach((_, at) => {
      if (at === column) headings[at].setAttribute("aria-sort", backwards ? "descending" : "ascending");
      else headings[at].removeAttribute("aria-sort");
    });
    const by = column >= 0 ? `, by ${title.toLowerCase()}${backwards ? ", backwards" : ""}` : "";
    count.textContent = `${shown} of ${rows.length} rows${by}`;
    const address = new URL(location.href);
    for (const [name, field] of Object.entries(fields)) {
      if (field.value) address.searchParams.set(name, field.value);
      else address.searchParams.delete(name);
    }
    if (address.href !== location.href) history.replaceState(history.state, "", address);
  }

  // A link may ask for what there is not; a choice then stays at its first entry.
  const asked = new URLSearchParams(location.search);
  words.value = (asked.get("words") ?? "").slice(0, 100);
  for (const field of [used, audit, order]) {
    const value = asked.get(Object.keys(fields).find((name) => fields[name] === field));
    if ([...field.options].some((option) => option.value === value)) field.value = value;
  }
  let waiting = 0;
  words.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(update, 150);
  });
  for (const field of [used, audit, order]) field.addEventListener("change", update);
  clear.addEventListener("click", () => {
    for (const field of Object.values(fields)) field.value = "";
    update();
    words.focus();
  });
  update();
})();
