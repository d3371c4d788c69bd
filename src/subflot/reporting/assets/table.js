// Tables that sort by any column.
//
// A column is {title, value, text}: what a row is sorted by, and how that is shown. `isText` aligns it
// left; `best` is "high" or "low" and makes the best value bold; `bar` draws each value as a length;
// `cell` returns an element to show instead of text. The value itself stays in `data-value`.

const MANY_ROWS = 40; // Beyond these, a table scrolls by itself.

function table(label, columns, rows, { sortBy = null, isTall = rows.length > MANY_ROWS } = {}) {
  const first = columns.find((column) => column.title === sortBy) ?? null;
  const sorting = { column: first, isDescending: true };
  const head = make("tr");
  const body = make("tbody");
  const caption = make("caption", { class: "hidden" }, label);
  const element = make("table", {}, caption, make("thead", {}, head), body);
  const best = columns.map((column) => bestOf(column, rows));
  const most = columns.map(({ value }) => Math.max(0, ...rows.map((row) => Number(value(row)) || 0)));

  function fillHead() {
    head.replaceChildren(...columns.map((column) => {
      const isSorted = column === sorting.column;
      const order = isSorted ? (sorting.isDescending ? "descending" : "ascending") : null;
      return make("th", { scope: "col", "aria-sort": order, class: column.isText ? "text" : null },
        button(column.title, () => sort(column)));
    }));
  }

  function fillBody() {
    body.replaceChildren(...sorted(rows, sorting).map((row) => make("tr", {},
      ...columns.map((column, i) => cell(column, row, best[i], most[i], i === 0)))));
  }

  function sort(column) {
    const isAgain = sorting.column === column;
    sorting.isDescending = isAgain ? !sorting.isDescending : !column.isText;
    sorting.column = column;
    const place = columns.indexOf(column);
    fillHead();
    fillBody();
    head.children[place].firstChild.focus();
  }

  fillHead();
  fillBody();
  const frame = { class: isTall ? "scroll tall" : "scroll", role: "region", "aria-label": label };
  return make("div", { ...frame, tabindex: 0 }, element);
}

function cell(column, row, best, most, isFirst) {
  const value = column.value(row);
  const shown = column.cell ? column.cell(row) : column.text ? column.text(row) : plain(value);
  const isBest = best !== null && value === best;
  const element = make(isFirst ? "th" : "td", {
    scope: isFirst ? "row" : null,
    "data-column": column.title,
    "data-value": value === null || value === undefined ? "" : value,
    class: [column.isText ? "text" : "", isBest ? "best" : ""].join(" ").trim() || null,
  }, shown);
  if (column.bar && value !== null && value !== undefined) {
    const length = make("span", { class: "length", "aria-hidden": "true" });
    length.style.width = `${most ? (100 * value) / most : 0}%`;
    element.append(length);
  }
  return element;
}

function sorted(rows, { column, isDescending }) {
  if (column === null) return rows;
  const sign = isDescending ? -1 : 1;
  const isMissing = (value) => value === null || value === undefined;
  return [...rows].sort((one, other) => {
    const [a, b] = [column.value(one), column.value(other)];
    if (isMissing(a) || isMissing(b)) return isMissing(a) - isMissing(b); // Always at the end.
    return sign * (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
  });
}

function bestOf(column, rows) {
  if (!column.best || rows.length < 2) return null;
  const values = rows.map(column.value).filter((value) => value !== null && value !== undefined);
  if (!values.length) return null;
  return column.best === "high" ? Math.max(...values) : Math.min(...values);
}
