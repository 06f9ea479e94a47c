"""Words and number formats of figures, tables, summaries and reports: the only place that writes a score.

One convention for changes: a *drop* is a positive number of points, hundredths of the score, and a gain is a
negative drop; the drop of a loss is its rise, in the loss's unit. In sentences the word carries the sign
(`drop 38.9 points`, `gain 0.3 points`), in cells, columns and axes a true minus sign (−) marks gains. Only
columns of tables named ``delta_points`` are signed the other way round: score minus intact score.

One rounding: `rounded` takes a number for the decimal that it stands for, without the error of floating
point, and rounds halves away from zero. So a number has the same digits wherever it is printed.

Imports NumPy only when a score is formatted, for a fast start of the commands.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adapter_probe.kinds.task import TaskKind
    from adapter_probe.metrics import Metric

METHOD_LABELS = {
    "adapters": "adapters",
    "top_layers": "top k layers",
    "layernorm_only": "LayerNorm only",
    "head_only": "head only",
    "full": "full fine-tuning",
    "lora": "LoRA",
    "dora": "DoRA",
    "ia3": "(IA)³",
    "vera": "VeRA",
    "ln_tuning": "LN tuning",
    "bitfit": "BitFit",
}

_EXACT = 12
"""Significant digits of a float that are taken for its value; the others are errors of floating point."""

# Types of PEFT that are rarer, or another's names for them.
_OTHER_METHODS = {
    "rslora": "rsLoRA", "loha": "LoHa", "lokr": "LoKr", "boft": "BOFT", "oft": "OFT", "hra": "HRA",
    "fourierft": "FourierFT", "vblora": "VB-LoRA", "randlora": "RandLoRA", "shira": "SHiRA", "c3a": "C³A",
    "prompt_tuning": "prompt tuning", "prefix_tuning": "prefix tuning", "p_tuning": "P-tuning",
}  # fmt: skip


def method_label(method: str) -> str:
    """A method's printed name: `LoRA`, `DoRA (target_modules=key+query)`."""
    name, _, settings = method.partition(":")
    label = METHOD_LABELS.get(name) or _OTHER_METHODS.get(name) or printable(name.replace("_", " "))
    return f"{label} ({printable(settings)})" if settings else label


def model_text(base: str, method: Mapping[str, Any]) -> str:
    """What was trained on which base: `gte-small, LoRA of rank 4`; empty where neither is known.

    Args:
        base: name of the base.
        method: a method of training as a record, or in short that of a checkpoint of another library.
    """
    name, fields = str(method.get("name", "")), method
    kinds = [name] if name else []
    if name == "imported":
        kinds = [kind for kind in fields["kinds"] if kind in METHOD_LABELS or kind in _OTHER_METHODS]
    elif name == "peft":
        fields = json.loads(str(method["config"]))
        kinds = [str(fields["peft_type"]).lower()]
    trained = " and ".join(map(method_label, kinds)) or "adapters" * bool(name)
    for what, names in (("rank", ("ranks", "r")), ("size", ("sizes", "size"))):
        found = next((fields[one] for one in names if fields.get(one)), None)
        sizes = found if isinstance(found, Sequence) else [found] if found else []
        trained += f" of {what} {', '.join(map(str, sizes))}" if sizes else ""
    if name == "top_layers":
        trained = count_text(int(fields["k"]), "top layer")
    return ", ".join(filter(None, (base, trained)))


_IN_PLACE = ("full", "top_layers", "layernorm_only", "bitfit")  # methods that train the base's own tensors


def switched_parts(method: str) -> str:
    """What a study of a checkpoint switches: its adapters or, of a fine-tuned model, changes to its base."""
    return "changes" if method in _IN_PLACE else "adapters"


ALL_OFF = "all switched off"
"""What a study with every adapter switched off is called."""

RETRAINED = (
    "An ablation does not tell which layers a new training needs. That was tested once, with LoRAs on an "
    "encoder (gte-small, five seeds), in the six of twelve layers with the largest shares of the drop: on "
    "MNLI they had an accuracy of 60.3%, LoRAs in all layers 61.1%, in the highest six 59.0%, in random ones "
    "57.9% and in the lowest six 57.8%; on two other tasks all were within a point of all layers. Language "
    "models, other adapters and leaving out a removable span were not tried (documentation, Studies: What "
    "did not help)."
)
"""What is known of leaving out in the next training what an ablation finds dispensable."""


def strength_text(strength: float | str) -> str:
    """What adapters are multiplied by: `0.5`, `−1`, or ``by layer``."""
    return strength if isinstance(strength, str) else f"{strength:g}".replace("-", "−")


