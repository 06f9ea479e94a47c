// A chart of points over a logarithmic axis: means with whiskers, the trials behind them, lines between.

const PLOT = { width: NARROW ? 380 : 640, height: 300, left: 46, right: 14, top: 12, bottom: 52 };
PLOT.floor = PLOT.height - PLOT.bottom;
PLOT.end = PLOT.width - PLOT.right;

const MARKS = {
  adapters: "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0Z",
  top_layers: "M-4.5 -4.5H4.5V4.5H-4.5Z",
  layernorm_only: "M0 -6.5L6 0L0 6.5L-6 0Z",
  head_only: "M0 -6L6 5H-6Z",
  full: "M0 -7.5L1.8 -2.4L7.1 -2.3L2.9 1L4.4 6.1L0 3.1L-4.4 6.1L-2.9 1L-7.1 -2.3L-1.8 -2.4Z",
};
const markOf = (method) => MARKS[method] || MARKS.adapters;

function logAxis(values) {
  const logs = values.map(Math.log10);
  const low = Math.min(...logs);
  const high = Math.max(...logs);
  const pad = Math.max(0.15, 0.04 * (high - low));
  const inner = PLOT.end - PLOT.left;
  const place = (value) => PLOT.left + (inner * (Math.log10(value) - low + pad)) / (high - low + 2 * pad);
  const decades = [];
  for (let k = Math.ceil(low - pad); k <= Math.floor(high + pad); k += 1) decades.push(k);
  return { place, decades };
}

function linearAxis(values) {
  const low = Math.min(...values);
  const high = Math.max(...values);
  const pad = 0.08 * (high - low) || Math.abs(high) * 0.05 || 1;
  const place = (value) =>
    PLOT.top + (PLOT.floor - PLOT.top) * (1 - (value - low + pad) / (high - low + 2 * pad));
  return { place, ticks: niceTicks(low - pad, high + pad) };
}

function frame(x, y, title) {
  const power = (k) =>
    svg(
      "text",
      { x: x.place(10 ** k), y: PLOT.floor + 18, class: "tick middle" },
      "10",
      svg("tspan", { dy: -5, class: "raised" }, minus(String(k))),
    );
  return svg(
    "g",
    { "aria-hidden": "true" },
    y.ticks.map((tick) => [
      svg("path", { class: "grid", d: `M${PLOT.left} ${y.place(tick)}H${PLOT.end}` }),
      svg("text", { x: PLOT.left - 8, y: y.place(tick), class: "tick end" }, minus(String(tick))),
    ]),
    x.decades.map((k) => [
      svg("path", { class: "base", d: `M${x.place(10 ** k)} ${PLOT.floor}v4` }),
      power(k),
    ]),
    svg("path", { class: "base", d: `M${PLOT.left} ${PLOT.floor}H${PLOT.end}` }),
    svg("text", { x: (PLOT.left + PLOT.end) / 2, y: PLOT.height - 10, class: "axis middle" }, title),
  );
}

/** The trials of a point as small dots side by side; a diverged one is a cross on the floor. */
function trialDots({ series, point }, x, y) {
  const trials = point.trials || [];
  const gap = Math.min(3, 12 / trials.length);
  const dots = trials.map((trial, i) => {
    const kind = trial.chosen ? "trial" : "trial other";
    const at = x.place(point.x) + gap * (i - (trials.length - 1) / 2);
    return known(trial.y)
      ? svg("circle", { class: kind, cx: at, cy: y.place(trial.y), r: 2.6 })
      : svg("path", { class: `${kind} lost`, d: `M${at - 3} ${PLOT.floor - 8}l6 6m0 -6l-6 6` });
  });
  return svg("g", { class: `dots m-${series.method}`, "aria-hidden": "true" }, dots);
}

function pointNode({ series, point }, x, y, label) {
  const at = x.place(point.x);
  const mark = { class: "mark", d: markOf(series.method), transform: `translate(${at} ${y.place(point.y)})` };
  return svg(
    "g",
    { class: `point m-${series.method}`, role: "img", "aria-label": label },
    svg("rect", { class: "hit", x: at - 9, y: PLOT.top, width: 18, height: PLOT.floor - PLOT.top }),
    known(point.low) && whisker(at, point.low, point.high, y.place, ""),
    point.frontier && svg("circle", { class: "frontier", cx: at, cy: y.place(point.y), r: 9.5 }),
    known(point.y) && svg("path", mark),
  );
}

