// The sweeps of a folder: initialisation, trade-off a task, trade-off over tasks, sizes.

function trialTable(point, percent) {
  const trials = [...point.trials].sort((a, b) => b.chosen - a.chosen);
  if (!trials.length) return null;
  const cells = (trial) => [
    known(trial.seed) ? trial.seed : NONE,
    shortNumber(trial.learning_rate),
    count(trial.epochs),
    trial.diverged ? "diverged" : scoreText(trial.score, percent),
  ];
  const row = (trial) => {
    const look = { class: trial.chosen ? null : "other", title: trial.trial && `trial ${trial.trial}` };
    return el(
      "tr",
      look,
      cells(trial).map((cell) => el("td", null, String(cell))),
    );
  };
  const head = ["seed", "learning rate", "epochs", "score"].map((name) => el("th", { scope: "col" }, name));
  return el(
    "div",
    { class: "scroll trials", tabindex: "0", role: "region", "aria-label": `Runs of ${point.label}` },
    el("table", null, el("thead", null, el("tr", null, head)), el("tbody", null, trials.map(row))),
  );
}

function sizeWords(point) {
  const percent = known(point.percentOfBase) && `${Number(point.percentOfBase.toPrecision(2))}% of the base`;
  return `${count(point.x)} trained parameters without the head${percent ? `, ${percent}` : ""}`;
}

const pointHead = (series, point) => [
  series.label === point.label ? null : el("p", { class: "over-title" }, series.label),
  el("h3", null, point.label),
];

function taskReadout(data, series, point) {
  const error = known(point.sem) && (data.percent ? (100 * point.sem).toFixed(2) : point.sem.toFixed(3));
  const mean = known(point.mean)
    ? `${scoreText(point.mean, data.percent)}${error ? ` \u00b1 ${error}` : ""}`
    : NONE;
  const how = [known(point.n) ? `mean \u00b1 standard error of ${plural(point.n, "run")}` : "single runs"];
  if (point.diverged) how.push(`${plural(point.diverged, "run")} diverged`);
  if (known(point.learning_rate)) how.push(`learning rate ${shortNumber(point.learning_rate)}`);
  if (known(point.epochs)) how.push(plural(point.epochs, "epoch"));
  return [
    pointHead(series, point),
    el("p", { class: "big" }, mean),
    el("p", { class: "note" }, how.join("; ")),
    data.kind === "tradeoff" && el("p", { class: "note" }, sizeWords(point)),
    trialTable(point, data.percent),
    point.trials.some((trial) => !trial.chosen) &&
      el("p", { class: "note" }, "Pale: settings that did worse on average."),
  ];
}

function aggregateReadout(series, point) {
  const interval = known(point.iqm_low_points)
    ? ` (${range(point.iqm_low_points, point.iqm_high_points)})`
    : null;
  return [
    pointHead(series, point),
    el("p", { class: "big" }, signed(point.p50_points), el("small", null, " points, median")),
    el(
      "dl",
      { class: "facts" },
      known(point.p20_points) && fact("20th to 80th", range(point.p20_points, point.p80_points)),
      known(point.iqm_points) &&
        fact(
          "middle half",
          signed(point.iqm_points),
          interval,
          el("small", null, "interquartile mean, 95% interval"),
        ),
      known(point.n_tasks) && fact("tasks", count(point.n_tasks)),
      fact("size", sizeWords(point)),
      point.frontier && fact("frontier", "nothing smaller does better"),
    ),
  ];
}

function chartTable(data, series) {
  const value = (score) => scoreText(score, data.percent);
  const error = (sem) => (known(sem) ? (data.percent ? (100 * sem).toFixed(2) : sem.toFixed(4)) : NONE);
  const columns = {
    aggregate: [
      ["trained parameters", (point) => count(point.x)],
      ["20th percentile", (point) => signed(point.p20_points, 2)],
      ["median", (point) => signed(point.p50_points, 2)],
      ["80th percentile", (point) => signed(point.p80_points, 2)],
      ["middle half", (point) => signed(point.iqm_points, 2)],
    ],
    other: [
      data.kind === "tradeoff" && ["trained parameters", (point) => count(point.x)],
      ["mean", (point) => value(point.mean)],
      ["standard error", (point) => error(point.sem)],
      ["lowest", (point) => value(point.min)],
      ["highest", (point) => value(point.max)],
      ["runs", (point) => count(point.n)],
      ["diverged", (point) => count(point.diverged)],
    ],
  };
  const own = columns[data.kind] || columns.other;
  return tableOf(
    "These points as a table",
    [["point", (point) => point.label], ...own],
    series.flatMap((s) => s.points),
  );
}

