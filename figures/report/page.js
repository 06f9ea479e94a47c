// Starts the page, keeps what is seen in its address, filters runs, and saves maps to files.

const data = JSON.parse(document.getElementById("data").textContent);
const studies = [], sweeps = [];

/** Saved as pairs such as span0=2-4 or seed-runs1=3, of everything that differs from how the page opens. */
function address() {
  const pairs = studies.flatMap(({ data: own, state, section, examples }, number) => [
    ["span", state.follows ? null : own.spans[state.row].join("-")],
    ["view", state.view ? section.querySelectorAll(".map .view")[state.view].dataset.view : null],
    ["tolerance", known(state.step) && own.steps[state.step].tolerance !== own.start ? own.steps[state.step].tolerance : null],
    ...(examples ? examples.saved() : []),
  ].filter(([, value]) => known(value) && value !== "").map(([name, value]) => [`${name}${number}`, String(value)]));
  return `#${new URLSearchParams([...pairs, ...sweeps.flatMap((sweep) => sweep.saved())])}`;
}

let restoring = false;
function changed() {
  if (restoring) return;
  const now = address();
  history.replaceState(null, "", now === "#" ? location.pathname + location.search : now);
  for (const link of document.querySelectorAll(".here")) link.href = now;
}

function restore() {
  if (!location.hash.includes("=")) return;
  const pairs = new URLSearchParams(location.hash.slice(1));
  restoring = true;
  studies.forEach((study, number) => {
    const read = (name) => pairs.get(`${name}${number}`);
    const at = study.data.steps.findIndex((step) => String(step.tolerance) === read("tolerance"));
    if (at >= 0) study.step(at);
    const row = study.data.spans.findIndex((span) => span.join("-") === read("span"));
    if (row >= 0) study.pin(row);
    if (read("view")) study.view(read("view"));
    study.examples?.restore(read);
  });
  for (const sweep of sweeps) sweep.restore(pairs);
  restoring = false;
  changed();
}

function download(name, parts, type) {
  const link = el("a", { download: name, href: URL.createObjectURL(new Blob(parts, { type })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** A drawing as a file of its own, without the shapes that are pointed at. */
function standalone(svg) {
  const copy = svg.cloneNode(true);
  for (const node of all(copy, ".cells, .cursor, .badge")) node.remove();
  const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
  copy.setAttribute("width", `${width}pt`);
  copy.setAttribute("height", `${height}pt`);
  return { text: new XMLSerializer().serializeToString(copy), width, height };
}

function savePng(name, { text, width, height }) {
  const image = new Image();
  image.onload = () => {
    const canvas = el("canvas", { width: Math.round(4 * width), height: Math.round(4 * height) });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => download(name, [blob], "image/png"));
  };
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
}

function startSaving(study) {
  const stem = study.data.name.toLowerCase().replace(/[^a-z0-9]+/g, "-") || "spans";
  const drawing = () => standalone(study.section.querySelector(".map .view:not([hidden]) svg"));
  const saves = {
    csv: () => download(`${stem}.csv`, [study.data.csv], "text/csv"),
    svg: () => download(`${stem}.svg`, [drawing().text], "image/svg+xml"),
    png: () => savePng(`${stem}.png`, drawing()),
  };
  for (const button of all(study.section, "[data-save]")) button.addEventListener("click", saves[button.dataset.save]);
}

/** Runs of a sweep: the readout of the one pointed at, and filters of points and rows. */
function startSweep(section) {
  const points = all(section, "circle.run");
  const readout = section.querySelector(".readout");
  const empty = readout?.textContent;
  const say = (i) => (readout.textContent = points[i].getAttribute("aria-label"));
  const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 };
  const next = (i, key) => {
    let goal = i + step[key];
    while (points[goal]?.hasAttribute("hidden")) goal += step[key];
    return goal;
  };
  roving(points, next, { enter: say, leave: () => (readout.textContent = empty), choose: say });
  const picks = all(section, ".run-filters select");
  const filter = () => {
    const passes = (run) => picks.every(({ name, value }) => !value || run.getAttribute(`data-${name}`) === value);
    for (const run of all(section, ".run")) show(run, passes(run));
    section.querySelector(".run-filters .count").textContent = all(section, "tr.run:not([hidden])").length.toLocaleString("en-US");
  };
  for (const pick of picks) pick.addEventListener("input", () => (filter(), changed()));
  if (readout) filter();
  const key = ({ name }) => `${name}-runs${section.dataset.sweep}`;
  const allowed = (pick, value) => [...pick.options].some((option) => option.value === value);
  sweeps.push({
    saved: () => picks.filter(({ value }) => value).map((pick) => [key(pick), pick.value]),
    restore(pairs) {
      for (const pick of picks) pick.value = allowed(pick, pairs.get(key(pick))) ? pairs.get(key(pick)) : "";
      if (readout) filter();
    },
  });
}

for (const section of document.querySelectorAll("[data-study]")) {
  const own = data.studies[section.dataset.study];
  const study = startStudy(section, own, () => studies.filter((other) => other.data.group === own.group), changed);
  studies.push(study);
  startConfusion(study);
  startExamples(study, changed);
  startSaving(study);
}
document.querySelectorAll("[data-sweep]").forEach(startSweep);
restore();
changed();
addEventListener("hashchange", restore);

let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  for (const details of opened) details.open = true;
});
addEventListener("afterprint", () => opened.forEach((details) => (details.open = false)));
