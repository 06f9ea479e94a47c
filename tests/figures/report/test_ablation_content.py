from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adapter_probe.analysis.deltas import drop_points, span_scores
from adapter_probe.errors import ResultsError
from adapter_probe.figures.levels import DropScale
from adapter_probe.figures.report.ablation import (
    CheckpointFacts,
    ablation_content,
    joint_scale,
    read_ablation,
)
from adapter_probe.figures.report.examples import Texts
from adapter_probe.results.ablation import load_ablation, read_spans, save_predictions, write_spans


def content_of(folder: Path, **changes: object) -> dict:
    ablation = replace(read_ablation(folder), **changes)
    content = ablation_content(ablation, joint_scale([ablation.drops]), joint_scale([ablation.interactions]))
    return json.loads(json.dumps(content, allow_nan=False))


def rows(table: dict) -> list[dict]:
    return [dict(zip(table["columns"], row)) for row in table["rows"]]


def test_every_span_has_its_numbers(make_ablation: Callable[..., Path]):
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


def test_layers_come_with_their_shares(make_ablation: Callable[..., Path]):
    layers = rows(content_of(make_ablation())["layers"])
    assert [layer["layer"] for layer in layers] == list(range(6))
    assert layers[5]["share_points"] == 9
    assert layers[5]["share_high_points"] == 10.5


def test_an_older_folder_lacks_the_statistics_and_nothing_else(make_ablation: Callable[..., Path]):
    content = content_of(make_ablation(statistics=False))
    assert content["layers"] is None
    assert set(content["spans"]["columns"]) == {
        "first", "last", "score", "delta_points", "drop", "level", "to_wrong", "to_right",
    }  # fmt: skip


def test_the_table_of_spans_alone_is_enough(make_ablation: Callable[..., Path]):
    folder = make_ablation(statistics=False, bare=True)
    content = content_of(folder)
    assert content["task"] == content["name"] == f"{folder.parent.name}/ablation"
    assert content["metric"] == "score"
    assert "to_wrong" not in content["spans"]["columns"]
    assert content["settings"] == []


def test_a_missing_summary_is_computed(make_ablation: Callable[..., Path]):
    folder = make_ablation()
    expected = content_of(folder)
    (folder / "summary.json").unlink()
    assert content_of(folder) == expected


def test_an_undefined_delta_has_no_level(make_ablation: Callable[..., Path]):
    folder = make_ablation(n_layers=3)
    frame = read_spans(folder)
    frame.loc[1, ["score", "delta_points"]] = np.nan
    write_spans(folder, frame)
    row = rows(content_of(folder)["spans"])[1]
    assert (row["drop"], row["level"], row["score"]) == (None, None, None)


@pytest.mark.parametrize(("sites", "expected"), [("both", [3, 7]), ("attention", [1, 3]), ("ffn", [2, 4])])
def test_parameters_are_those_of_the_switched_sites(
    make_ablation: Callable[..., Path], sites: str, expected: list
):
    folder = make_ablation(n_layers=2, sites=sites)
    facts = CheckpointFacts({}, ((1, 2), (3, 4)))
    content = content_of(folder, checkpoint=facts)
    assert (content["sites"], content["parameters"]) == (sites, expected)


def test_settings_say_what_made_the_numbers_but_not_where_it_lay(make_ablation: Callable[..., Path]):
    record = {
        "method": {"name": "adapters", "size": 64},
        "base": {"name": "/home/somebody/models/gte-small", "revision": None},
        "task": {"files": {"train": ["/home/somebody/private.tsv"]}},
    }
    content = content_of(make_ablation(), checkpoint=CheckpointFacts(record))
    settings = dict(content["settings"])
    assert settings["checkpoint.method.size"] == "64"
    assert settings["checkpoint.base.name"] == "gte-small"
    assert settings["run.identity.checkpoint.delta_sha256"] == "ab" * 32
    assert "somebody" not in json.dumps(content)
    hub = CheckpointFacts({"base": {"name": "thenlper/gte-small"}})
    assert (
        dict(content_of(make_ablation(), checkpoint=hub)["settings"])["checkpoint.base.name"]
        == "thenlper/gte-small"
    )


def test_no_text_without_being_asked(make_ablation: Callable[..., Path]):
    assert content_of(make_ablation())["examples"] is None


def test_texts_that_flip_come_with_what_was_said(make_ablation: Callable[..., Path]):
    folder = make_ablation(labels=("a", "b", "c"))
    results = load_ablation(folder)
    texts = tuple(f"text {i}" for i in range(80))
    content = content_of(folder, texts=Texts(texts, texts[::-1]))
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


def test_more_classes_than_digits(make_ablation: Callable[..., Path]):
    labels = tuple(f"class {i}" for i in range(40))
    folder = make_ablation(n_layers=2, labels=labels)
    content = content_of(folder, texts=Texts(("x",) * 80))
    said = load_ablation(folder).logits.argmax(-1)
    kept = [n - 1 for n in content["examples"]["numbers"]]
    assert content["examples"]["predictions"][0] == said[1, kept].tolist()


def test_texts_of_other_examples_are_refused(make_ablation: Callable[..., Path]):
    with pytest.raises(ResultsError, match="3 texts do not fit predictions of 80 examples"):
        content_of(make_ablation(), texts=Texts(("a", "b", "c")))


def test_a_regression_has_no_flips(make_ablation: Callable[..., Path], tmp_path: Path):
    results = load_ablation(make_ablation(n_layers=3))
    targets = np.linspace(0, 1, 80)
    outputs = (targets + np.random.default_rng(0).normal(size=(7, 80)))[..., None].astype(np.float32)
    results = replace(
        results, kind="regression", metric="pearson", label_names=(), labels=targets, logits=outputs
    )
    write_spans(tmp_path, span_scores(results))
    save_predictions(tmp_path, results)
    content = content_of(tmp_path, texts=Texts(("x",) * 80))
    assert "to_wrong" not in content["spans"]["columns"]
    assert (content["examples"], content["percent"]) == (None, False)


def test_questions_come_with_the_answers_they_got(questions: tuple[Path, Texts]):
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


def test_a_damaged_file_is_named(make_ablation: Callable[..., Path]):
    folder = make_ablation(n_layers=2)
    (folder / "predictions.npz").write_bytes(b"x" * 100)
    with pytest.raises(ResultsError, match=r"predictions\.npz is damaged"):
        read_ablation(folder)
