// One study of spans: hovering, choosing and sliding. Every word, number and place comes from the page's data.

const known = (value) => value !== null && value !== undefined;
const all = (node, css) => [...node.querySelectorAll(css)];
const show = (node, is) => node.toggleAttribute("hidden", !is);

/** An element with text or children; an attribute that is false is left out. */
function el(name, attributes, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== false) node.setAttribute(key, value);
  node.append(...children.filter(known));
  return node;
}

/** One tab stop for many nodes; `next(i, key)` is the one that a key leads to. */
function roving(nodes, next, { enter, leave, choose }) {
  const stop = (i) => nodes.forEach((node, other) => node.setAttribute("tabindex", other === i ? "0" : "-1"));
  const press = (i, event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const goal = nodes[next(i, event.key)];
    if (event.key === "Enter" || event.key === " ") choose(i);
    else if (goal) goal.focus();
    else if (!event.key.startsWith("Arrow")) return;
    event.preventDefault();
  };
  nodes.forEach((node, i) => {
    const on = {
      focus: () => (stop(i), enter(i)),
      blur: () => leave(i),
      pointerenter: (event) => event.pointerType === "mouse" && enter(i),
      pointerleave: (event) => event.pointerType === "mouse" && leave(i),
      click: () => (stop(i), choose(i)),
      keydown: (event) => press(i, event),
    };
    for (const [name, does] of Object.entries(on)) node.addEventListener(name, does);
  });
  if (nodes.length) stop(0);
}

/** The span to which a key leads from that of a row; `line` if the spans form one. */
function neighbour(spans, row, key, line) {
  const [axis, step] = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [1, -1], ArrowRight: [1, 1] }[key] || [1];
  const inLine = (i) => line || spans[i][1 - axis] === spans[row][1 - axis];
  const along = [...spans.keys()].filter(inLine);
  if (!line) along.sort((a, b) => spans[a][axis] - spans[b][axis]);
  if (key === "Home" || key === "End") return along.at(key === "Home" ? 0 : -1);
  return step && along[along.indexOf(row) + step];
}

/** Fills the card of a span with what a view says of it. */
function fillCard(card, data, view, row, pinned) {
  const one = (css) => card.querySelector(css);
  const { lead, zero, rows } = data.views[view];
  const [value, unit, interval, meaning, [low, at, high], dots] = rows[row];
  const [first, last] = data.spans[row];
  card.classList.toggle("is-pinned", pinned);
  one("h3").textContent = data.titles[row];
  all(card, ".strip i").forEach((square, layer) => square.classList.toggle("inside", first <= layer && layer <= last));
  one(".lead").textContent = lead;
  one(".big b").textContent = value;
  one(".unit").textContent = unit;
  one(".interval span").textContent = interval;
  show(one(".interval"), interval);
  one(".meaning").textContent = meaning;
  const place = (node, left) => (show(node, known(left)), node.style.setProperty("left", `${left}%`));
  show(one(".axis"), known(at));
  place(one(".zero"), zero);
  place(one(".point"), at);
  place(one(".whisker"), low);
  one(".whisker").style.setProperty("right", `${100 - high}%`);
  all(card, ".seed").forEach((dot, i) => place(dot, dots[i]));
  const line = (head, i) => {
    const fact = data.facts.rows[row][i];
    const more = fact && fact[1] && el("small", {}, fact[1]);
    return fact && el("div", {}, el("dt", {}, head), el("dd", {}, fact[0], more || null));
  };
  one(".facts").replaceChildren(...data.facts.heads.map(line).filter(Boolean));
}

