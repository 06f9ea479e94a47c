// The texts of examples that a span turns right or wrong, if the page includes them.

const FIRST_SHOWN = 20;
const MORE_SHOWN = 100;
const LONG = 280; // characters

/** Predicted class of every embedded example under the span of a row. */
function predictionsOf(examples, row) {
  const packed = examples.predictions[row];
  return typeof packed === "string" ? Array.from(packed, (digit) => parseInt(digit, 36)) : packed || [];
}

/** Whether a prediction is right: the true class, or an answer that is marked as right. */
const isRight = ({ labels, options }, i, said) => (options ? options[i][said][1] : said === labels[i]);

/** Indices of the examples that a span turns wrong, and of those that it turns right. */
function flipsOf(examples, now) {
  const { intact } = examples;
  const flipped = (right) =>
    [...now.keys()].filter(
      (i) => isRight(examples, i, now[i]) === right && isRight(examples, i, intact[i]) !== right,
    );
  return { wrong: flipped(false), right: flipped(true) };
}

/** A second text; long texts can be opened and closed. */
function secondText(text) {
  if (text.length <= LONG) return el("span", { class: "second" }, text);
  return el("details", { class: "second" }, el("summary", null, "context"), text);
}

function exampleItem(data, i, now) {
  const { numbers, texts, textsB, labels, options, truths, intact } = data.examples;
  const name = (said) => (options ? options[i][said][0] || NONE : data.labels[said]);
  const right = isRight(data.examples, i, now);
  const truth = options ? `the answer is ${truths[i]}` : `is ${name(labels[i])}`;
  return el(
    "li",
    { class: right ? "right" : "wrong" },
    el("blockquote", null, texts[i], textsB && secondText(textsB[i])),
    el(
      "p",
      { class: "note" },
      `#${numbers[i]} ${truth}. Intact: ${name(intact[i])}. Now: `,
      el("b", null, name(now)),
      right ? " \u2713" : " \u2717",
    ),
  );
}

/** The card; `show(cell)` lists the examples that the span turns right or wrong. */
function examplesCard(data) {
  const node = el("section", { class: "card examples-card" });
  let cell = null;
  let kind = "wrong";
  let shown = FIRST_SHOWN;
  const set = (name) => {
    kind = name;
    shown = FIRST_SHOWN;
    draw();
    node.querySelector("[aria-pressed=true]").focus();
  };
  const more = () => {
    shown += MORE_SHOWN;
    draw();
  };
  function draw() {
    const now = predictionsOf(data.examples, cell.row);
    const lists = flipsOf(data.examples, now);
    const items = lists[kind];
    const names = ["wrong", "right"].map((name) => [name, `turn ${name} (${count(lists[name].length)})`]);
    fill(node, [
      el("h3", null, `Changed predictions: ${spanText(data, cell)}`),
      choiceOf("Which examples", names, kind, set),
      items.length
        ? el(
            "ol",
            { class: "examples" },
            items.slice(0, shown).map((i) => exampleItem(data, i, now[i])),
          )
        : el("p", { class: "note" }, "None."),
      items.length > shown &&
        el(
          "button",
          { type: "button", class: "more", onclick: more },
          `Show more (${count(items.length - shown)} left)`,
        ),
    ]);
  }
  const show = (next) => {
    if (next === cell) return;
    cell = next;
    shown = FIRST_SHOWN;
    draw();
  };
  return { node, show };
}
