"""Differences and means of ablations against resamples that are drawn and scored one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ablation_facts import changed
from refusals import refuses
from scipy import stats

from adapter_probe.analysis.comparing import average_ablations, compare_ablations
from adapter_probe.errors import ResultsError


@pytest.fixture(scope="module")
def seeds(make_results):
    """Three studies of the same examples, of which the spans cost nothing, some and more points."""
    first, studies = make_results(2, n_examples=300, n_labels=2), []
    right = np.eye(2, dtype=np.float32)[first.scored_with]
    for seed, share in enumerate((0.0, 0.15, 0.4)):
        broken = np.random.default_rng(seed).random((3, 300)) < share
        outputs = np.stack([right, *np.where(broken[..., None], 1 - right, right)])
        studies.append(changed(first, outputs=outputs, identity={"seed": seed}))
    return studies


def test_the_interval_of_a_mean_is_that_over_seeds_and_examples(seeds):
    """The squares of Student's half-width over the seeds and of a normal one over the examples, added."""
    changes = np.stack([(one.outputs.argmax(-1) == one.scored_with).astype(float) for one in seeds])
    changes = 100 * (changes[:, 1:] - changes[:, :1])  # [studies, spans, examples]
    for n in (3, 2):
        of_seeds, of_examples = changes[:n].mean(axis=2), changes[:n].mean(axis=0)
        reach = np.hypot(
            stats.t.ppf(0.975, n - 1) * stats.sem(of_seeds), 1.96 * stats.sem(of_examples, axis=1)
        )
        found = average_ablations(seeds[:n])
        np.testing.assert_allclose(found.spans["ci_low_points"], of_seeds.mean(axis=0) - reach, atol=0.5)
        np.testing.assert_allclose(found.spans["ci_high_points"], of_seeds.mean(axis=0) + reach, atol=0.5)
        np.testing.assert_allclose(found.spans["delta_points"], changes[:n].mean(axis=(0, 2)), atol=1e-9)
        assert found.removed_points == pytest.approx(changes[:n, 1].mean(axis=1).tolist())
        np.testing.assert_allclose(found.spans["sd_points"], changes[:n].mean(axis=2).std(axis=0, ddof=1))
        assert found.names == ("1", "2", "3")[:n]
        assert not found.spans["significant"].any()  # of which two or three seeds so far apart say little


@pytest.mark.parametrize(("n", "lost", "p"), [(300, 4, 0.125), (300, 6, 0.03125), (2, 2, 0.5)])
def test_a_difference_of_few_examples_has_the_sign_test(make_results, n, lost, p):
    first = make_results(2, n_examples=n, n_labels=2)
    right = np.tile(np.eye(2, dtype=np.float32)[first.scored_with], (len(first.masks), 1, 1))
    worse = right.copy()
    worse[1:, :lost] = 1 - worse[1:, :lost]
    one, other = (changed(first, outputs=own, identity={"seed": i}) for i, own in enumerate((right, worse)))
    spans = compare_ablations(one, other).spans
    assert spans["p_value"].tolist() == pytest.approx([p] * 3)
    assert ((spans["ci_low_points"] > 0) == (p < 0.05)).all()
    assert ((spans["ci_high_points"] > spans["difference_points"]) == (lost < n)).all()


def test_the_bounds_of_chosen_means_are_those_of_each_level(seeds):
    """Of two layers: each alone at 2.5 %, both together at 5 %, and a span is as bad as what is inside it."""
    for n in (2, 3):
        spans = average_ablations(seeds[:n]).spans.set_index(["first", "last"])
        changes = np.stack([(one.outputs.argmax(-1) == one.scored_with).astype(float) for one in seeds[:n]])
        changes = 100 * (changes[:, 1:] - changes[:, :1])
        of_seeds, of_examples = changes.mean(axis=2), changes.mean(axis=0)
        order = [tuple(span) for span in seeds[0].spans.tolist()[1:]]
        level = np.array([0.05 if first < last else 0.025 for first, last in order])
        reach = np.hypot(
            stats.t.ppf(1 - level, n - 1) * stats.sem(of_seeds),
            stats.norm.ppf(1 - level) * stats.sem(of_examples, axis=1),
        )
        low = dict(zip(order, of_seeds.mean(axis=0) - reach))
        low[0, 1] = min(low.values())
        for span, bound in low.items():
            assert spans.loc[span, "bound_low_points"] == pytest.approx(bound, abs=1.0), span


