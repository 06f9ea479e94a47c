// Building the page. Text is always a text node: data are never parsed as markup.

function fill(node, children) {
  const parts = [children].flat(Infinity);
  node.replaceChildren(...parts.filter((part) => part !== null && part !== undefined && part !== false));
  return node;
}

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "css") for (const [key, is] of Object.entries(value)) node.style.setProperty(key, is);
    else node.setAttribute(name, value === true ? "" : value);
  }
  return fill(node, children);
}

const el = (name, attributes, ...children) => build(document.createElement(name), attributes, children);
const svg = (name, attributes, ...children) =>
  build(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
const code = (text) => el("code", null, text);

let lastId = 0;
const newId = (stem) => `${stem}-${(lastId += 1)}`;

/** {columns, rows} as one object per row; null without a table. */
const records = (table) =>
  table && table.rows.map((row) => Object.fromEntries(table.columns.map((name, i) => [name, row[i]])));

/**
 * One tab stop for many elements: the arrow keys move between them.
 * `items` are {node, ...}; `next(item, key)` is the item that a key leads to, or undefined.
 */
function roving(items, start, next, { enter, leave, choose }) {
  const stop = (item) => {
    for (const other of items) other.node.setAttribute("tabindex", other === item ? "0" : "-1");
  };
  const press = (item, event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const goal = next(item, event.key);
    if (event.key === "Enter" || event.key === " ") choose(item);
    else if (goal) goal.node.focus();
    else if (!event.key.startsWith("Arrow")) return;
    event.preventDefault();
  };
  for (const item of items) {
    const on = (name, does) => item.node.addEventListener(name, does);
    on("focus", () => {
      stop(item);
      enter(item);
    });
    on("blur", () => leave(item));
    on("pointerenter", (event) => event.pointerType === "mouse" && enter(item));
    on("pointerleave", (event) => event.pointerType === "mouse" && leave(item));
    on("click", () => {
      stop(item);
      choose(item);
    });
    on("keydown", (event) => press(item, event));
  }
  stop(start);
}

/** Buttons of which one is pressed; `options` are [name, words], `set(name)` is called when that changes. */
function choiceOf(label, options, pressed, set) {
  const buttons = options.map(([name, words]) => {
    const press = () => {
      for (const button of buttons) button.setAttribute("aria-pressed", String(button === own));
      set(name);
    };
    const own = el(
      "button",
      { type: "button", "aria-pressed": String(name === pressed), onclick: press },
      words,
    );
    return own;
  });
  return el("div", { class: "choice", role: "group", "aria-label": label }, buttons);
}

/** `columns` are [name, value(row)], the first one heads its row; what is false is left out. */
function plainTable(columns, rows) {
  const own = columns.filter(Boolean);
  const cell = (value, i) => (i ? el("td", null, String(value)) : el("th", { scope: "row" }, String(value)));
  const line = (row) =>
    el(
      "tr",
      null,
      own.map(([, value], i) => cell(value(row), i)),
    );
  const head = own.map(([name]) => el("th", { scope: "col" }, name));
  return el("table", null, el("thead", null, el("tr", null, head)), el("tbody", null, rows.map(line)));
}

/** A table that can be opened and, if it is large, scrolled. */
function tableOf(title, columns, rows) {
  const place = { class: "scroll", tabindex: "0", role: "region", "aria-label": title };
  return el(
    "details",
    { class: "numbers" },
    el("summary", null, title),
    el("div", place, plainTable(columns, rows)),
  );
}

/** A table of text cells: {title, columns, rows}. */
const textTable = ({ title, columns, rows }) =>
  tableOf(
    title,
    columns.map((name, i) => [name, (row) => row[i]]),
    rows,
  );

/** A figure drawn by Python: {title, caption, source, width}. */
const drawing = ({ title, caption, source, width }) =>
  el(
    "figure",
    { class: "drawn" },
    el("div", { class: "scroll" }, el("img", { class: width > 700 ? "wide" : null, src: source, alt: title, width })),
    el("figcaption", { class: "note" }, caption),
  );

/** Names and values in a section that can be opened. */
function settingsOf(title, rows) {
  if (!rows.length) return null;
  const line = ([name, value]) => el("div", null, el("dt", null, name), el("dd", null, value));
  return el("details", { class: "settings" }, el("summary", null, title), el("dl", null, rows.map(line)));
}
