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
