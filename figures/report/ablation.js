// One ablation: slider, heatmap or curve, the card of a span, examples, layers, tables and settings.

/** A slider over the steps that starts at tolerance `start`; calls `change(step)` on every change. */
function slider(data, start, change) {
  const { steps } = data;
  const id = newId("tolerance");
  const output = el("output", { for: id });
  const input = el("input", {
    type: "range",
    id,
    min: 0,
    max: steps.length - 1,
    value: steps.findIndex((step) => step.tolerance === start),
  });
  const set = () => {
    const step = steps[Number(input.value)];
    const words = toleranceText(data, step.tolerance);
    output.textContent = words;
    input.setAttribute("aria-valuetext", words);
    change(step);
  };
  input.addEventListener("input", set);
  return {
    node: el("div", { class: "slider" }, el("label", { for: id }, `Tolerated ${data.dropName}`), output, input),
    set,
  };
}

function savedWords(data, cell) {
  const kept = data.study === "kept";
  const inside = cell.last - cell.first + 1;
  const layers = `${kept ? data.nLayers - inside : inside} of ${data.nLayers}`;
  const saved = savedParameters(data, cell);
  if (!saved) return `${layers} layers`;
  const gone = kept ? saved.outside : saved.inside;
  const share = percentText(gone / saved.all);
  return `${layers} layers, ${count(gone)} of ${count(saved.all)} adapter parameters (${share})`;
}

/** The longest removable span at a tolerance, as a sentence with the span as a button. */
function removable(data, cell, tolerance, sure, choose) {
  const limit = toleranceText(data, tolerance);
  const kept = data.study === "kept";
  const lead = el("b", null, sure ? "By the 95 % interval, " : "By the estimate, ");
  if (!cell) {
    const none = kept
      ? `no span alone suffices within ${limit}.`
      : `no span can be removed within ${limit}.`;
    return el("p", null, lead, none);
  }
  const name = el(
    "button",
    { type: "button", class: "span-link", onclick: () => choose(cell) },
    layersText(cell),
  );
  const interval = known(cell.ci_low_points) ? ` (${intervalText(data, cell)})` : "";
  const cost = sure
    ? `at worst ${changeText(data, cell.ci_low_points)}`
    : `change ${changeText(data, cell.delta_points)}${interval}`;
  const saved = `${savedWords(data, cell)}, ${cost}.`;
  return kept
    ? el("p", null, lead, "the adapters of ", name, ` alone suffice within ${limit}, without ${saved}`)
    : el("p", null, lead, name, ` can be removed within ${limit}: ${saved}`);
}

function advice(data, cells, { tolerance, within }, found, choose) {
  const intervals = cells.some((cell) => known(cell.ci_low_points));
  const best = found[1] || found[0];
  const missing = [" This folder has no intervals; run ", code("adapter-probe ablate"), AGAIN];
  const amount = `${within} of ${plural(cells.length, "span")} ${within === 1 ? "is" : "are"}`;
  const prune = best && !data.warning && data.study !== "kept" && data.sites === "both";
  return [
    removable(data, found[0], tolerance, false, choose),
    intervals && removable(data, found[1], tolerance, true, choose),
    el("p", { class: "note" }, `${amount} within ${toleranceText(data, tolerance)}.`, intervals ? null : missing),
    prune &&
      el(
        "p",
        { class: "note" },
        "To remove these adapters: ",
        code(`adapter-probe prune CHECKPOINT --span ${best.first}-${best.last} --out FOLDER`),
      ),
  ];
}

function legend(data, cells) {
  const item = (kind, words) => el("li", { class: kind }, el("i", { "aria-hidden": "true" }), words);
  const intervals = cells.some((cell) => known(cell.ci_low_points));
  if (data.order) {
    const hollow = cells.some((cell) => known(cell.drop) && cell.significant === false);
    return el(
      "ul",
      { class: "legend" },
      intervals && item(data.order === "apart" ? "key-bar" : "key-band", "95 % interval"),
      item("key-limit", `tolerated ${data.dropName}`),
      hollow && item("key-hollow", "not significant"),
      cells.some((cell) => !known(cell.drop)) && item("key-undefined", "undefined"),
    );
  }
  return el(
    "ul",
    { class: "legend" },
    item("key-single", data.units.every(([first, last]) => first === last) ? "single layer" : "one group"),
    item("key-stairs", `tolerated ${data.dropName}`),
    item("key-badge", data.study === "kept" ? "shortest sufficient span" : "longest removable span"),
    intervals && item("key-badge sure", "\u2026by the 95 % interval"),
    cells.some((cell) => cell.significant === false) && item("key-ring", "not significant"),
  );
}

function tiles(data) {
  const tile = (name, value, note) =>
    el("div", null, el("dt", null, name), el("dd", null, value, note && el("small", null, ` ${note}`)));
  const score = (value) => scoreText(value, data);
  const which = { both: "", attention: "attention ", ffn: "feed-forward " }[data.sites];
  const where = data.studied ? `of layers ${data.studied} ` : "";
  const total = data.parameters && data.parameters.reduce((a, b) => a + b, 0);
  const change = known(data.removed_delta_points) && changeText(data, data.removed_delta_points);
  return el(
    "dl",
    { class: "tiles" },
    known(data.intact_score) && tile("intact", score(data.intact_score)),
    known(data.removed_score) && tile(`all ${which}adapters ${where}off`, score(data.removed_score), change),
    known(data.majority_score) && tile(data.baseline, score(data.majority_score)),
    total && tile("adapter parameters", shortNumber(total), `in ${data.nLayers} layers`),
  );
}