/** A line through the means of a series. */
function joinLine(series, x, y) {
  const drawn = series.points.filter((point) => known(point.y));
  const d = drawn.map((point, i) => `${i ? "L" : "M"}${x.place(point.x)} ${y.place(point.y)}`).join("");
  return svg("path", { class: `join m-${series.method}`, d });
}

/** A dotted line with its words at the end that has more room between the points. */
function referenceLine(line, items, x, y) {
  const reach = 170;
  const at = y.place(line.y) - 8;
  const room = (from, to) => {
    const near = items.filter(({ point: p }) => known(p.y) && x.place(p.x) > from && x.place(p.x) < to);
    return Math.min(...near.map(({ point }) => Math.abs(y.place(point.y) - at)));
  };
  const atLeft = room(PLOT.left, PLOT.left + reach) > room(PLOT.end - reach, PLOT.end + 9);
  const place = atLeft ? { x: PLOT.left + 4, class: "tick" } : { x: PLOT.end - 4, class: "tick end" };
  return [
    svg("path", { class: "reference", d: `M${PLOT.left} ${y.place(line.y)}H${PLOT.end}` }),
    svg("text", { ...place, y: at }, line.label),
  ];
}

/** The best adapters, or whatever is best. */
function startPoint(items) {
  const adapters = items.filter((item) => item.series.method === "adapters" && known(item.point.y));
  const height = (item) => item.point.y ?? -Infinity;
  return (adapters.length ? adapters : items).reduce((a, b) => (height(b) > height(a) ? b : a));
}

/** The axes, wide enough for every point and trial; a line far below would press them flat and stays out. */
function axesOf(points, lines) {
  const seen = points.flatMap((p) => [p.y, p.low, p.high, ...(p.trials || []).map((trial) => trial.y)]);
  const values = seen.some(known) ? seen.filter(known) : [0, 1];
  const low = Math.min(...values);
  const reach = Math.max(...values) - low;
  const shown = lines.filter((line) => !line.mayBeOutside || line.y > low - 0.6 * reach);
  return {
    x: logAxis(points.map((p) => p.x)),
    y: linearAxis([...values, ...shown.map((line) => line.y)]),
    shown,
  };
}

/**
 * `series` are {method, label, points: [{x, y, low, high, frontier, trials: [{y, chosen}]}]}, `lines` are
 * {y, label, mayBeOutside}, `words` are {title, x, point(series, point)}; `show(series, point)` tells of one.
 */
function chart({ series, lines, words, show }) {
  const items = series.flatMap((one) => one.points.map((point) => ({ series: one, point })));
  items.sort((a, b) => a.point.x - b.point.x);
  const { x, y, shown } = axesOf(
    items.map(({ point }) => point),
    lines,
  );
  for (const item of items) {
    item.node = pointNode(item, x, y, words.point(item.series, item.point));
    item.dots = trialDots(item, x, y);
  }
  const band = svg("rect", { class: "band", y: PLOT.top, width: 18, height: PLOT.floor - PLOT.top });
  const label = `${words.title}. Arrow keys move between points.`;
  const node = svg(
    "svg",
    { class: "chart", viewBox: `0 0 ${PLOT.width} ${PLOT.height}`, role: "group", "aria-label": label },
    [band, frame(x, y, words.x), shown.map((line) => referenceLine(line, items, x, y))],
    [
      series.map((one) => joinLine(one, x, y)),
      items.map((item) => item.dots),
      items.map((item) => item.node),
    ],
  );
  let chosen = startPoint(items);
  const enter = (item) => {
    band.setAttribute("x", x.place(item.point.x) - 9);
    for (const other of items) {
      for (const part of [other.node, other.dots]) part.classList.toggle("chosen", other === item);
    }
    show(item.series, item.point);
  };
  const keep = (item) => {
    chosen = item;
    enter(item);
  };
  roving(items, chosen, (item, key) => neighbour(items, item, key), {
    enter,
    leave: () => enter(chosen),
    choose: keep,
  });
  enter(chosen);
  return node;
}

function seriesLegend(series) {
  const key = (one) =>
    svg(
      "svg",
      { class: `m-${one.method}`, viewBox: "-9 -9 18 18", width: 18, height: 18, "aria-hidden": "true" },
      svg("path", { class: "mark", d: markOf(one.method) }),
    );
  return el(
    "ul",
    { class: "legend" },
    series.map((one) => el("li", null, key(one), one.label)),
  );
}
