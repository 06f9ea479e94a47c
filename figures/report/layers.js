// One bar a layer: its share of the whole drop, and what it costs alone.

const FLOOR = 190;

function niceTicks(low, high, wanted = 5) {
  const raw = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k <= high / step + 1e-9; k += 1) {
    ticks.push(Number((k * step).toPrecision(12)));
  }
  return ticks;
}

const whisker = (x, low, high, y, kind) =>
  svg("path", {
    class: `whisker ${kind}`,
    d: `M${x} ${y(low)}V${y(high)}M${x - 3} ${y(low)}h6M${x - 3} ${y(high)}h6`,
  });

/**
 * Rows of layers.csv, or where there is none the single-layer spans in their place. Each gets what its bar
 * shows, as points of drop: `bar`, `low` and `high`; and `alone`, its own drop, if the bar is another thing.
 */
function layerRows(data, cells) {
  const singles = cells.filter((cell) => cell.first === cell.last);
  const rows = records(data.layers) || singles.map((cell) => ({ ...cell, layer: cell.first }));
  const shares = rows.some((row) => known(row.share_points));
  return rows.map((row) => ({
    ...row,
    cell: singles.find((cell) => cell.first === row.layer),
    bar: shares ? row.share_points : negative(row.delta_points),
    low: shares ? row.share_low_points : negative(row.ci_high_points),
    high: shares ? row.share_high_points : negative(row.ci_low_points),
    alone: shares ? negative(row.delta_points) : null,
    shares,
  }));
}

function layerWords(data, row) {
  const where = data.study === "kept" ? "on alone" : "off alone";
  const total = negative(data.removed_delta_points);
  const words = [`${where}: ${known(row.delta_points) ? pointsOf(row.delta_points) : "undefined"}`];
  if (known(row.ci_low_points)) words.push(` (${range(row.ci_low_points, row.ci_high_points)})`);
  if (known(row.p_holm)) words.push(`, Holm ${pText(row.p_holm)}`);
  if (!known(row.share_points)) return words.join("");
  const share = [`share of the drop ${signed(row.share_points)}`];
  if (known(row.low)) share.push(` (${range(row.low, row.high)})`);
  if (total > 0.05) share.push(`, ${minus(String(Math.round((100 * row.share_points) / total)))}% of it`);
  return `${share.join("")}; ${words.join("")}`;
}

function layerBar(data, row, i, step, y) {
  const x = (i + 0.5) * step;
  const wide = Math.min(26, 0.62 * step);
  const box = {
    x: x - wide / 2,
    width: wide,
    y: Math.min(y(row.bar), y(0)),
    height: Math.abs(y(row.bar) - y(0)),
  };
  const words = `Layer ${row.layer}: ${layerWords(data, row)}`;
  row.node = svg(
    "g",
    { class: "layer", role: "img", "aria-label": words },
    svg("rect", { x: i * step, y: 0, width: step, height: FLOOR, class: "hit" }),
    known(row.bar) && svg("rect", { ...box, class: row.bar < 0 ? "column gain" : "column" }),
    known(row.low) && whisker(x, row.low, row.high, y, "on-column"),
    known(row.alone) &&
      svg("path", { class: "alone", d: `M${x - wide / 2 - 3} ${y(row.alone)}h${wide + 6}` }),
    (step > 21 || i % 2 === 0) && svg("text", { x, y: FLOOR + 15, class: "tick middle" }, String(row.layer)),
  );
  return row.node;
}

function layersDrawing(data, rows, title) {
  const step = Math.max(14, Math.min(46, (NARROW ? 310 : 620) / rows.length));
  const width = rows.length * step;
  const values = rows.flatMap((row) => [0, row.bar, row.low, row.high, row.alone]).filter(known);
  const low = Math.min(...values);
  const high = Math.max(...values, low + 1);
  const pad = 0.05 * (high - low);
  const y = (value) => FLOOR * (1 - (value - low + pad) / (high - low + 2 * pad));
  const ticks = niceTicks(low - pad, high + pad, 4).map((tick) => [
    svg("path", { class: tick === 0 ? "base" : "grid", d: `M0 ${y(tick)}H${width}` }),
    svg("text", { x: -7, y: y(tick), class: "tick end" }, minus(String(tick))),
  ]);
  const label = `${title}, points of drop by layer. Arrow keys move between layers.`;
  const viewBox = `-38 -8 ${width + 42} ${FLOOR + 52}`;
  return svg(
    "svg",
    { class: "layers", viewBox, role: "group", "aria-label": label, css: { "--width": `${width + 42}px` } },
    ticks,
    rows.map((row, i) => layerBar(data, row, i, step, y)),
    svg("text", { x: width / 2, y: FLOOR + 36, class: "axis middle" }, "layer"),
  );
}

function layersNote(data, rows) {
  const whiskers = rows.some((row) => known(row.low)) ? " Whiskers: 95% bootstrap intervals." : "";
  if (rows[0].shares) {
    return [
      "Bars share out the drop of all adapters among the layers, so that they sum to it (the Myerson value ",
      "of the chain of layers); the dash is the layer switched off alone. Where the two differ, the layer ",
      `matters through its neighbours.${whiskers}`,
    ];
  }
  const where = data.study === "kept" ? "on" : "off";
  const missing = [" This folder has no shares of the layers; ", code("adapter-probe ablate"), AGAIN];
  return [
    `The bar is the drop with this layer alone ${where}.${whiskers}`,
    data.study === "kept" ? null : missing,
  ];
}

function layersTable(rows) {
  const intervals = rows.some((row) => known(row.ci_low_points));
  const columns = [
    ["layer", (row) => row.layer],
    ["alone (points)", (row) => signed(row.delta_points, 2)],
    intervals && ["95% interval", (row) => rangeOrNone(row.ci_low_points, row.ci_high_points)],
    intervals && ["Holm p", (row) => bareP(row.p_holm)],
    rows[0].shares && ["share (points of drop)", (row) => signed(row.share_points, 2)],
    rows[0].shares && ["95% interval", (row) => rangeOrNone(row.share_low_points, row.share_high_points)],
  ];
  return tableOf(`${plural(rows.length, "layer")} as a table`, columns, rows);
}

/** `choose(cell)` shows a single layer in the heatmap. */
function layersCard(data, cells, choose) {
  const rows = layerRows(data, cells);
  const alone = data.study === "kept" ? "Each layer kept alone" : "Each layer switched off alone";
  const title = rows[0].shares ? "Which layers carry the drop" : alone;
  const readout = el("p", { class: "readout" });
  const say = (...words) => readout.replaceChildren(...words);
  const rest = () => say("Point at a layer, or reach it with the arrow keys.");
  const drawing = layersDrawing(data, rows, title);
  roving(rows, rows[0], (row, key) => neighbour(rows, row, key), {
    enter: (row) => say(el("b", null, `Layer ${row.layer}`), ` ${layerWords(data, row)}`),
    leave: rest,
    choose: (row) => row.cell && choose(row.cell),
  });
  rest();
  return el(
    "section",
    { class: "card layers-card" },
    el("h3", null, title),
    el("p", { class: "note", "aria-hidden": "true" }, "points of drop"),
    el("div", { class: "scroll" }, drawing),
    readout,
    el("p", { class: "note" }, layersNote(data, rows)),
    layersTable(rows),
  );
}