function spansTable(data, cells) {
  const some = (name) => cells.some((cell) => known(cell[name]));
  const unit = unitAfter(data).trim();
  const columns = [
    ["span", (c) => (c.first === c.last ? c.first : `${c.first}${DASH}${c.last}`)],
    ["score", (c) => scoreText(c.score, data)],
    [
      unit ? `change (${unit})` : "change",
      (c) => (known(c.drop) ? changeNumber(data, c.delta_points, 2) : NONE),
    ],
    some("ci_low_points") && ["95 % interval", (c) => (known(c.ci_low_points) ? changeRange(data, c) : NONE)],
    some("p_holm") && ["Holm p", (c) => bareP(c.p_holm)],
    some("to_wrong") && ["turn wrong", (c) => count(c.to_wrong)],
    some("to_right") && ["turn right", (c) => count(c.to_right)],
    some("interaction_points") && [
      "interaction",
      (c) => (known(c.interaction_points) ? inUnit(data, c.interaction_points, 2) : NONE),
    ],
  ];
  return tableOf(`${plural(cells.length, "span")} as a table`, columns, cells);
}

/** The choice of what the cells show, drop or interaction, with the matching colour bar. */
function views(data, report, map) {
  const bar = colourBar(report.scale, report.colours, {
    title: data.dropLabel,
    low: "gain (\u2212)",
  });
  const other = colourBar(report.interactionScale, report.colours, {
    title: `interaction (${data.unit})`,
    low: "less (\u2212)",
  });
  other.hideMark();
  const place = el("div", { class: "bars" });
  const set = (name) => {
    map.paint(name);
    fill(place, [name === "drop" ? bar.node : other.node]);
  };
  set("drop");
  const choice = choiceOf(
    "What the cells show",
    [
      ["drop", data.dropName],
      ["interaction", "interaction"],
    ],
    "drop",
    set,
  );
  return { choice, place, step: bar.step };
}

/** The interactive parts, which follow the pointer, the selection and the slider. */
function workbench(data, report, cells) {
  const whole = cells.reduce((one, cell) => (cell.last - cell.first > one.last - one.first ? cell : one), cells[0]);
  const state = { tolerance: report.tolerance, chosen: whole, followsSlider: true };
  const card = spanCard(data);
  const examples = data.examples && examplesCard(data);
  const say = el("div", { class: "advice", "aria-live": "polite" });
  const look = (cell) => {
    card.show(cell, state.tolerance, cell === state.chosen);
    map.show(cell);
  };
  const pin = () => {
    look(state.chosen);
    for (const cell of cells) cell.node.setAttribute("aria-selected", String(cell === state.chosen));
    if (examples) examples.show(state.chosen);
  };
  const choose = (cell) => {
    Object.assign(state, { chosen: cell, followsSlider: false });
    pin();
  };
  const on = { enter: look, leave: () => look(state.chosen), choose };
  const map = data.order
    ? curve(data, cells, on)
    : heatmap(data, report.colours, cells, on);
  const view = data.order ? null : views(data, report, map);
  const step = (at) => {
    const found = [at.estimate, at.bound].map((row) => (known(row) ? cells[row] : null));
    state.tolerance = at.tolerance;
    map.step(at.stairs, found, at.tolerance);
    if (view) view.step(at.tolerance);
    fill(say, advice(data, cells, at, found, choose));
    if (state.followsSlider) state.chosen = found[0] || whole;
    pin();
  };
  const control = slider(data, report.tolerance, step);
  control.set();
  return { control, say, view, map, card, examples };
}

function ablationSection(data, report) {
  const cells = records(data.spans).map((cell, row) => ({ ...cell, row }));
  const { control, say, view, map, card, examples } = workbench(data, report, cells);
  const id = newId("study");
  const about = [data.split, plural(data.nExamples, "example"), data.metric, data.name].filter(Boolean);
  const hasInteraction = cells.some((cell) => known(cell.interaction_points));
  return el(
    "section",
    { class: "study", "aria-labelledby": id },
    el(
      "header",
      null,
      el("h2", { id }, data.task),
      el("p", { class: "note" }, about.join(" \u00b7 ")),
      data.warning && el("p", { class: "warning", role: "note" }, data.warning),
      tiles(data),
    ),
    el(
      "div",
      { class: "bench" },
      el("div", { class: "card control" }, control.node, say),
      el(
        "figure",
        { class: "card map" },
        view && hasInteraction && view.choice,
        el("div", { class: "scroll" }, map.node),
        view && view.place,
        legend(data, cells),
      ),
      card.node,
    ),
    examples && examples.node,
    data.layers &&
      el(
        "section",
        { class: "card" },
        el("h3", null, data.layers.heading),
        data.layers.figure && drawing(data.layers.figure),
        textTable(data.layers.table),
      ),
    spansTable(data, cells),
    settingsOf("Settings and versions", data.settings),
  );
}
