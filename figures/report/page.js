// Reads the data block and builds the page.

function contents(sections) {
  if (sections.length < 2) return null;
  const links = sections.map(({ name, node }) => {
    node.id = newId("part");
    return el("li", null, el("a", { href: `#${node.id}` }, name));
  });
  return el("nav", { "aria-label": "Contents" }, el("ul", null, links));
}

/** Opens every table for printing and closes it again afterwards. */
function openForPrint() {
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const details of opened) details.open = true;
  });
  addEventListener("afterprint", () => {
    for (const details of opened) details.open = false;
  });
}

/** A sweep: its figures, the numbers behind them, and its settings. */
function sweepSection(data) {
  const id = newId("sweep");
  const heading = data.kind === "init" ? "Score by initialisation scale" : "Score by trained parameters";
  return el(
    "section",
    { class: "study", "aria-labelledby": id },
    el("header", null, el("h2", { id }, heading), el("p", { class: "note" }, data.name)),
    data.figures.map((one) => el("div", { class: "card" }, drawing(one))),
    data.tables.map(textTable),
    settingsOf("Settings and versions", data.settings),
  );
}

const report = JSON.parse(document.getElementById("data").textContent);
const studies = report.ablations.map((data) => ({
  name: `${data.task}, by layer`,
  node: ablationSection(data, report),
}));
const sweeps = report.sweeps.map((data) => ({
  name: `${data.tasks.join(", ")}, ${data.kind === "init" ? "initialisation" : "trade-off"}`,
  node: sweepSection(data),
}));
const page = document.getElementById("page");
page.classList.toggle(
  "wide",
  report.ablations.some((data) => data.units.length > MANY_LAYERS),
);
fill(page, [
  el("header", { class: "masthead" }, el("p", null, "adapter-probe"), el("h1", null, report.title)),
  contents([...studies, ...sweeps]),
  [...studies, ...sweeps].map(({ node }) => node),
  el(
    "footer",
    null,
    `Made by adapter-probe ${report.version}. This file contains all its data and loads nothing.`,
  ),
]);
openForPrint();
