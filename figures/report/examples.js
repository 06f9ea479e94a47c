// The list of examples whose outcome a span changes: filters, order, and the spans that change one of them.

const FIRST_SHOWN = 20;
const LONG = 280; // characters

function longText(text) {
  if (text.length <= LONG) return el("span", { class: "second" }, text);
  return el("details", { class: "second" }, el("summary", {}, `${text.slice(0, 60)}\u2026`), text);
}

/** Words of a text, those that are not in another one (in the order of a longest common subsequence) marked. */
function differing(before, after) {
  const [a, b] = [before, after].map((text) => text.split(/(?<=\s)(?=\S)/));
  const longest = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1)
    for (let j = b.length - 1; j >= 0; j -= 1)
      longest[i][j] = a[i].trim() === b[j].trim() ? 1 + longest[i + 1][j + 1] : Math.max(longest[i + 1][j], longest[i][j + 1]);
  const found = [];
  for (let i = 0, j = 0; j < b.length; ) {
    if (i < a.length && a[i].trim() === b[j].trim()) [i, j] = (found.push(b[j]), [i + 1, j + 1]);
    else if (i < a.length && longest[i + 1][j] >= longest[i][j + 1]) i += 1;
    else found.push(el("mark", {}, b[j++]));
  }
  return found;
}

function exampleItem(found, i, now, chosen, choose) {
  const option = (row, of) => (found.own ? found.options[i][of.said[i]] : found.options[of.said[i]]) || "\u2014";
  const margin = (of) => of.margins && ` (${found.words[parseInt(of.margins.slice(2 * i, 2 * i + 2), 36)]})`;
  const said = (of) => [option(i, of), margin(of)].filter(Boolean).join("");
  const spans = now && (found.compares ? differing(said(found.intact), said(now)) : said(now));
  const facts = [found.truth[i], said(found.intact), spans, found.flips[i]];
  const number = el("button", { type: "button", "aria-pressed": String(chosen) }, `#${found.numbers[i]}`);
  number.addEventListener("click", () => choose(i));
  const line = (text, at) => known(text) && text !== null && el("div", {}, el("dt", {}, found.heads[at]), el("dd", {}, ...[].concat(text)));
  const kind = now && found.intact.right[i] !== now.right[i] ? (Number(now.right[i]) ? "right" : "wrong") : "same";
  const second = found.second && longText(found.second[i]);
  return el("li", { class: kind }, number, el("blockquote", {}, found.texts[i], second || null), el("dl", {}, ...facts.map(line).filter(Boolean)));
}

/** Packed digits as an object with `said` and `right` per example and, in two digits each, `margins`. */
function unpacked(packed) {
  if (!packed) return null;
  const digits = (text) => (typeof text === "string" ? Array.from(text, (digit) => parseInt(digit, 36)) : text);
  return { ...packed, said: digits(packed.said), right: digits(packed.right) };
}

function startExamples(study, changed) {
  const packed = study.data.examples;
  const card = study.section.querySelector(".examples-card");
  if (!packed || !card) return;
  const found = { ...packed, intact: unpacked(packed.intact) };
  const state = { row: 0, shown: FIRST_SHOWN, example: null };
  const fields = all(card, "select, input");
  const initial = new Map(fields.map((field) => [field, field.value]));
  const value = (name) => card.querySelector(`[name="${name}"]`).value;
  const marginOf = (of) => (i) => (of ? parseInt(of.margins.slice(2 * i, 2 * i + 2), 36) : 0);
  const kinds = {
    wrong: (i, now) => found.intact.right[i] && !now.right[i],
    right: (i, now) => !found.intact.right[i] && now.right[i],
    both: (i, now) => found.intact.right[i] !== now.right[i],
  };
  const passes = (i, now) => {
    const kind = kinds[value("outcome")];
    const text = value("text").toLowerCase();
    const column = ([name, { places }]) => !value(`by-${name}`) || String(places[i]) === value(`by-${name}`);
    const words = `${found.texts[i]}\n${found.second ? found.second[i] : ""}`.toLowerCase();
    return (!kind || (now && kind(i, now))) && Object.entries(found.columns).every(column) && words.includes(text);
  };
  const orders = (now) => ({ margin: marginOf(now), intact: marginOf(found.intact), flips: (i) => -found.changes[i] });
  const draw = () => {
    const now = unpacked(found.rows[state.row]);
    const by = orders(now)[value("order")];
    const items = [...found.numbers.keys()].filter((i) => passes(i, now));
    if (by) items.sort((a, b) => by(a) - by(b) || a - b);
    card.querySelector("h3 span").textContent = study.data.titles[state.row];
    card.querySelector(".count").textContent = items.length.toLocaleString("en-US");
    const item = (i) => exampleItem(found, i, now, i === state.example, choose);
    card.querySelector(".examples").replaceChildren(...items.slice(0, state.shown).map(item));
    show(card.querySelector(".more"), items.length > state.shown);
  };
  const mark = () => {
    const i = state.example;
    const rows = known(i) ? found.rows.map(unpacked) : [];
    study.mark((row) => rows[row] && rows[row].right[i] !== found.intact.right[i] && (rows[row].right[i] ? "right" : "wrong"));
  };
  const choose = (i) => {
    state.example = state.example === i ? null : i;
    mark();
    draw();
    changed();
  };
  const restart = () => ((state.shown = FIRST_SHOWN), draw());
  for (const field of fields) field.addEventListener("input", () => (restart(), changed()));
  card.querySelector(".more").addEventListener("click", () => ((state.shown += 5 * FIRST_SHOWN), draw()));
  study.onPin((row) => ((state.row = row), restart()));
  study.examples = {
    saved: () => [...fields.filter((f) => f.value !== initial.get(f)).map((f) => [f.name, f.value]), ["example", state.example]],
    restore: (read) => {
      for (const field of fields) if (read(field.name) !== null) field.value = read(field.name);
      const number = read("example");
      state.example = number !== null && found.numbers[number] ? Number(number) : null;
      mark();
      restart();
    },
  };
}

/** The confusion matrix of the chosen span. */
function startConfusion(study) {
  const found = study.data.confusion;
  const figure = study.section.querySelector(".confusion.of-span");
  if (!found || !figure) return;
  study.onPin((row) => {
    figure.querySelector("figcaption").textContent = study.data.titles[row];
    all(figure, "td.count").forEach((cell, i) => (cell.textContent = found.rows[row] ? found.rows[row][i] : "?"));
  });
}
