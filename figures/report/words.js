// Formatting of numbers and spans, with true minus signs. Scores are fractions, differences are in points.

const MINUS = "\u2212";
const DASH = "\u2013";
const NONE = "\u2014";
const known = (value) => value !== null && value !== undefined;
const count = (value) => (known(value) ? value.toLocaleString("en-US") : NONE);
const plural = (n, word, words) => `${count(n)} ${n === 1 ? word : words || `${word}s`}`;
const minus = (text) => text.replace("-", MINUS);

/** Rounded as in the other figures: exact halves go to the even digit. */
function fixed(value, digits) {
  const halfway = (Math.abs(value) * 2 ** (digits + 1)) % 2 === 1;
  const below = Math.floor(Math.abs(value) * 10 ** digits);
  const down = halfway && below % 2 === 0;
  return (down ? (Math.sign(value) * below) / 10 ** digits : value).toFixed(digits);
}

/** A signed difference; values that round to zero have no sign. */
function signed(points, digits = 1) {
  if (!known(points)) return NONE;
  const text = fixed(points, digits);
  return Number(text) === 0 ? (0).toFixed(digits) : (points > 0 ? "+" : "") + minus(text);
}

/** A drop or an interaction in a cell: 1.2, or 12 from 10 points; a gain is a negative drop, -0.3. */
function cellText(drop) {
  const size = Math.abs(drop);
  const text = fixed(size, size < 9.95 ? 1 : 0);
  return (drop < 0 && Number(text) !== 0 ? MINUS : "") + text;
}

const isLoss = (data) => data.lossUnit !== null;
/** The unit behind a number, with a blank; perplexities have none. */
const unitAfter = (data, one) =>
  isLoss(data) ? data.lossUnit && ` ${data.lossUnit}` : ` point${one ? "" : "s"}`;

/** A signed number of points or, of a loss, of its unit, which is a hundred times as large. */
const inUnit = (data, points, digits = 1) =>
  isLoss(data) ? signed(points / 100, digits + 2) : signed(points, digits);
const withUnit = (data, points) => inUnit(data, points) + unitAfter(data, fixed(Math.abs(points), 1) === "1.0");

/** Whether better is up: a change for the worse is a negative number of points, but a rise of a loss. */
const sense = (data) => (isLoss(data) ? -1 : 1);
const changeNumber = (data, delta, digits) => inUnit(data, sense(data) * delta, digits);
const changeText = (data, delta) => withUnit(data, sense(data) * delta);

const range = (data, low, high) => `${inUnit(data, low)} to ${inUnit(data, high)}`;
const changeRange = (data, { ci_low_points: low, ci_high_points: high }) =>
  isLoss(data) ? range(data, -high, -low) : range(data, low, high);
const intervalText = (data, cell) => `95 % interval ${changeRange(data, cell)}`;

function toleranceText(data, points) {
  const value = isLoss(data) ? Number((points / 100).toPrecision(12)) : points;
  return value + unitAfter(data, value === 1);
}

function scoreText(score, data) {
  if (!known(score)) return "undefined";
  if (isLoss(data)) return fixed(score, 3) + unitAfter(data);
  return data.percent ? `${fixed(100 * score, 1)} %` : minus(fixed(score, 3));
}
const AGAIN = " again to add them.";

const pText = (p) => (p < 0.001 ? "p < 0.001" : `p = ${p.toFixed(p < 0.1 ? 3 : 2)}`);
const bareP = (p) => (known(p) ? pText(p).replace("p = ", "").replace("p < ", "< ") : NONE);
const layersText = ({ first, last }) => (first === last ? `layer ${first}` : `layers ${first}${DASH}${last}`);
const spanText = (data, cell) => `${layersText(cell)} ${data.study === "kept" ? "alone" : "off"}`;
const capital = (text) => text[0].toUpperCase() + text.slice(1);

function percentText(share) {
  const percent = 100 * share;
  return `${percent.toFixed(percent < 9.95 ? 1 : 0)} %`;
}

/** A short form of large numbers: 25.6 M. */
function shortNumber(value) {
  const unit = value >= 1e9 ? [1e9, " B"] : value >= 1e6 ? [1e6, " M"] : value >= 1e4 ? [1e3, " k"] : null;
  if (!unit) return count(value);
  return String(Number((value / unit[0]).toPrecision(3))) + unit[1];
}
