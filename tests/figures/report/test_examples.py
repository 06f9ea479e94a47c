"""Outcomes, confusion matrices and the list of examples against the predictions they come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ablation_facts import changed
from refusals import naming
from sklearn.metrics import confusion_matrix

from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis.score_changes import span_scores
from adapter_probe.errors import ResultsError
from adapter_probe.figures.report.examples import ExampleTexts, confusion, examples_content, flip_counts
from adapter_probe.figures.report.markup import render
from adapter_probe.kinds.table import scored_of
from adapter_probe.results.ablation_files import load_ablation, read_spans

TEXTS = ExampleTexts(tuple(f"text {i}" for i in range(80)), tuple(f"second {i}" for i in range(80)))


@pytest.fixture(scope="module")
def results_of(make_ablation: Callable[..., Path]) -> Callable[..., AblationResults]:
    """``results_of(...) -> results`` with logits that are not all ones and zeros."""

    def make(**more: object) -> AblationResults:
        results = load_ablation(make_ablation(n_layers=4, **more))
        scale = np.random.default_rng(3).gamma(2, 1, (*results.outputs.shape[:2], 1)).astype(np.float32)
        return changed(results, outputs=results.outputs * scale)

    return make


def unpack(packed: str | list[int]) -> list[int]:
    return [int(digit, 36) for digit in packed] if isinstance(packed, str) else packed


def variants(results: AblationResults) -> list[int]:
    frame = span_scores(results)
    return [results.row_names.index(f"{a}-{b}") for a, b in zip(frame["first"], frame["last"])]


@pytest.mark.parametrize("n_classes", [2, 3, 15])
def test_confusion_matrices_are_scikit_learns(results_of, n_classes: int):
    labels = tuple(f"class {i}" for i in range(n_classes))
    results = results_of(labels=labels)
    found, said = confusion(results, span_scores(results)), results.outputs.argmax(-1)
    if n_classes == 15:  # the rarest are one class
        assert len(found["names"]) == 12
        kept = [labels.index(name) for name in found["names"][:-1]]
        place = {old: new for new, old in enumerate(kept)}
        counts = np.bincount(results.scored_with, minlength=15)
        assert counts[kept].min() >= np.delete(counts, kept).max()
        truth, said = (np.vectorize(lambda i: place.get(i, 11))(one) for one in (results.scored_with, said))
    else:
        truth = results.scored_with
        assert found["names"] == list(labels)
    n = len(found["names"])
    for got, row in zip([found["intact"], *found["rows"]], [0, *variants(results)]):
        assert (
            np.array(got, int).reshape(n, n).tolist()
            == confusion_matrix(truth, said[row], labels=range(n)).tolist()
        )


def test_examples_come_with_what_was_said_and_how_surely(results_of):
    results = results_of(labels=("a", "b", "c"))
    found, said = examples_content(results, span_scores(results), TEXTS), results.outputs.argmax(-1)
    right = said == results.scored_with
    flipping = [i for i in range(80) if len(set(right[:, i])) == 2]
    assert [n - 1 for n in found["numbers"]] == flipping
    assert found["texts"] == [f"text {i}" for i in flipping]
    assert found["second"] == [f"second {i}" for i in flipping]
    assert found["truth"] == ["abc"[results.scored_with[i]] for i in flipping]
    column = found["columns"]["label"]
    assert [column["values"][place] for place in column["places"]] == found["truth"]
    shares = np.exp(results.outputs.astype(float))
    shares /= shares.sum(-1, keepdims=True)
    for packed, row in zip([found["intact"], *found["rows"]], [0, *variants(results)]):
        assert unpack(packed["said"]) == said[row, flipping].tolist()
        assert unpack(packed["right"]) == right[row, flipping].astype(int).tolist()
        for place, i in enumerate(flipping):
            share, label = shares[row, i], results.scored_with[i]
            word = found["words"][int(packed["margins"][2 * place : 2 * place + 2], 36)]
            assert float(word.replace("−", "-")) == pytest.approx(
                share[label] - np.delete(share, label).max(), abs=5.1e-3
            )
    changed = (right[1:] != right[0])[:, flipping].sum(axis=0)
    assert found["changes"] == changed.tolist()


def test_counts_of_changed_examples(results_of):
    results = results_of()
    right = results.outputs.argmax(-1) == results.scored_with
    expected = [(sum(right[0] & ~right[row]), sum(~right[0] & right[row])) for row in variants(results)]
    assert flip_counts(results, span_scores(results)) == expected


def test_columns_of_the_data_can_be_chosen_by(results_of):
    results = results_of()
    kinds = tuple("xyz"[i % 3] for i in range(80))
    found = examples_content(results, span_scores(results), replace(TEXTS, metadata={"kind": kinds}))
    column = found["columns"]["kind"]
    assert [column["values"][place] for place in column["places"]] == [kinds[n - 1] for n in found["numbers"]]
    card = render("examples", found=found)
    assert all(f'<option value="{i}">{name}</option>' in card for i, name in enumerate("xyz"))


def test_more_classes_than_digits(results_of):
    results = results_of(labels=tuple(f"class {i}" for i in range(40)))
    found = examples_content(results, span_scores(results), TEXTS)
    kept = [n - 1 for n in found["numbers"]]
    assert found["rows"][0]["said"] == results.outputs.argmax(-1)[variants(results)[0], kept].tolist()


def test_written_texts_whose_outcome_never_changes_are_not_listed(results_of):
    results = results_of()
    variants = len(results.masks)
    own = {"outputs": np.zeros((variants, 80, 1), np.float32), "scored_with": np.zeros(80, np.int64)}
    results = replace(results, scored=scored_of("causal", "text_match", (), own))
    texts = replace(TEXTS, written=(("a",) * 80,) * variants, truths=("b",) * 80)
    found = examples_content(results, span_scores(results), texts)
    assert (found["numbers"], found["texts"], found["truth"]) == ([], [], [])


def test_texts_of_other_examples_are_refused(results_of):
    results = results_of()
    with pytest.raises(ResultsError, match=naming("3")):
        examples_content(results, span_scores(results), ExampleTexts(("a", "b", "c")))


def test_a_regression_has_no_outcomes(results_of):
    results = results_of()
    targets = np.linspace(0, 1, 80)
    outputs = results.outputs[..., :1]
    results = changed(
        results, kind="regression", metric="pearson", label_names=(), scored_with=targets, outputs=outputs
    )
    frame = span_scores(results)
    assert examples_content(results, frame, TEXTS) is None
    assert confusion(results, frame) is None
    assert set(flip_counts(results, frame)) == {None}


def test_choices_come_with_their_texts_and_margins(results_of):
    base, draw = results_of(), np.random.default_rng(0)
    logits = draw.normal(size=(*base.outputs.shape[:2], 3)).astype(np.float32)
    counts = np.ones((80, 3, 4), dtype=np.int64)
    counts[0, 2], logits[:, 0, 2] = 0, 0.0  # an example with two choices
    gold = draw.integers(0, 2, 80)
    results = changed(
        base,
        kind="causal",
        metric="accuracy",
        label_names=(),
        scored_with=gold,
        outputs=logits,
        counts=counts,
    )
    texts = ExampleTexts(TEXTS.texts, choices=tuple((f"{i}a", f"{i}b", f"{i}c") for i in range(80)))
    found = examples_content(results, span_scores(results), texts)
    there = np.where(counts[..., 0] > 0, logits, -np.inf)
    said, kept = there.argmax(-1), [n - 1 for n in found["numbers"]]
    assert found["truth"] == [f"{i}{'ab'[gold[i]]}" for i in kept]
    for packed, row in zip(found["rows"], variants(results)):
        words = [found["options"][place][option] for place, option in enumerate(unpack(packed["said"]))]
        assert words == [f"{i}{'abc'[said[row, i]]}" for i in kept]
        assert unpack(packed["right"]) == (said[row] == gold)[kept].astype(int).tolist()
        for place, i in enumerate(kept):
            share = np.exp(there[row, i].astype(float))
            share /= share.sum()
            word = found["words"][int(packed["margins"][2 * place : 2 * place + 2], 36)]
            margin = share[gold[i]] - np.delete(share, gold[i]).max()
            assert float(word.replace("−", "-")) == pytest.approx(margin, abs=5.1e-3)


def test_questions_come_with_the_answers_they_got(questions: tuple[Path, ExampleTexts]):
    folder, texts = questions
    results, frame = load_ablation(folder), read_spans(folder)
    found = examples_content(results, frame, texts)
    match = results.outputs[..., 1] == 1
    assert len(found["numbers"]) > 10
    assert found["words"] is None
    for place, number in enumerate(found["numbers"]):
        i = number - 1
        assert (found["texts"][place], found["second"][place]) == (texts.texts[i], texts.texts_b[i])
        assert found["truth"][place] == texts.truths[i]
        given = [unpack(one["said"])[place] for one in (found["intact"], *found["rows"])]
        words = [
            texts.texts_b[i][start:end] if start >= 0 else "" for start, end in results.scored.answers[:, i]
        ]
        assert [found["options"][place][option] for option in given] == words
        assert [unpack(one["right"])[place] for one in found["rows"]] == match[1:, i].astype(int).tolist()


def test_a_variant_whose_outputs_are_not_finite_says_nothing(results_of):
    results = results_of()
    row = variants(results)[1]
    results = changed(results, outputs=results.outputs.copy())
    results.outputs[row, 0, 0] = np.nan
    frame = span_scores(results)
    assert confusion(results, frame)["rows"][1] is None
    assert examples_content(results, frame, TEXTS)["rows"][1] is None
    assert flip_counts(results, frame)[1] is None
