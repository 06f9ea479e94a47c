"""The table of strengths and its verdict, against scores counted by hand."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from ablation_facts import changed
from refusals import names

from adapter_probe.analysis.strengths import StrengthSummary, joined, strength_summary, strength_table

STRENGTHS = (0.0, 0.5, 1.9)


def studies_of(make_results, n_examples: int = 300, **settings):
    """An ablation for every strength, with the same intact model."""
    first = make_results(2, n_examples=n_examples, n_labels=2)
    found = {}
    for seed, strength in enumerate(STRENGTHS):
        other = make_results(2, n_examples=n_examples, n_labels=2, seed=seed + 1)
        outputs = np.concatenate([first.outputs[:1], other.outputs[1:]])
        found[strength] = changed(first, outputs=outputs, settings=first.settings | settings)
    return found


def test_the_table_has_every_span_at_every_strength(make_results):
    studies = studies_of(make_results)
    results, variants = joined(studies)
    table = strength_table(results, variants)
    assert results.row_names == (
        "intact",
        *(f"{name} at {s:g}" for s in STRENGTHS for name in ("0-0", "0-1", "1-1")),
    )
    assert ("stack" in table, table.index.tolist()) == (False, list(range(12)))
    assert table["strength"].tolist() == [0.0, 0.5, 1.0, 1.9] * 3
    spans = [(0, 1, 2, True), (0, 0, 1, False), (1, 1, 1, False)]
    place = ["first", "last", "n_layers", "whole"]
    assert table[place].to_numpy().tolist()[::4] == [list(span) for span in spans]
    right = {s: one.outputs.argmax(-1) == one.scored_with for s, one in studies.items()}
    for row in table.itertuples():
        intact = right[0.0][0]
        own = intact if row.strength == 1 else right[row.strength][1 + row.n_layers // 2 + 2 * row.first]
        error = 196 * (own.astype(float) - intact).std() / 300**0.5
        assert row.score == pytest.approx(own.mean())
        assert row.delta_points == pytest.approx(100 * (own.mean() - intact.mean()), abs=1e-9)
        assert row.ci_low_points == pytest.approx(row.delta_points - error, abs=0.6)
        assert row.ci_high_points == pytest.approx(row.delta_points + error, abs=0.6)
        assert row.n_examples == 300


@pytest.mark.parametrize(("good", "best"), [((0.5, 1.9), 0.5), ((0.0, 1.0, 1.9), 1.0), ((), 1.0)])
def test_of_equal_scores_the_strength_nearest_to_1_is_best(make_results, good, best):
    """It is chosen on the random half, and judged on the other one, where it loses two examples of three."""
    studies = studies_of(make_results, data="other data")
    labels = studies[0.0].scored_with
    first = np.isin(np.arange(300), np.random.default_rng(0).permutation(300)[:150])
    intact = np.arange(300) % 2 == 0 if 1.0 not in good else np.ones(300, bool)
    for strength, one in studies.items():
        right = np.where(first, strength in good, np.arange(300) % 3 == 0)
        for row, own in ((0, intact), (2, right)):
            one.outputs[row] = np.eye(2)[np.where(own, labels, 1 - labels)]
    said = strength_summary(*joined(studies))
    assert (said.best, said.chosen_on, said.n_judged) == (best, "half", 150)
    assert (said.task, said.data, said.n_examples) == ("made up", "other data", 300)
    assert said.intact_score == intact.mean()
    change = (0.0 if best == 1 else np.arange(300) % 3 == 0) - (best != 1) * intact.astype(float)
    error = 196 * change[~first].std() / 150**0.5
    assert said.delta_points == pytest.approx(100 * change[~first].mean(), abs=1e-9)
    assert said.interval_points[0] == pytest.approx(said.delta_points - error, abs=1)
    assert said.interval_points[1] == pytest.approx(said.delta_points + error, abs=1)


@pytest.mark.parametrize(("n", "chosen_on", "n_judged"), [(2, "all", 2), (3, "half", 2), (1, "all", 1)])
def test_a_half_of_one_example_judges_nothing(make_results, n, chosen_on, n_judged):
    said = strength_summary(*joined(studies_of(make_results, n)))
    assert (said.chosen_on, said.n_judged, said.data) == (chosen_on, n_judged, "validation")


def test_questions_on_one_paragraph_have_no_halves(make_results):
    results, variants = joined(studies_of(make_results))
    questions = changed(
        results, kind="extractive", metric="squad_f1", label_names=(), scored_with=np.zeros(300, np.int64),
        outputs=results.outputs.clip(0, 1),
    )  # fmt: skip
    assert strength_summary(questions, variants).chosen_on == "all"


def test_a_distance_from_the_intact_model_has_no_best_strength(make_results):
    results, variants = joined(studies_of(make_results))
    far = changed(results, metric="agreement", scored_with=np.ones(300, np.int64))
    said = strength_summary(far, variants)
    assert (said.best, said.n_judged, said.delta_points) == (None, 0, None)


def test_verdicts():
    known = {"task": "t", "data": "d", "metric": "accuracy", "n_examples": 10, "intact_score": 0.5}
    far = StrengthSummary(**known | {"metric": "kl"})
    assert names(far.verdict, "not known", "kl", "labels", "nll")
    for chosen_on in ("half", "all"):
        one = StrengthSummary(**known, best=1.0, chosen_on=chosen_on)
        assert re.match("no: .*1", one.verdict)
        assert ("half" in one.verdict) == (chosen_on == "half")
    for found in ({}, {"delta_points": 1.0}):
        unknown = StrengthSummary(**known, best=0.5, n_judged=5, **found)
        assert names(unknown.verdict, "not known", "0.5", "5 examples")
    for best, low, lead in (
        (0.5, 0.1, "yes, too strong"),
        (1.5, 0.1, "yes, too weak"),
        (2.0, -1, "no evidence"),
        (2.0, 0.0, "no evidence"),
    ):
        own = StrengthSummary(
            **known, best=best, n_judged=5, delta_points=1.0, interval_points=(low, 2.0), chosen_on="all"
        )
        assert own.verdict.partition(":")[0] == lead
        interval = f"{low:.1f} to 2.0 points".replace("-", "−")
        assert names(own.verdict, f"{best:g}", "5 examples", "same", "gain of 1.0 point", "95%", interval)
    halved = replace(own, chosen_on="half", metric="nll")
    assert names(halved.verdict, "one half", "the other half (5 examples)", "interval of the fall")