def done_text(study: str, strength: float | str = 0.0, rank: int = 0) -> str:
    """What was done to a span's adapters: `switched off`, `scaled by 0.5`, `cut to rank 2`, `kept on`."""
    if study == "kept":
        return "kept on"
    if rank:
        return f"cut to rank {rank}"
    if isinstance(strength, str):
        return f"scaled {strength}"
    return f"scaled by {strength_text(strength)}" if strength else "switched off"


def best_span_text(study: str, strength: float | str = 0.0, rank: int = 0) -> str:
    """What the longest or shortest span within a tolerance is called; see `done_text`."""
    return f"{'shortest' if study == 'kept' else 'longest'} span {done_text(study, strength, rank)}"


# Names that papers print otherwise than data sets and harnesses write them; GLUE and SQuAD are known tasks.
_PRINTED = {
    "ag news": "AG News", "arc": "ARC", "arc challenge": "ARC-Challenge", "arc easy": "ARC-Easy",
    "blimp": "BLiMP", "boolq": "BoolQ", "hellaswag": "HellaSwag", "imdb": "IMDb", "lambada": "LAMBADA",
    "lambada openai": "LAMBADA", "mmlu": "MMLU", "openbookqa": "OpenBookQA", "piqa": "PIQA", "trec": "TREC",
    "wikitext": "WikiText", "winogrande": "WinoGrande",
}  # fmt: skip


@cache
def _written(metric: str | None) -> Metric:
    """How a metric is written."""
    from adapter_probe.metrics import Metric, about

    return Metric("score", in_percent=False) if metric is None else about(metric)


def _kind(metric: str | None) -> TaskKind:
    """The kind of task whose examples a metric scores."""
    from adapter_probe.kinds.table import about_metric

    return about_metric("accuracy" if metric is None else metric)


def printable(name: str) -> str:
    """A name on one line; control characters, which are invalid in SVG, are replaced."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(name.split()))


def task_label(name: str) -> str:
    """A name as papers print it: `CoLA`; other tasks with blanks for underscores, files as they are."""
    from adapter_probe.known_tasks import known_task

    if known := known_task(name):
        return known.label
    if "." in name:
        return printable(name)
    spaced = printable(name.replace("_", " "))
    return _PRINTED.get(spaced.lower().replace("-", " "), spaced) or "task"


def metric_name(metric: str | None) -> str:
    """The name of the metric; `score` if it is unknown or differs between studies."""
    return _written(metric).words


def is_loss(metric: str | None) -> bool:
    """Whether less is better."""
    return _written(metric).less_is_better


def is_distance(metric: str | None) -> bool:
    """Whether changes are distances from the intact model's outputs, which are neither better nor worse."""
    return bool(_written(metric).distance)


def _can_be_small(metric: str | None) -> bool:
    """Whether a distance can be small without being nothing; the least disagreement is one prediction."""
    return is_distance(metric) and not _written(metric).in_percent


def is_percentage(metric: str | None) -> bool:
    """Whether a score is written in percent, such as accuracy or F1; a distance is no score."""
    return _written(metric).in_percent and not is_distance(metric)


def own_unit(metric: str | None) -> str:
    """The metric if its changes are not in points but in a unit of their own, without an end; else empty."""
    if _written(metric).unit is None:
        return ""
    return str(metric) if str(metric).isidentifier() else "-".join(metric_name(metric).split())


def drop_name(metric: str | None) -> str:
    """The name of a change for the worse: a drop of a score, a rise of a loss; or that of a distance."""
    return _written(metric).distance or ("rise" if is_loss(metric) else "drop")


def unit_name(metric: str | None) -> str:
    """The unit of drops on axes: a hundredth of the score or of the loss's unit."""
    written = _written(metric)
    if written.in_percent:
        return "percentage points"
    if written.unit is None:
        return "score × 100"
    return f"0.01 {written.unit}" if written.unit else "× 100"


def score_text(score: float | None, metric: str | None) -> str:
    """A score without its name: `74.2%`, `0.362`, `3.214 nats`; `undefined` for None and NaN."""
    if score is None or math.isnan(score):
        return "undefined"
    written = _written(metric)
    if written.in_percent:
        return f"{rounded(100 * score)}%"
    return f"{number_text(score, metric, 3)} {written.unit or ''}".rstrip()


def named_score(score: float | None, metric: str | None) -> str:
    """A score with its name: `74.2% accuracy`, `Matthews correlation 0.362`."""
    written, text = _written(metric), score_text(score, metric)
    return f"{text} {written.words}" if written.in_percent else f"{written.words} {text}"


