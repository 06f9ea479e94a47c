from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from adapter_probe.analysis.deltas import drop_points, span_grid, span_scores
from adapter_probe.analysis.removable import tolerance_border
from adapter_probe.analysis.summary import summarise
from adapter_probe.errors import ResultsError
from adapter_probe.figures.levels import DropScale
from adapter_probe.figures.report.ablation_section import ReportedAblation, ablation_content, joint_scale
from adapter_probe.figures.report.changed_examples import ExampleTexts
from adapter_probe.metrics import score
from adapter_probe.results.ablation_files import load_ablation, read_spans, save_predictions, write_spans
from adapter_probe.results.atomic import write_json
from adapter_probe.wording import drop_label


@pytest.fixture(scope="module")
def content_of(reported: Callable[..., ReportedAblation]) -> Callable[..., dict]:
    """``content_of(folder, ...) -> content`` as the page reads it."""

    def make(folder: Path, **more: object) -> dict:
        ablation = reported(folder, **more)
        scales = joint_scale([ablation.drops]), joint_scale([ablation.interactions])
        return json.loads(json.dumps(ablation_content(ablation, *scales, 1.0), allow_nan=False))

    return make


def rows(table: dict) -> list[dict]:
    return [dict(zip(table["columns"], row)) for row in table["rows"]]


def test_every_span_has_its_numbers(content_of, make_ablation: Callable[..., Path]):
    folder = make_ablation()
    frame, results = read_spans(folder), load_ablation(folder)
    content = content_of(folder)
    said = results.logits.argmax(-1)
    levels = DropScale.spanning(drop_points(frame["delta_points"])).levels(drop_points(frame["delta_points"]))
    for index, row in enumerate(rows(content["spans"])):
        given = frame.iloc[index]
        variant = results.row_names.index(f"{row['first']}-{row['last']}")
        was, now = (said[v] == results.labels for v in (0, variant))
        assert (row["first"], row["last"], row["level"]) == (given["first"], given["last"], levels[index])
        for name in ("score", "delta_points", "ci_low_points", "ci_high_points", "interaction_points"):
            assert row[name] == pytest.approx(given[name], abs=1e-6)
        assert row["drop"] == pytest.approx(-given["delta_points"], abs=1e-6)
        assert row["p_holm"] == pytest.approx(given["p_holm"], rel=0.01)
        assert row["significant"] is bool(given["significant"])
        assert row["to_wrong"] == sum(was & ~now)
        assert row["to_right"] == sum(~was & now)
        assert (row["to_right"] - row["to_wrong"]) / 80 * 100 == pytest.approx(row["delta_points"], abs=1e-6)
    assert content["nLayers"] == 6
    assert (content["metric"], content["percent"], content["study"]) == ("accuracy", True, "ablated")
    assert content["intact_score"] == pytest.approx(np.mean(said[0] == results.labels), abs=1e-6)


def test_layers_come_with_their_shares(content_of, make_ablation: Callable[..., Path]):
    content = content_of(make_ablation())
    layers = content["layers"]["table"]
    assert [row[0] for row in layers["rows"]] == list("012345")
    assert layers["rows"][5][layers["columns"].index("share of the drop (points)")] == "+9.00"
    assert layers["rows"][5][-1] == "+10.50"
    svg = base64.b64decode(content["layers"]["figure"]["source"].removeprefix("data:image/svg+xml;base64,"))
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert b"<metadata>" not in svg


@pytest.mark.parametrize("complement", [False, True])
def test_the_slider_shows_the_best_span_and_the_border_at_each_step(content_of, make_ablation, complement):
    folder = make_ablation(complement=complement)
    frame, steps = read_spans(folder), content_of(folder)["steps"]
    spans = list(frame.itertuples())
    tolerances = [step["tolerance"] for step in steps]
    assert tolerances == sorted({*tolerances, 0.0, 0.5, 1.0, 1.9, 2.0})
    for step in steps:
        for basis, column in (("estimate", "delta_points"), ("bound", "ci_low_points")):
            fits = [s for s in spans if round(-getattr(s, column), 9) <= step["tolerance"]]
            sign = 1 if complement else -1
            best = min(
                fits, key=lambda s: (sign * s.n_layers, round(-s.delta_points, 9), s.first), default=None
            )
            assert step[basis] == (None if best is None else best.Index)
        drops = drop_points(span_grid(frame))
        assert step["within"] == np.nansum(drops <= step["tolerance"])
        edges = set()
        for x, y, way, end in re.findall(r"M(\d+) (\d+)([VH])(\d+)", step["stairs"]):
            edges.add(((int(x), int(y)), (int(x), int(end)) if way == "V" else (int(end), int(y))))
        assert edges == set(tolerance_border(drops, step["tolerance"]))


