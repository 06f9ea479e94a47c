// The card next to the heatmap: score, interval and parameters of one span.

/** The layers as a row of small squares, hollow where adapters are switched off. */
function layerStrip(data, cell) {
  const on = (layer) => (cell.first <= layer && layer <= cell.last) === (data.study === "kept");
  const squares = [...Array(data.nLayers).keys()].map((layer) =>
    el("i", { class: on(layer) ? "on" : "off" }),
  );
  return el("div", { class: "strip", "aria-hidden": "true" }, squares);
}

/** The interval on an axis that includes zero and the tolerance. */
function intervalPlot(data, cell, tolerance) {
  const [delta, low, high, limit] = [cell.delta_points, cell.ci_low_points, cell.ci_high_points, -tolerance].map(
    (points) => sense(data) * points,
  );
  const values = [delta, low, high, 0, limit];
  const least = Math.min(...values);
  const reach = Math.max(...values) - least || 1;
  const x = (value) => 18 + (264 * (value - least)) / reach;
  const crowded = Math.abs(x(0) - x(limit)) < 60;
  const [before, after] = isLoss(data) ? ["start", "end"] : ["end", "start"];
  const tick = (value, kind) => svg("path", { class: kind, d: `M${x(value)} 2V26` });
  const word = (value, text, kind) => svg("text", { x: x(value), y: 38, class: `tick ${kind}` }, text);
  return svg(
    "svg",
    {
      class: "interval",
      viewBox: "0 0 300 44",
      role: "img",
      "aria-label": `${intervalText(data, cell)}${unitAfter(data)}`,
    },
    [tick(0, "zero"), tick(limit, "limit")],
    svg("path", { class: "whisker", d: `M${x(low)} 14H${x(high)}M${x(low)} 10v8M${x(high)} 10v8` }),
    svg("circle", { class: "dot", cx: x(delta), cy: 14, r: 5 }),
    word(0, "0", crowded ? after : "middle"),
    tolerance > 0 && word(limit, inUnit(data, limit), crowded ? before : "middle"),
  );
}

const fact = (name, ...value) => el("div", null, el("dt", null, name), el("dd", null, ...value));

function significance(data, cell) {
  const verdict =
    { true: ": significant at 0.05", false: ": not significant at 0.05" }[String(cell.significant)] || "";
  const alone = known(cell.p_value) ? `; uncorrected ${pText(cell.p_value)}` : "";
  const among = el("small", null, `Holm-corrected over ${plural(data.spans.rows.length, "span")}${alone}`);
  return fact("significance", pText(cell.p_holm), verdict, among);
}

function flips(data, cell) {
  const bar = (kind, n) => n > 0 && el("i", { class: kind, css: { flex: String(n) } });
  return fact(
    "examples",
    `${count(cell.to_wrong)} turn wrong, ${count(cell.to_right)} turn right`,
    el(
      "span",
      { class: "flips", "aria-hidden": "true" },
      bar("wrong", cell.to_wrong),
      bar("right", cell.to_right),
    ),
    el("small", null, `of ${count(data.nExamples)}${data.exactMatch ? ", by exact match" : ""}`),
  );
}

function interactionMeaning({ dropName }, cell) {
  const { interaction_points: value, interaction_low_points: low, interaction_high_points: high } = cell;
  if (cell.down === cell.across) return `of a single layer or group: its ${dropName}`;
  if (known(low) && low <= 0 && high >= 0) return "the interval includes 0";
  return `${value > 0 ? "larger" : "smaller"} ${dropName} than the shorter spans inside explain`;
}

function interaction(data, cell) {
  const { interaction_points: value, interaction_low_points: low, interaction_high_points: high } = cell;
  const interval = known(low) ? ` (${range(data, low, high)})` : null;
  return fact(
    "interaction",
    `${withUnit(data, value)} of ${data.dropName}`,
    interval,
    el("small", null, interactionMeaning(data, cell)),
  );
}

/** Numbers of adapter parameters inside and outside a span, or null without the checkpoint. */
function savedParameters(data, cell) {
  if (!data.parameters) return null;
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const inside = sum(data.parameters.slice(cell.first, cell.last + 1));
  const all = sum(data.parameters);
  return { inside, all, outside: all - inside };
}

function spanFacts(data, cell) {
  const saved = savedParameters(data, cell);
  const intact =
    known(data.intact_score) && el("small", null, `intact ${scoreText(data.intact_score, data)}`);
  const part = saved && el("small", null, `${percentText(saved.inside / saved.all)} of the adapters`);
  return el(
    "dl",
    { class: "facts" },
    fact("score", scoreText(cell.score, data), intact),
    known(cell.ci_low_points) && fact("95 % interval", `${changeRange(data, cell)}${unitAfter(data)}`),
    known(cell.p_holm) && significance(data, cell),
    known(cell.to_wrong) && flips(data, cell),
    known(cell.interaction_points) && interaction(data, cell),
    saved && fact(data.study === "kept" ? "kept" : "removed", `${count(saved.inside)} parameters`, part),
    cell.non_monotone &&
      fact("note", `smaller ${data.dropName} than a shorter span inside it (simultaneous 95 % bound)`),
  );
}

/** The card; `show(cell, tolerance, pinned)` fills it. */
function spanCard(data) {
  const node = el("div", { class: "card span-card" });
  const show = (cell, tolerance, pinned) =>
    fill(node, [
      el("p", { class: "over-title" }, pinned ? "selected span" : "span in focus"),
      el("h3", null, capital(spanText(data, cell))),
      layerStrip(data, cell),
      el(
        "p",
        { class: cell.drop < 0 ? "big gain" : "big" },
        known(cell.drop) ? changeNumber(data, cell.delta_points) : "undefined",
        known(cell.drop) && el("small", null, unitAfter(data)),
      ),
      known(cell.ci_low_points) && known(cell.drop) && intervalPlot(data, cell, tolerance),
      spanFacts(data, cell),
    ]);
  return { node, show };
}
