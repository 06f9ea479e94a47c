// The curve of spans that form a line: a mark at the drop of each span, with the interval, the zero line and
// the tolerance. Filled marks are significant. It has the same interface as a heatmap.

const PLOT = { width: 620, height: 340, left: 52, right: 12, top: 12, bottom: 46 };

/** About five round values between the smallest and the largest drop. */
function dropTicks(low, high) {
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((n) => n * power >= rough) * power;
  const first = Math.ceil(low / step);
  const places = [...Array(Math.floor(high / step) - first + 1).keys()];
  return places.map((i) => Number(((first + i) * step).toPrecision(12)));
}

/** The scales of drops and spans; the drops include every interval, zero and the largest tolerance. */
function curveScale(cells, largest) {
  const ends = (cell) => [cell.drop, -cell.ci_low_points, -cell.ci_high_points];
  const drawn = cells.filter((cell) => known(cell.drop)).flatMap(ends);
  const values = [0, largest, ...drawn.filter(Number.isFinite)];
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const margin = 0.05 * (most - least || 1);
  const [low, high] = [least - margin, most + margin];
  const wide = PLOT.width / cells.length;
  const x = (cell) => (cell.row + 0.5) * wide;
  const y = (drop) => (PLOT.height * (high - drop)) / (high - low);
  return { x, y, low, high, wide };
}

function curveAxes(data, cells, { x, y, low, high, wide }) {
  const { width, height } = PLOT;
  const word = (at, up, kind, text, turn) => svg("text", { x: at, y: up, class: kind, transform: turn }, text);
  const ends = { prefix: ["last"], suffix: ["first"] }[data.order] || ["first", "last"];
  const name = (cell) => [...new Set(ends.map((end) => cell[end]))].join(DASH);
  const step = Math.ceil((8 * Math.max(...cells.map((cell) => name(cell).length)) + 8) / wide);
  const verb = data.study === "kept" ? "kept" : "ablated";
  const several = ends.length > 1 && cells.some((cell) => cell.first !== cell.last);
  const title = `${ends.length > 1 ? "" : `${ends[0]} `}${verb} layer${several ? "s" : ""}`;
  return svg(
    "g",
    { "aria-hidden": "true" },
    dropTicks(low, high).map((drop) => [
      svg("path", { class: drop === 0 ? "rule zero" : "rule", d: `M0 ${y(drop)}H${width}` }),
      word(-8, y(drop), "tick end", minus(String(drop))),
    ]),
    cells
      .filter((cell) => cell.row % step === 0)
      .map((cell) => word(x(cell), height + 14, "tick middle", name(cell))),
    word(width / 2, height + 34, "axis middle", title),
    word(-height / 2, -42, "axis middle", `${data.dropName} (${data.unit})`, "rotate(-90)"),
  );
}

/** The cells that pass, in lists that end where a cell does not. */
function unbroken(cells, passes) {
  const lists = [[]];
  for (const cell of cells) {
    if (passes(cell)) lists.at(-1).push(cell);
    else lists.push([]);
  }
  return lists.filter((list) => list.length > 0);
}

/**
 * The intervals and the curve, with gaps at undefined values. Spans with no common end have bars and no curve,
 * the others a band.
 */
function curveLines(data, cells, { x, y }) {
  const whole = (cell) => known(cell.drop);
  const sure = (cell) => whole(cell) && known(cell.ci_low_points);
  const point = (value) => (cell) => `${x(cell)} ${y(value(cell))}`;
  const [upper, lower] = [point((cell) => -cell.ci_low_points), point((cell) => -cell.ci_high_points)];
  const path = (kind, parts) => parts.length > 0 && svg("path", { class: kind, d: parts.join("") });
  if (data.order === "apart") {
    const bar = (cell) => `M${upper(cell)}L${lower(cell)}`;
    return path("whisker on-curve", cells.filter(sure).map(bar));
  }
  const around = (list) => `M${[...list.map(upper), ...list.map(lower).reverse()].join("L")}Z`;
  const along = (list) => `M${list.map(point((cell) => cell.drop)).join("L")}`;
  return [
    path("band", unbroken(cells, sure).map(around)),
    path("curve-line", unbroken(cells, whole).map(along)),
  ];
}

/** Sets the `node` of a cell: a mark, and a strip over the whole height that is easy to point at. */
function drawMark(data, cell, { x, y, wide }) {
  const radius = Math.min(5, 0.4 * wide);
  const at = { cx: x(cell), cy: known(cell.drop) ? y(cell.drop) : PLOT.height - 6, r: radius };
  const kind = known(cell.drop) ? (cell.significant === false ? "mark hollow" : "mark") : "mark undefined";
  const strip = svg("rect", { x: x(cell) - wide / 2, width: wide, height: PLOT.height, class: "strip-target" });
  const node = { class: "cell", role: "option", "aria-label": spanLabel(data, cell) };
  cell.node = svg("g", node, strip, svg("circle", { ...at, class: kind }));
}

/** Returns the same object as `heatmap`; `on` is {enter(cell), leave(cell), choose(cell)}. */
function curve(data, cells, on) {
  const scale = curveScale(cells, data.steps.at(-1).tolerance);
  const { width, height, left, right, top, bottom } = PLOT;
  for (const cell of cells) drawMark(data, cell, scale);
  const limit = svg("path", { class: "limit-line" });
  const cursor = svg("path", { class: "curve-cursor" });
  const attributes = {
    class: "heatmap curve",
    viewBox: `${-left} ${-top} ${width + left + right} ${height + top + bottom}`,
    role: "listbox",
    "aria-label": `${data.task}: ${data.dropName} by span of layers. Arrow keys move between spans, Enter selects one.`,
  };
  const hidden = { "aria-hidden": "true", class: "over" };
  const lines = svg("g", hidden, cursor, curveLines(data, cells, scale), limit);
  const marks = cells.map((cell) => cell.node);
  const node = svg("svg", attributes, curveAxes(data, cells, scale), lines, marks);
  const end = cells.length - 1;
  const goals = ({ row }) => ({ ArrowLeft: row - 1, ArrowRight: row + 1, Home: 0, End: end });
  roving(cells, cells[0], (cell, key) => cells[goals(cell)[key]], on);
  const step = (_, __, tolerance) => limit.setAttribute("d", `M0 ${scale.y(tolerance)}H${width}`);
  const show = (cell) => cursor.setAttribute("d", `M${scale.x(cell)} 0V${height}`);
  return { node, paint: () => {}, step, show };
}