def test_layers_without_adapters_do_not_make_a_span_longer(reported, make_ablation: Callable[..., Path]):
    """As in the table of removable spans: of two spans, the one with more adapters is the longer one."""
    ablation = reported(make_ablation())
    spans = ablation.record.spans
    pairs = list(zip(spans["first"], spans["last"]))
    cost = np.array([{(0, 3): -0.2, (4, 5): -0.3}.get(pair, -50.0) for pair in pairs])
    spans = spans.assign(delta_points=cost, ci_low_points=cost)
    for parameters, longest in ((None, (0, 3)), ((9,) * 6, (0, 3)), ((9, 0, 0, 0, 9, 9), (4, 5))):
        overview = replace(ablation.record.overview, layer_parameters=parameters)
        record = replace(ablation.record, spans=spans, overview=overview)
        scales = (joint_scale([cost]),) * 2
        steps = ablation_content(replace(ablation, record=record), *scales, 1.0)["steps"]
        (step,) = (step for step in steps if step["tolerance"] == 1)
        assert [pairs[step[basis]] for basis in ("estimate", "bound")] == [longest] * 2


def test_an_undefined_delta_has_no_level(content_of, make_ablation: Callable[..., Path]):
    folder = make_ablation(n_layers=3)
    frame = read_spans(folder)
    frame.loc[1, ["score", "delta_points"]] = np.nan
    write_spans(folder, frame)
    row = rows(content_of(folder)["spans"])[1]
    assert (row["drop"], row["level"], row["score"]) == (None, None, None)


@pytest.mark.parametrize(
    ("sites", "expected"), [("both", [250] * 2), ("attention", [100] * 2), ("ffn", [150] * 2)]
)
def test_parameters_are_those_of_the_switched_sites(
    content_of, make_ablation: Callable[..., Path], sites: str, expected: list
):
    folder = make_ablation(n_layers=2, sites=sites)
    content = content_of(folder)
    assert (content["sites"], content["parameters"]) == (sites, expected)


def test_settings_say_what_made_the_numbers_but_not_where_it_lay(
    content_of, make_ablation: Callable[..., Path]
):
    record = {
        "method": {"name": "adapters", "size": 64},
        "base": {"name": "/home/somebody/models/gte-small", "revision": None},
        "task": {"files": {"train": ["/home/somebody/private.tsv"]}},
    }
    content = content_of(make_ablation(), checkpoint=record)
    settings = dict(content["settings"])
    assert settings["checkpoint.method.size"] == "64"
    assert settings["checkpoint.base.name"] == "gte-small"
    assert settings["run.identity.checkpoint.delta_sha256"] == "ab" * 32
    assert "somebody" not in json.dumps(content)
    hub = {"base": {"name": "thenlper/gte-small"}}
    assert (
        dict(content_of(make_ablation(), checkpoint=hub)["settings"])["checkpoint.base.name"]
        == "thenlper/gte-small"
    )


def test_no_text_without_being_asked(content_of, make_ablation: Callable[..., Path]):
    assert content_of(make_ablation())["examples"] is None


def test_texts_that_flip_come_with_what_was_said(content_of, make_ablation: Callable[..., Path]):
    folder = make_ablation(labels=("a", "b", "c"))
    results = load_ablation(folder)
    texts = tuple(f"text {i}" for i in range(80))
    content = content_of(folder, texts=ExampleTexts(texts, texts[::-1]))
    examples, spans = content["examples"], rows(content["spans"])
    said = results.logits.argmax(-1)
    right = said == results.labels
    flipping = [i for i in range(80) if len(set(right[:, i])) == 2]
    assert [n - 1 for n in examples["numbers"]] == flipping
    assert examples["texts"] == [f"text {i}" for i in flipping]
    assert examples["textsB"] == [f"text {79 - i}" for i in flipping]
    assert examples["labels"] == results.labels[flipping].tolist()
    assert examples["intact"] == said[0, flipping].tolist()
    for span, packed in zip(spans, examples["predictions"]):
        variant = results.row_names.index(f"{span['first']}-{span['last']}")
        assert [int(digit, 36) for digit in packed] == said[variant, flipping].tolist()


def test_more_classes_than_digits(content_of, make_ablation: Callable[..., Path]):
    labels = tuple(f"class {i}" for i in range(40))
    folder = make_ablation(n_layers=2, labels=labels)
    content = content_of(folder, texts=ExampleTexts(("x",) * 80))
    said = load_ablation(folder).logits.argmax(-1)
    kept = [n - 1 for n in content["examples"]["numbers"]]
    assert content["examples"]["predictions"][0] == said[1, kept].tolist()


def test_texts_of_other_examples_are_refused(content_of, make_ablation: Callable[..., Path]):
    with pytest.raises(ResultsError, match="3 texts do not fit predictions of 80 examples"):
        content_of(make_ablation(), texts=ExampleTexts(("a", "b", "c")))


