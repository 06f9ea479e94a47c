// The colour bar of a heatmap, with discrete levels and a mark at the tolerance.

const BLOCK = { width: 44, height: 14 };

/** Where a drop lies on the bar; `levels` are {level, from, to} in ascending order, an open end is null. */
function placeOnBar(levels, drop) {
  const holds = ({ from, to }) =>
    (from === null || drop > from || (from === 0 && drop === 0)) && (to === null || drop <= to);
  const i = levels.findIndex(holds);
  if (i < 0) return levels.length * BLOCK.width;
  const { from, to } = levels[i];
  const part = from === null || to === null ? 0.5 : (drop - from) / (to - from);
  return (i + part) * BLOCK.width;
}

/** `words` are {title, low}: the title, and the label of the open lower end. */
function colourBar(levels, colours, words) {
  const { width, height } = BLOCK;
  const whole = levels.length * width;
  const tick = (x, text) => svg("text", { x, y: height + 13, class: "tick middle" }, text);
  const mark = svg("path", { class: "stairs", d: `M0 -4V${height + 4}` });
  const blocks = levels.map(({ level }, i) =>
    svg("rect", { x: i * width, width, height, css: { fill: colours.levels[level][0] } }),
  );
  const last = levels.at(-1).to;
  const node = svg(
    "svg",
    {
      class: "bar",
      viewBox: `-24 -6 ${whole + 48} 52`,
      role: "img",
      "aria-label": `Colours: ${words.title}, from ${words.low} in blue to the largest in near black`,
    },
    [
      blocks,
      mark,
      tick(0, words.low),
      levels.slice(1).map(({ from }, i) => tick((i + 1) * width, minus(String(from)))),
    ],
    last !== null && tick(whole, minus(String(last))),
    svg("text", { x: whole / 2, y: height + 29, class: "axis middle" }, words.title),
  );
  const step = (drop) => mark.setAttribute("transform", `translate(${placeOnBar(levels, drop)} 0)`);
  const hideMark = () => mark.toggleAttribute("hidden", true);
  return { node, step, hideMark };
}