def amount_text(points: float, metric: str | None) -> str:
    """A number of points with its unit: `1.2 points`, `−0.3 points`; of a loss, `0.017 nats`.

    A small divergence or cosine distance keeps two significant digits: `3.1e−6 nats`, `0.035 points`.
    """
    unit = _written(metric).unit
    if unit is not None:
        return f"{number_text(points / 100, metric, 3)} {unit}".rstrip()
    text = number_text(points, metric)
    return f"{text} point{'' if text == '1.0' else 's'}"


def interval_text(low: float, high: float, metric: str | None) -> str:
    """An interval of points, its unit once: `0.2 to 1.0 points`."""
    unit = _written(metric).unit
    if unit is not None:
        ends = (number_text(end / 100, metric, 3) for end in (low, high))
        return f"{' to '.join(ends)} {unit}".rstrip()
    return f"{number_text(low, metric)} to {number_text(high, metric)} points"


def number_text(value: float, metric: str | None, digits: int = 1) -> str:
    """A number with this many decimals, or if it is a small distance with two significant digits."""
    if _can_be_small(metric) and 0 < abs(value) < 10 ** (1 - digits):
        return significant(value, 2)
    return rounded(value, digits)


def with_minus(text: str) -> str:
    """A number as Python writes it, with signs of minus and without a zero before the exponent: `3e−6`."""
    return text.replace("e-0", "e-").replace("-", "−")


def drop_text(drop: float | None, metric: str | None) -> str:
    """A drop in a sentence: `drop 38.9 points`, `gain 0.3 points`; of a loss, `rise 0.017 nats`, `fall ...`.

    A distance has one name for all sizes: `KL divergence 0.017 nats`, `disagreement 3.1 points`.

    Args:
        drop: points, positive for the worse; None or NaN if undefined.
    """
    if drop is None or math.isnan(drop):
        return "undefined"
    if is_distance(metric):
        return f"{drop_name(metric)} {amount_text(drop, metric)}"
    worse, better = ("rise", "fall") if is_loss(metric) else ("drop", "gain")
    size = amount_text(abs(drop), metric)
    gained = drop < 0 and number_of(size.split()[0]) != 0
    return f"{better if gained else worse} {size}"


def cell_text(drop: float, metric: str | None = None, *, whole: bool = False) -> str:
    """A drop in a cell: `1.2`, `12.5`; a gain is a negative drop, `−0.3`. Empty for NaN.

    A distance that would round to 0.0 has one significant digit: `0.04`, `3e−5`.

    Args:
        whole: whether numbers from 10 points have no decimal, for cells without room: `12`.
    """
    if math.isnan(drop):
        return ""
    if _can_be_small(metric) and 0 < abs(drop) < 0.05:
        one = number_of(significant(drop, 1))
        return rounded(drop, 2) if abs(one) >= 0.01 else with_minus(f"{one:.0e}")
    text = rounded(drop)
    return rounded(drop, 0) if whole and abs(number_of(text)) >= 10 else text


def rounded(value: float, digits: int = 1) -> str:
    """A number with so many decimals, halves away from zero: `13.5`, `−0.3`, and `0.0`, never `−0.0`."""
    if not math.isfinite(value):
        return with_minus(f"{value}")
    text = f"{_decimal(value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP):f}"
    return text.lstrip("-") if float(text) == 0 else with_minus(text)


def significant(value: float, digits: int) -> str:
    """A number with so many significant digits, halves away from zero: `0.035`, `3e−6`."""
    shown = Context(digits, ROUND_HALF_UP).plus(_decimal(value))
    return with_minus(f"{float(shown):.{digits}g}")


def _decimal(value: float) -> Decimal:
    return Decimal(f"{value:.{_EXACT}g}")


def number_of(text: str) -> float:
    """The number that a text of this module prints: -0.3 of `−0.3`; NaN of an empty one."""
    return float(text.replace("−", "-") or "nan")


def signed(value: float, digits: int = 1) -> str:
    """A difference with its sign: `−5.1`, `+0.3`, and `0.0` for values that round to zero."""
    text = rounded(value, digits)
    return f"+{text}" if value > 0 and number_of(text) else text


def tolerance_text(points: float, metric: str | None = None) -> str:
    """A tolerance: `1 point`, `0.5 points`; of a loss, whose points are hundredths, `0.01 nats`."""
    unit = _written(metric).unit
    if unit is not None:
        return f"{points / 100:g} {unit}".rstrip()
    return f"{points:g} point{'' if points == 1 else 's'}"


def drop_label(metric: str | None, scored: str = "") -> str:
    """Label of an axis or colour bar: `drop in validation accuracy (percentage points)`; see `change_of`."""
    return f"{change_of(metric, scored)} ({unit_name(metric)})"


