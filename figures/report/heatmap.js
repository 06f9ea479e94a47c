// One grid of spans: row = first layer or group of layers, column = last. Colours are levels; the staircase
// separates the spans within the tolerance from the others; single layers are outlined; a ring means "not
// significant".

const CELL = 40;
const MARGIN = { left: 46, top: 8, right: 8, bottom: 48 };
const MANY_LAYERS = 16;

function spanLabel(data, cell) {
  const change = known(cell.drop) ? changeText(data, cell.delta_points) : "undefined";
  const parts = [`${capital(spanText(data, cell))}: ${change}`];
  if (known(cell.ci_low_points)) parts.push(intervalText(data, cell));
  if (known(cell.p_holm)) parts.push(`Holm ${pText(cell.p_holm)}`);
  if (cell.significant === false) parts.push("not significant");
  return parts.join(", ");
}

/** Gives the cell its `node`, and `paint(words, level)` which fills it. */
function drawCell(data, colours, cell) {
  const x = cell.across * CELL;
  const y = cell.down * CELL;
  const square = (inset, kind) =>
    svg("rect", {
      x: x + inset,
      y: y + inset,
      width: CELL - 2 * inset,
      height: CELL - 2 * inset,
      class: kind,
    });
  const box = square(0.8, "box");
  const outline = cell.down === cell.across && square(1.8, "single");
  const text = svg("text", { x: x + CELL / 2, y: y + CELL / 2 + 0.5, class: "value" });
  const ring = { cx: x + CELL - 6.8, cy: y + 6.8, r: 2.8, class: "ring" };
  if (outline) outline.style.stroke = colours.single;
  const parts = [box, text, outline, cell.significant === false && svg("circle", ring)];
  cell.node = svg("g", { class: "cell", role: "gridcell", "aria-label": spanLabel(data, cell) }, parts);
  cell.paint = (words, level) => {
    const [fillColour, ink] = known(level) ? colours.levels[level] : ["none", "currentColor"];
    box.style.fill = fillColour;
    box.classList.toggle("undefined", !known(level));
    text.style.fill = ink;
    text.textContent = words;
  };
}

/** Labels grow with the number of layers, because larger grids are drawn smaller. */
function heatmapAxes(units, verb) {
  const n = units.length;
  const step = n > 30 ? 4 : n > MANY_LAYERS ? 2 : 1;
  const size = n * CELL;
  const grow = Math.max(1, n / 15);
  const middle = (place) => (place + 0.5) * CELL;
  const places = [...units.keys()].filter((place) => place % step === 0);
  const word = (x, y, kind, text, turn) =>
    svg(
      "text",
      {
        x,
        y,
        class: kind,
        transform: turn,
        css: { "font-size": `${(kind.includes("tick") ? 12 : 13) * grow}px` },
      },
      text,
    );
  const title = (which) => (n < 4 ? which : `${which} ${verb} layer`);
  return svg(
    "g",
    { "aria-hidden": "true" },
    places.map((place) => word(-9, middle(place), "tick end", String(units[place][0]))),
    places.map((place) => word(middle(place), size + 15, "tick middle", String(units[place][1]))),
    word(size / 2, size + 22 + 16 * grow, "axis middle", title("last")),
    word(-size / 2, -18 - 16 * grow, "axis middle", title("first"), "rotate(-90)"),
  );
}

/** A tick in a disc marks the longest removable span; filled if judged by the interval. */
function badge(sure) {
  const tick = svg("path", { d: "M-2.7 0.2L-0.8 2.2L2.9 -2" });
  return svg("g", { class: sure ? "badge sure" : "badge", hidden: true }, svg("circle", { r: 6 }), tick);
}