def test_a_regression_has_no_flips(content_of, make_ablation: Callable[..., Path], tmp_path: Path):
    results = load_ablation(make_ablation(n_layers=3))
    targets = np.linspace(0, 1, 80)
    outputs = (targets + np.random.default_rng(0).normal(size=(7, 80)))[..., None].astype(np.float32)
    results = replace(
        results, kind="regression", metric="pearson", label_names=(), labels=targets, logits=outputs
    )
    write_spans(tmp_path, span_scores(results))
    save_predictions(tmp_path, results)
    write_json(tmp_path / "summary.json", {"task": "t", "split": "validation", **summarise(results)})
    content = content_of(tmp_path, texts=ExampleTexts(("x",) * 80))
    assert "to_wrong" not in content["spans"]["columns"]
    assert (content["examples"], content["percent"]) == (None, False)


def test_questions_come_with_the_answers_they_got(content_of, questions: tuple[Path, ExampleTexts]):
    folder, texts = questions
    results = load_ablation(folder)
    content = content_of(folder, texts=texts)
    examples, spans = content["examples"], rows(content["spans"])
    match = results.logits[..., 1] == 1
    assert content["exactMatch"] is True
    assert len(examples["numbers"]) > 10
    for place, number in enumerate(examples["numbers"]):
        i = number - 1
        assert (examples["texts"][place], examples["textsB"][place]) == (texts.texts[i], texts.texts_b[i])
        assert examples["truths"][place] == texts.truths[i]
        given = [examples["intact"][place], *(int(packed[place], 36) for packed in examples["predictions"])]
        words = [texts.texts_b[i][start:end] if start >= 0 else "" for start, end in results.answers[:, i]]
        options = [examples["options"][place][option] for option in given]
        assert options == [[word, bool(hit)] for word, hit in zip(words, match[:, i])]
    for variant, span in enumerate(spans, 1):
        assert span["to_wrong"] == (match[0] & ~match[variant]).sum()
        assert span["to_right"] == (~match[0] & match[variant]).sum()


def test_groups_of_layers_stand_side_by_side(content_of, tmp_path: Path):
    units = [(2, 3), (4, 5), (6, 7)]  # layers 0 and 1 have no adapters
    rows_of = [(units[i][0], units[j][1]) for i in range(3) for j in range(i, 3)]
    frame = pd.DataFrame(rows_of, columns=["first", "last"])
    frame = frame.assign(
        n_layers=frame["last"] - frame["first"] + 1,
        score=0.8,
        delta_points=[0.0, -2, -3, 0, -4, 0],
        n_examples=9,
    )
    write_spans(tmp_path, frame)
    summary = {
        "task": "t", "split": "validation", "study": "ablated", "metric": "accuracy", "n_examples": 9,
        "n_layers": 8, "intact_score": 0.8, "removed_delta_points": -3.0, "majority_score": 0.5,
    }  # fmt: skip
    write_json(tmp_path / "summary.json", summary)
    content = content_of(tmp_path)
    assert content["units"] == [list(unit) for unit in units]
    places = [(row["down"], row["across"]) for row in rows(content["spans"])]
    assert places == [(i, j) for i in range(3) for j in range(i, 3)]
    (step,) = (step for step in content["steps"] if step["tolerance"] == 1)
    assert (step["estimate"], step["within"]) == (0, 3)
    assert step["stairs"] == "M1 0V1M2 1V2M1 1H2M2 2H3"


def test_a_warning_of_the_summary_comes_along(content_of, make_ablation):
    folder = make_ablation(n_layers=2)
    assert content_of(folder)["warning"] is None
    said = json.loads((folder / "summary.json").read_text())
    write_json(folder / "summary.json", {"warning": "The spans mean nothing.", **said})
    assert content_of(folder)["warning"] == "The spans mean nothing."


@pytest.mark.parametrize(
    ("metric", "unit"), [("nll", "0.01 nats"), ("bits_per_byte", "0.01 bits"), ("perplexity", "0.01")]
)
def test_a_loss_rises_in_its_own_unit(content_of, make_loss: Callable[[str], Path], metric, unit):
    folder = make_loss(metric)
    content, frame, results = content_of(folder), read_spans(folder), load_ablation(folder)
    assert content["dropLabel"] == drop_label(metric)
    assert (content["dropName"], content["unit"]) == ("rise", unit)
    assert content["lossUnit"] == unit.removeprefix("0.01").strip()
    scores = score(metric, results.predictions, results.labels)
    off = next(row for row, mask in enumerate(results.masks) if not mask.any())
    assert content["removed_score"] == pytest.approx(scores[off], abs=2e-6)
    assert content["removed_score"] > content["intact_score"] + 0.1, "the loss rises"
    layers = content["layers"]
    assert layers["heading"] == "Which layers carry the rise"
    assert layers["table"]["columns"][1] == f"change off alone ({unit})"
    assert f"share of the rise ({unit})" in layers["table"]["columns"]
    for row, single in zip(layers["table"]["rows"], frame[frame["n_layers"] == 1].itertuples(), strict=True):
        rises = [-single.delta_points, -single.ci_high_points, -single.ci_low_points]
        assert [float(cell.replace("−", "-")) for cell in row[1:4]] == pytest.approx(rises, abs=0.006)