/** The points of a chart in the units of its axis: percent where the score is a share of something. */
function plotted(data) {
  const unit = data.percent ? 100 : 1;
  const scaled = (value) => (known(value) ? unit * value : null);
  const spread = (point, sign) =>
    known(point.sem) && known(point.mean) ? unit * (point.mean + sign * point.sem) : null;
  const placed = (point) =>
    data.kind === "aggregate"
      ? { y: point.p50_points, low: point.p20_points, high: point.p80_points }
      : {
          y: scaled(point.mean),
          low: spread(point, -1),
          high: spread(point, 1),
          label: point.label || `std ${shortNumber(point.x)}`,
          trials: point.trials.map((trial) => ({ ...trial, y: scaled(trial.score) })),
        };
  return data.series.map((one) => ({
    ...one,
    points: one.points.map((point) => ({ ...point, ...placed(point) })),
  }));
}

/** What the points are to be held against. */
function referenceLines(data, series) {
  if (data.kind === "aggregate") return [{ y: 0, label: "full fine-tuning" }];
  const full = data.kind === "tradeoff" && series.find((one) => one.method === "full");
  const lines = full && known(full.points[0].y) ? [{ y: full.points[0].y, label: "full fine-tuning" }] : [];
  const majority = (data.percent ? 100 : 1) * data.majority;
  const guess = { y: majority, label: "always the commonest class", mayBeOutside: true };
  return known(data.majority) ? [...lines, guess] : lines;
}

function chartWords(data) {
  const aggregate = data.kind === "aggregate";
  const titles = {
    init: `${data.task}: initialisation`,
    tradeoff: `${data.task}: what trained parameters buy`,
    aggregate: "Over all tasks: what trained parameters buy",
  };
  const value = (point) =>
    aggregate ? `${signed(point.p50_points)} points, median over tasks` : scoreText(point.mean, data.percent);
  return {
    title: titles[data.kind],
    x:
      data.kind === "init"
        ? "standard deviation of the initial weights"
        : "trained parameters, without the head",
    y: aggregate ? "points from full fine-tuning" : `${data.metric}${data.percent ? " (%)" : ""}`,
    point: (series, point) => `${point.label}: ${value(point)}`,
  };
}

function chartSection(data) {
  const series = plotted(data);
  if (!series.length) return null;
  const words = chartWords(data);
  const aggregate = data.kind === "aggregate";
  const readout = el("div", { class: "card point-card" });
  const show = (one, point) =>
    fill(readout, aggregate ? aggregateReadout(one, point) : taskReadout(data, one, point));
  const points = series.flatMap((one) => one.points);
  const node = el("section", { class: "sweep" });
  const toggle = (event) => node.classList.toggle("all-trials", event.target.checked);
  const others = points.some((point) => (point.trials || []).some((trial) => !trial.chosen));
  const figure = el(
    "figure",
    { class: "card" },
    el("p", { class: "note", "aria-hidden": "true" }, words.y),
    el("div", { class: "scroll" }, chart({ series, lines: referenceLines(data, series), words, show })),
    seriesLegend(series),
    others &&
      el(
        "label",
        { class: "check" },
        el("input", { type: "checkbox", onchange: toggle }),
        "also runs at the settings not chosen",
      ),
    points.some((point) => point.frontier) &&
      el("p", { class: "note middle-note" }, "Ringed: nothing with fewer parameters does better."),
  );
  return fill(node, [
    el("h3", null, words.title),
    el("div", { class: "columns" }, figure, readout),
    chartTable(data, series),
  ]);
}

function sizesCard(sizes) {
  const whole = new Set(["size", "n_tasks"]);
  const text = (name, value) =>
    !known(value)
      ? NONE
      : whole.has(name) || typeof value !== "number"
        ? String(value)
        : (100 * value).toFixed(1);
  const columns = sizes.columns.map((name, i) => [name.replace(/_/g, " "), (row) => text(name, row[i])]);
  return el(
    "section",
    { class: "card" },
    el("h3", null, "Does the size matter?"),
    el(
      "p",
      { class: "note" },
      "Scores in hundredths by adapter size: the mean over the tasks, its standard error, each task.",
    ),
    el("div", { class: "scroll" }, plainTable(columns, sizes.rows)),
  );
}

const onlyInit = (data) => data.charts.length > 0 && data.charts.every((one) => one.kind === "init");

function sweepName(data) {
  const tasks = data.charts.map((one) => one.task).filter(Boolean);
  return `${tasks.join(", ") || data.name}, ${onlyInit(data) ? "initialisation" : "trade-off"}`;
}

function sweepSection(data) {
  const id = newId("sweep");
  return el(
    "section",
    { class: "study", "aria-labelledby": id },
    el(
      "header",
      null,
      el("h2", { id }, onlyInit(data) ? "Was the initialisation safe?" : "Was this the right budget?"),
      el("p", { class: "note" }, data.name),
    ),
    data.charts.map(chartSection),
    data.sizes && sizesCard(data.sizes),
    settingsOf("What made these numbers", data.settings),
  );
}