/** The empty corner shows the span under the pointer, as large as it fits; small grids have no such corner. */
function corner(n) {
  const size = Math.max(13, 1.25 * n);
  const line = (kind, up, scale) =>
    svg("text", { x: 6, y: n * CELL - up * size, class: kind, css: { "font-size": `${scale * size}px` } });
  const lines = [
    line("corner-title", 4.35, 1.25),
    line("corner-value", 2.4, 2.2),
    line("corner-note", 0.7, 1),
  ];
  const say = (words) => words.forEach((text, i) => (lines[i].textContent = text));
  return { node: n < 5 ? null : svg("g", { "aria-hidden": "true" }, lines), say };
}

function heatmapFrame(data, children) {
  const n = data.units.length;
  const size = n * CELL;
  const { top, right } = MARGIN;
  const [left, bottom] = [MARGIN.left, MARGIN.bottom].map((room) => room * Math.max(1, n / 20));
  const how = data.study === "kept" ? "kept on" : "switched off";
  const what = `change of ${data.metric} by span of layers ${how}`;
  const attributes = {
    class: "heatmap",
    viewBox: `${-left} ${-top} ${size + left + right} ${size + top + bottom}`,
    role: "grid",
    "aria-label": `${data.task}: ${what}. Arrow keys move between spans, Enter selects one.`,
    css: { "--cells": String(n) },
  };
  return svg("svg", attributes, children);
}

/** The span to which an arrow key leads. */
function nextSpan(at, n) {
  return ({ down, across }, key) => {
    const goals = {
      ArrowLeft: [down, across - 1],
      ArrowRight: [down, across + 1],
      ArrowUp: [down - 1, across],
      ArrowDown: [down + 1, across],
      Home: [down, down],
      End: [down, n - 1],
    };
    return goals[key] && at(...goals[key]);
  };
}

/** `on` is {enter(cell), leave(cell), choose(cell)}. */
function heatmap(data, colours, cells, on) {
  const n = data.units.length;
  const kept = data.study === "kept";
  const grid = new Map(cells.map((cell) => [`${cell.down} ${cell.across}`, cell]));
  const at = (down, across) => grid.get(`${down} ${across}`);
  for (const cell of cells) drawCell(data, colours, cell);
  const rowOf = (down) => cells.filter((cell) => cell.down === down).map((cell) => cell.node);
  const rows = data.units.map(([first], down) =>
    svg("g", { role: "row", "aria-label": `first layer ${first}` }, rowOf(down)),
  );
  const stairs = ["stairs halo", "stairs"].map((kind) =>
    svg("path", { class: kind, transform: `scale(${CELL})` }),
  );
  const cursor = svg("rect", { class: "cursor", width: CELL, height: CELL });
  const badges = [badge(false), badge(true)];
  const over = svg("g", { class: "over", "aria-hidden": "true" }, stairs, badges, cursor);
  const note = corner(n);
  const node = heatmapFrame(data, [heatmapAxes(data.units, kept ? "kept" : "ablated"), rows, over, note.node]);
  roving(cells, cells[0], nextSpan(at, n), on);
  const step = (path, found) => {
    for (const line of stairs) line.setAttribute("d", path);
    found.forEach((cell, i) => {
      badges[i].toggleAttribute("hidden", !cell || (i === 0 && found[1] === cell));
      const place = cell && `translate(${cell.across * CELL + 8} ${(cell.down + 1) * CELL - 8})`;
      if (cell) badges[i].setAttribute("transform", place);
    });
  };
  const show = (cell) => {
    cursor.setAttribute("x", cell.across * CELL);
    cursor.setAttribute("y", cell.down * CELL);
    const change = known(cell.drop) ? changeText(data, cell.delta_points) : "undefined";
    note.say([spanText(data, cell), change, known(cell.ci_low_points) ? intervalText(data, cell) : ""]);
  };
  const paint = (view) => {
    node.classList.toggle("interactions", view === "interaction");
    for (const cell of cells) {
      const { drop, level, interaction_points: interaction, interaction_level: itsLevel } = cell;
      const [value, shade] = view === "drop" ? [drop, level] : [interaction, itsLevel];
      cell.paint(known(value) ? cellText(value) : "?", shade);
    }
  };
  return { node, paint, step, show };
}