def change_of(metric: str | None, scored: str = "") -> str:
    """What is drawn of a metric: `drop in validation accuracy`, `disagreement with the intact model`.

    `scored` is the metric with its data, by default its name; without a metric, panels have several.
    """
    name = scored or metric_name(metric)
    if is_distance(metric):
        return name.replace("agreement", "disagreement", 1).replace("cosine similarity", "cosine distance", 1)
    return f"{drop_name(metric)} in {name}"


def sentence(text: str) -> str:
    """A text with its first letter in upper case; `str.capitalize` would change the others."""
    return text[:1].upper() + text[1:]


def score_axis(metric: str | None) -> tuple[float, str]:
    """The factor of a score on an axis, and the axis label without the split."""
    if metric is None:
        return 100.0, "score × 100"
    written = _written(metric)
    unit = "%" if written.in_percent else written.unit
    return (100.0 if written.in_percent else 1.0), written.words + (f" ({unit})" if unit else "")


def count_text(n: int, noun: str) -> str:
    """A count with its noun: `1 seed`, `9,815 examples`."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def examples_text(n: int, metric: str | None) -> str:
    """A number of examples: `9,815 examples`; of tagged words `3,250 sentences`."""
    kind = _kind(metric)
    return f"{n:,} {kind.example if n == 1 else kind.examples}"


def drawn_units(metric: str | None) -> str:
    """What the bootstrap weighs; questions on a paragraph, or words of a sentence, are not independent."""
    return _kind(metric).drawn


def share_text(percent: float) -> str:
    """A percentage without its sign: `2.2`, `0.035`, `100`; a dash if undefined."""
    if math.isnan(percent):
        return "–"
    return rounded(percent).removesuffix(".0") if percent >= 1 else significant(percent, 2)


def percent_text(percent: float) -> str:
    """A percentage with its sign: `2.2%`; a dash if undefined."""
    return "–" if math.isnan(percent) else f"{share_text(percent)}%"


def range_text(values: list[int], noun: str) -> str:
    """A range of counts with its noun: `3 seeds`, `2–3 seeds`."""
    low, high = min(values), max(values)
    return count_text(high, noun) if low == high else f"{low}–{high} {noun}s"


def span_text(first: int, last: int) -> str:
    """The layers of a span: `3`, `3–5`."""
    return str(first) if first == last else f"{first}–{last}"


def layers_text(first: int, last: int) -> str:
    """The layers of a span in a sentence: `layer 3`, `layers 3–5`."""
    return f"layer{'' if first == last else 's'} {span_text(first, last)}"


def common_value(values: Iterable[str | None]) -> str | None:
    """The value that all have in common; None if they differ."""
    found = set(values)
    return found.pop() if len(found) == 1 else None


def interval_method(*metrics: str | None, parts: bool = False) -> str:
    """How the intervals of changes of these scores are computed, see `adapter_probe.analysis.significance`.

    Args:
        parts: whether they are of interactions, shares or differences, of which an example can change twice
            as much as another.
    """
    found = {}
    for metric in metrics:
        bootstrap, written = f"by the {_bootstrap(metric)}", _written(metric)
        if not (written.is_proportion or written.is_bounded_mean):
            found[bootstrap] = None
        elif parts or written.is_bounded_mean:
            alike = f"where all {drawn_units(metric)} that change anything change it by the same amount"
            found[f"{bootstrap}, exact (Fay and Lumbard 2021) {alike}"] = None
        else:
            found["by the exact method of Fay and Lumbard (2021)"] = None
    return " or ".join(found)


def named_test(metric: str | None, parts: bool = False) -> str:
    """The test behind p-values of changes of a score; `parts` as in `interval_method`."""
    exact, bounded = significance_test(metric) == "McNemar", _written(metric).is_bounded_mean
    if exact and not parts and not bounded:
        return "an exact two-sided McNemar test of its predictions against the intact model's"
    found = f"a two-sided paired test by the {_bootstrap(metric)}"
    if exact or bounded:
        units = drawn_units(metric)
        found += f", or the sign test where all {units} that change anything change it by the same amount"
    return found


def _bootstrap(metric: str | None) -> str:
    """The bootstrap and what it is over; functions of one's own are called with resamples."""
    from adapter_probe.custom_metric import CUSTOM

    name = "bootstrap" if metric is not None and metric.startswith(CUSTOM) else "Bayesian bootstrap"
    return f"{name} over {drawn_units(metric)} and one more that stands for unseen ones (Gaffke 2005)"


def significance_test(metric: str | None) -> str | None:
    """The test behind the p-values of an ablation, as `adapter_probe.analysis.significance` chooses it."""
    if metric is None or is_distance(metric):
        return None
    return "McNemar" if _written(metric).is_proportion else "bootstrap"