/** Shows what holds at a position of the slider. */
function fillStep(section, data, at, choose) {
  const step = data.steps[at];
  const one = (css) => section.querySelector(css);
  one(".slider output").textContent = step.words;
  one(".slider input").setAttribute("aria-valuetext", step.words);
  one(".slider input").value = at;
  for (const path of all(section, ".limit")) path.setAttribute("d", step.line || "");
  for (const mark of all(section, ".bar-mark")) mark.setAttribute("transform", `translate(${step.bar} 0)`);
  one(".axis .limit-mark")?.style.setProperty("left", `${step.at}%`);
  all(section, ".advised").forEach((paragraph, i) => {
    const [lead, before, row, name, after] = step.advice[i];
    const [bold, text, rest] = all(paragraph, "b, span");
    const link = paragraph.querySelector("button");
    [bold.textContent, text.textContent, link.textContent, rest.textContent] = [lead, before, name, after];
    show(link, known(row));
    link.onclick = () => choose(row);
  });
  one(".within").textContent = step.note;
  show(one(".prune"), step.prune);
  one(".prune code span").textContent = step.prune || "";
  for (const view of all(section, ".view")) {
    for (const kind of ["estimate", "bound"]) {
      const row = kind === "estimate" && step.estimate === step.bound ? null : step[kind];
      const cell = known(row) && view.querySelector(`.cell[data-row="${row}"]`);
      for (const badge of all(view, `.badge.${kind}`)) {
        show(badge, cell);
        if (cell) badge.setAttribute("transform", `translate(${badgeAt(cell)})`);
      }
    }
  }
}

/** The lower left corner of a cell, moved inwards by the size of a badge. */
function badgeAt(cell) {
  const [x, y, height] = ["x", "y", "height"].map((name) => Number(cell.getAttribute(name)));
  return `${x + 6} ${y + height - 6}`;
}

/** Brings a section to life; `peers()` are the studies of the same spans, itself included. */
function startStudy(section, data, peers, changed) {
  const views = all(section, ".map .view");
  const cells = views.map((view) => all(view, ".cell").sort((a, b) => a.dataset.row - b.dataset.row));
  const card = section.querySelector(".span-card");
  const input = section.querySelector(".slider input");
  const line = Boolean(section.querySelector(".cells[role=listbox]"));
  const state = { row: data.whole, view: 0, step: input ? Number(input.value) : null, follows: Boolean(input) };
  const own = { data, section, state };
  const listeners = [];
  const look = (row) => {
    fillCard(card, data, state.view, row, row === state.row);
    views.forEach((view, i) => {
      const cursor = view.querySelector(".cursor");
      for (const name of ["x", "y", "width", "height"]) cursor.setAttribute(name, cells[i][row].getAttribute(name));
    });
  };
  const pin = () => {
    look(state.row);
    cells.flat().forEach((cell) => cell.setAttribute("aria-selected", String(Number(cell.dataset.row) === state.row)));
    for (const listener of listeners) listener(state.row);
  };
  const together = (does) => peers().forEach(does);
  const choose = (row) => (together((peer) => peer.pin(row)), changed());
  Object.assign(own, {
    look: (row) => look(known(row) ? row : state.row),
    pin: (row) => (Object.assign(state, { row, follows: false }), pin()),
    onPin: (listener) => (listeners.push(listener), listener(state.row)),
    view: (name) => {
      const at = views.findIndex((view) => view.dataset.view === name);
      if (at < 0) return;
      state.view = at;
      views.forEach((view, i) => show(view, i === at));
      all(section, ".choice button").forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.view === name)));
      show(section.querySelector(".limit-mark"), input && at === 0);
      look(state.row);
    },
    step: (at) => {
      if (!input || !data.steps[at]) return;
      state.step = at;
      fillStep(section, data, at, choose);
      if (state.follows) state.row = data.steps[at].estimate ?? data.whole;
      pin();
    },
    /** Marks the spans for which `kind(row)` names how they change something. */
    mark: (kind) => cells.flat().forEach((cell) => {
      for (const name of ["wrong", "right"]) cell.classList.toggle(`makes-${name}`, kind(Number(cell.dataset.row)) === name);
    }),
  });
  const on = { enter: (row) => together((peer) => peer.look(row)), leave: () => together((peer) => peer.look(null)), choose };
  cells.forEach((nodes) => roving(nodes, (row, key) => neighbour(data.spans, row, key, line), on));
  for (const button of all(section, ".choice button")) {
    button.addEventListener("click", () => (together((peer) => peer.view(button.dataset.view)), changed()));
  }
  if (input) input.addEventListener("input", () => (together((peer) => peer.step(Number(input.value))), changed()));
  show(section.querySelector(".limit-mark"), input);
  if (input) own.step(state.step);
  else pin();
  return own;
}

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