def test_the_interval_of_a_difference_is_that_of_paired_examples(seeds):
    """Against the normal approximation of the mean of what each example loses more in one than the other."""
    losses = [(one.outputs[1:].argmax(-1) != one.scored_with).astype(float) for one in seeds[1:]]
    apart, error = losses[1] - losses[0], 196 * (losses[1] - losses[0]).std(axis=1) / 300**0.5
    spans = compare_ablations(*seeds[1:]).spans
    for side, own in zip("ab", losses):
        np.testing.assert_allclose(spans[f"drop_{side}_points"], 100 * own.mean(axis=1), atol=1e-9)
    np.testing.assert_allclose(spans["difference_points"], 100 * apart.mean(axis=1))
    np.testing.assert_allclose(spans["ci_low_points"], spans["difference_points"] - error, atol=1)
    np.testing.assert_allclose(spans["ci_high_points"], spans["difference_points"] + error, atol=1)
    assert spans["significant"].all()
    same = compare_ablations(*seeds[1:2] * 2).spans
    bound = 200 * (1 - 0.025 ** (1 / 300))  # Clopper and Pearson of 0 of 300; each can change by two
    np.testing.assert_allclose(same[["ci_low_points", "ci_high_points"]], [[-bound, bound]] * 3)


def test_spans_are_tested_unless_the_metric_compares_with_the_intact_model(seeds):
    agreeing = [changed(one, metric="agreement", scored_with=np.ones(300, np.int64)) for one in seeds]
    for studies, tested in ((seeds, True), (agreeing, False)):
        spans = average_ablations(studies).spans
        assert {"p_value", "p_holm", "significant"}.isdisjoint(spans) == (not tested)
    assert average_ablations(seeds[1:2] * 3).spans["significant"].all()  # of seeds that agree
    assert not average_ablations(seeds[1:]).spans["significant"].any()
    assert not average_ablations(seeds[:1] * 2).spans["significant"].any()


def test_what_is_not_alike_is_refused(seeds):
    a, b = seeds[:2]
    others = {
        "mcc": changed(b, metric="mcc"),
        "kept": replace(b, settings=b.settings | {"complement": True}),
        "0.5": replace(b, identity={"settings": {"strength": 0.5}}),
        "cut to rank 2": replace(b, settings=b.settings | {"rank": 2}),
        "4": changed(b, spans=np.roll(b.spans, 1), outputs=b.outputs),
        "same": changed(b, scored_with=1 - b.scored_with),
        "--data": replace(b, identity={"data": "other"}),
        "3": b.rows([0, 1, 3]),
    }
    for said, other in others.items():
        refuses(ResultsError, ("x and y", said), compare_ablations, a, other, ("x", "y"))
        refuses(ResultsError, ("x and y", said), average_ablations, [a, other], ("x", "y"))
    refuses(ResultsError, ("2", "1"), average_ablations, [a])


def test_everything_off_may_be_no_span(make_results):
    """Of spans kept on and of single layers, another variant is the one without adapters."""
    kept = make_results(3, n_labels=2, complement=True)
    single = kept.rows([kept.row_names.index(name) for name in ("intact", "0-1", "1-1", "none")])
    for own in (kept, single):
        off, intact = (own.predictions[row] == own.scored_with for row in (-1, 0))
        expected = 100 * (off.mean() - intact.mean())
        assert average_ablations([own, own]).removed_points == pytest.approx([expected] * 2)


def test_the_spans_of_a_deep_model_can_differ_significantly(make_results):
    """The 300 spans of 24 layers, each of which costs 45 points: Holm multiplies the least p by 300."""
    deep = make_results(24, n_examples=200, n_labels=2)
    right = np.eye(2, dtype=np.float32)[deep.scored_with]
    broken = np.random.default_rng(1).random((6, 301, 200)) < 0.45
    broken[:, 0] = False
    whole, *others = (
        changed(deep, outputs=np.where(own[..., None], 1 - right, right), identity={"seed": seed})
        for seed, own in enumerate((np.zeros_like(broken[0]), *broken))
    )
    difference, mean = compare_ablations(whole, others[0]).spans, average_ablations(others).spans
    for spans in (difference, mean):
        assert spans["p_holm"].max() < 0.05
        assert spans["significant"].all()
