// Numbers and spans in words. Minus signs are real ones; scores come as fractions, differences in points.

const MINUS = "\u2212";
const DASH = "\u2013";
const NONE = "\u2014";
const known = (value) => value !== null && value !== undefined;
const count = (value) => (known(value) ? value.toLocaleString("en-US") : NONE);
const plural = (n, word, words) => `${count(n)} ${n === 1 ? word : words || `${word}s`}`;
const minus = (text) => text.replace("-", MINUS);

/** Rounded as in the other figures: what is exactly halfway between two digits goes to the even one. */
function fixed(value, digits) {
  const halfway = (Math.abs(value) * 2 ** (digits + 1)) % 2 === 1;
  const below = Math.floor(Math.abs(value) * 10 ** digits);
  const down = halfway && below % 2 === 0;
  return (down ? (Math.sign(value) * below) / 10 ** digits : value).toFixed(digits);
}

/** A difference with its sign; what rounds to nothing has none. */
function signed(points, digits = 1) {
  if (!known(points)) return NONE;
  const text = fixed(points, digits);
  return Number(text) === 0 ? (0).toFixed(digits) : (points > 0 ? "+" : "") + minus(text);
}

/** A drop as its cell shows it: 1.2, from 10 on 12; a gain is a negative drop, -0.3. */
function cellText(drop) {
  const size = Math.abs(drop);
  const text = fixed(size, size < 9.95 ? 1 : 0);
  return (drop < 0 && Number(text) !== 0 ? MINUS : "") + text;
}

/** An interaction as its cell shows it: extra loss has no sign, as a drop has none, overlap has a minus. */
const interactionText = (value) =>
  minus(fixed(value, Math.abs(value) < 9.95 ? 1 : 0)).replace(/^\u2212(0(\.0)?)$/, "$1");

const range = (low, high) => `${signed(low)} to ${signed(high)}`;
const pointsOf = (delta) => `${signed(delta)} point${fixed(Math.abs(delta), 1) === "1.0" ? "" : "s"}`;
const tolerancePoints = (value) => `${value} point${value === 1 ? "" : "s"}`;

function scoreText(score, percent) {
  if (!known(score)) return "undefined";
  return percent ? `${fixed(100 * score, 1)}%` : minus(fixed(score, 3));
}

const rangeOrNone = (low, high) => (known(low) ? range(low, high) : NONE);
const AGAIN = ", given again, adds them in seconds.";

const pText = (p) => (p < 0.001 ? "p < 0.001" : `p = ${p.toFixed(p < 0.1 ? 3 : 2)}`);
const bareP = (p) => (known(p) ? pText(p).replace("p = ", "").replace("p < ", "< ") : NONE);
const layersText = ({ first, last }) => (first === last ? `layer ${first}` : `layers ${first}${DASH}${last}`);
const capital = (text) => text[0].toUpperCase() + text.slice(1);

function percentText(share) {
  const percent = 100 * share;
  return `${percent.toFixed(percent < 9.95 ? 1 : 0)}%`;
}

/** 25,600,000 in few characters. */
function shortNumber(value) {
  const unit = value >= 1e9 ? [1e9, " B"] : value >= 1e6 ? [1e6, " M"] : value >= 1e4 ? [1e3, " k"] : null;
  if (!unit) return count(value);
  return String(Number((value / unit[0]).toPrecision(3))) + unit[1];
}
