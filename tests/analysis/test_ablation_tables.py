"""An ablation's tables against what they are made of."""

from __future__ import annotations

import copy
import dataclasses
import warnings

import numpy as np
import pandas as pd
import pytest
from ablation_facts import changed
from refusals import names, refuses
from scipy.stats import binomtest
from sklearn.metrics import cohen_kappa_score, f1_score

from adapter_probe.analysis import score_changes
from adapter_probe.analysis.ablation_tables import ablation_tables, draws_for
from adapter_probe.analysis.attribution import interactions, shares
from adapter_probe.analysis.comparing import average_ablations
from adapter_probe.analysis.groups import group_scores, group_summary
from adapter_probe.analysis.removable import longest_removable, span_costs
from adapter_probe.analysis.resampling import draw_weights
from adapter_probe.analysis.score_changes import of_stack, row_scores, span_scores
from adapter_probe.analysis.summary import summarise
from adapter_probe.custom_metric import CustomMetric
from adapter_probe.errors import DataError, ResultsError
from adapter_probe.metrics import metric_label
from adapter_probe.spans import effective_variants, span_variants


def test_spans_keep_their_scores_and_gain_statistics(make_results):
    results = make_results(5, n_examples=300)
    tables = ablation_tables(results, n_draws=500)
    spans, said = tables.spans, summarise(results, tables)
    plain = span_scores(results)
    assert spans[list(plain)].equals(plain)
    right = results.outputs.argmax(-1) == results.scored_with
    place = {tuple(span): row for row, span in enumerate(results.spans.tolist())}
    for row in spans.itertuples():
        variant = right[place[row.first, row.last]]
        lost, won = int((right[0] & ~variant).sum()), int((variant & ~right[0]).sum())
        assert row.p_value == pytest.approx(binomtest(lost, lost + won).pvalue if lost + won else 1.0)
        assert row.ci_low_points <= row.delta_points <= row.ci_high_points
        # The spread is that of a mean of paired differences.
        spread = 100 * np.std(variant.astype(int) - right[0].astype(int)) / np.sqrt(300)
        assert row.ci_high_points - row.ci_low_points == pytest.approx(2 * 1.96 * spread, rel=0.2)
    assert spans["significant"].tolist() == (spans["p_holm"] < 0.05).tolist()
    assert (said.significant_spans, said.tested_spans) == (spans["significant"].sum(), 15)
    for tolerance, found in said.longest_removable_surely.items():
        sure = spans["n_layers"][spans["bound_low_points"] >= -float(tolerance) - 1e-9]
        assert (found and found.n_layers) == (sure.max() if len(sure) else None)


def test_layers_share_out_the_whole_drop(make_results):
    tables = ablation_tables(make_results(5), n_draws=200)
    whole = tables.spans[tables.spans["n_layers"] == 5].iloc[0]
    assert tables.layers["share_points"].sum() == pytest.approx(-whole["delta_points"])
    singles = tables.spans[tables.spans["n_layers"] == 1]
    assert tables.layers["delta_points"].tolist() == singles["delta_points"].tolist()
    assert tables.layers["layer"].tolist() == [0, 1, 2, 3, 4]
    assert (tables.layers["share_low_points"] <= tables.layers["share_points"]).all()
    assert (tables.layers["share_points"] <= tables.layers["share_high_points"]).all()
    single = tables.spans["n_layers"] == 1
    interaction = tables.spans.loc[single, "interaction_points"]
    np.testing.assert_allclose(interaction, -tables.spans.loc[single, "delta_points"])


def test_equal_results_and_seed_give_equal_tables(make_results):
    for metric, n_labels in (("mcc", 3), ("spearman", 1)):
        results = make_results(3, metric=metric, n_labels=n_labels)
        one, two = (ablation_tables(results, n_draws=50, seed=7) for _ in range(2))
        assert one.spans.equals(two.spans)
        assert one.layers.equals(two.layers)
        assert one.removable.equals(two.removable)


def test_the_removable_table(make_results):
    tables = ablation_tables(make_results(6, n_examples=500), n_draws=300)
    for row in tables.removable.itertuples():
        column = "delta_points" if row.basis == "estimate" else "bound_low_points"
        fitting = tables.spans[tables.spans[column] >= -row.tolerance_points]
        if fitting.empty:
            assert pd.isna(row.n_layers)
        else:
            assert row.n_layers == fitting["n_layers"].max()
            found = longest_removable(tables.spans, row.tolerance_points, row.basis)
            assert (found["first"], found["last"]) == (row.first, row.last)


def test_kept_spans_have_no_interactions(make_results):
    tables = ablation_tables(make_results(3, complement=True), n_draws=50)
    assert tables.spans["interaction_points"].isna().all()
    assert tables.layers["share_points"].isna().all()
    assert not tables.spans["non_monotone"].any()
    # All layers kept is the intact model: no test.
    assert tables.spans["p_holm"].isna().tolist() == [False, False, True, False, False, False]
    # A span that is enough when kept is none that can go.
    assert tables.removable["n_layers"].isna().all()
    assert tables.removable["tolerance_points"].tolist() == [0.5, 0.5, 1.0, 1.0, 2.0, 2.0]


@pytest.mark.parametrize("sites", ["attention", "ffn"])
def test_half_the_sites_make_the_same_tables(make_results, sites):
    """The masks differ, the spans and predictions do not."""
    half, both = make_results(4, sites=sites), make_results(4)
    for name in ("spans", "layers", "removable"):
        one, two = (getattr(ablation_tables(results, n_draws=50), name) for results in (half, both))
        pd.testing.assert_frame_equal(one, two)


@pytest.mark.filterwarnings("error")
def test_a_single_span_has_a_row_and_every_layer_too(make_results):
    results = make_results(4)
    rows = [results.row_names.index(name) for name in ("intact", "1-2")]
    arrays = {name: getattr(results, name)[rows] for name in ("masks", "spans", "outputs")}
    tables = ablation_tables(changed(results, **arrays, row_names=("intact", "1-2")), n_draws=50)
    assert tables.spans[["first", "last"]].to_numpy().tolist() == [[1, 2]]
    assert tables.spans["ci_low_points"].notna().all()
    assert tables.layers["layer"].tolist() == [0, 1, 2, 3]
    assert tables.layers.drop(columns="layer").isna().all(axis=None)


def test_bounds_of_interactions_and_shares_by_drawing_anew(make_results):
    """Every draw's drops, in which one more example changes as much as the one that changes most."""
    results = make_results(3, n_examples=60)
    tables = ablation_tables(results, n_draws=200, seed=4)
    right = 100.0 * (results.predictions == results.scored_with)
    place = {tuple(span): row for row, span in enumerate(results.spans.tolist())}
    own = np.zeros((60, 3, 3))  # what every example loses
    for (first, last), row in place.items():
        if first >= 0:
            own[:, first, last] = right[0] - right[row]
    parts = np.column_stack([interactions(own)[:, 0, 2], shares(own)])
    ((weights, more),) = draw_weights(60, 200, 4, 200)
    total, largest = weights.sum(axis=1)[:, None], np.abs(parts).max(axis=0)
    low, high = (
        np.quantile((weights @ parts + more[:, None] * end) / (total + more[:, None]), at, axis=0)
        for end, at in ((-largest, 0.025), (largest, 0.975))
    )
    whole = tables.spans[tables.spans["n_layers"] == 3].iloc[0]
    assert whole["interaction_low_points"] == pytest.approx(low[0], abs=1e-6)
    assert whole["interaction_high_points"] == pytest.approx(high[0], abs=1e-6)
    np.testing.assert_allclose(tables.layers["share_low_points"], low[1:], atol=1e-6)
    np.testing.assert_allclose(tables.layers["share_high_points"], high[1:], atol=1e-6)


def test_one_changed_prediction_has_one_interval(make_results):
    """As a drop, as the interaction of the same single layer, and as a difference of two studies."""
    results = make_results(2, n_examples=66, n_labels=2)
    outputs = np.repeat(results.outputs[:1], 4, axis=0)
    wrong = int(np.flatnonzero(outputs[0].argmax(-1) == results.scored_with)[0])
    row = results.row_names.index("0-0")
    outputs[row, wrong] = outputs[row, wrong][::-1]
    one = changed(results, outputs=outputs)
    spans = ablation_tables(one, n_draws=500).spans.set_index(["first", "last"])
    found = spans.loc[(0, 0), ["ci_low_points", "ci_high_points"]]
    assert (found["ci_low_points"], found["ci_high_points"]) == pytest.approx((-8.2, 4.4), abs=0.1)
    interaction = -spans.loc[(0, 0), ["interaction_high_points", "interaction_low_points"]].to_numpy()
    assert interaction.tolist() == pytest.approx(found.tolist())
    longer = spans.loc[(0, 1)]
    assert longer["interaction_points"] == pytest.approx(-100 / 66)  # 0 less the drop of layer 0
    assert longer["interaction_low_points"] < 0 < longer["interaction_high_points"]


def test_undefined_scores_pass_through(make_results):
    results = make_results(3, metric="spearman", n_labels=1)
    results.outputs[2] = 0.5  # a constant prediction has no correlation
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tables = ablation_tables(results, n_draws=50)
        said = summarise(results, tables)
    row = tables.spans[tables.spans["delta_points"].isna()]
    assert len(row) == 1
    assert row[["ci_low_points", "ci_high_points", "p_value", "p_holm"]].isna().all(axis=None)
    assert not row["significant"].any()
    assert said.tested_spans == 5


def test_enough_draws_for_holm(make_results):
    assert draws_for(make_results(4)) == 10_000
    assert draws_for(make_results(4, metric="mcc")) == 10_000
    deep = make_results(24, metric="mcc", n_examples=4)
    assert draws_for(deep) == 30_000
    assert 300 * 2 / (draws_for(deep) + 1) < 0.05
    proportion = make_results(24, n_examples=4)
    assert (draws_for(proportion), draws_for(proportion, tested=True)) == (10_000, 30_000)


@pytest.mark.parametrize(("metric", "n_labels"), [("accuracy", 3), ("mcc", 3), ("spearman", 1)])
def test_a_variant_that_is_not_finite_has_a_count_and_no_score(make_results, metric, n_labels):
    sound = make_results(3, metric=metric, n_labels=n_labels)
    logits = sound.outputs.copy()
    row = sound.row_names.index("1-2")
    logits[row, :7, 0] = np.nan
    logits[row, 7, 0] = np.inf
    spoilt = changed(sound, outputs=logits)
    tables = ablation_tables(spoilt, n_draws=200)
    found = tables.spans.set_index(["first", "last"]).loc[(1, 2)]
    assert found["n_nonfinite"] == 8
    undefined = ["score", "delta_points", "ci_low_points", "ci_high_points", "p_value", "p_holm"]
    assert found[undefined].isna().all()
    assert not found["significant"]
    others = tables.spans.query("not (first == 1 and last == 2)")
    assert (others["n_nonfinite"] == 0).all()
    plain = ablation_tables(sound, n_draws=200).spans.query("not (first == 1 and last == 2)")
    for column in ("score", "delta_points", "ci_low_points", "ci_high_points", "p_value"):
        pd.testing.assert_series_equal(others[column], plain[column])
    assert summarise(spoilt, tables).nonfinite_examples == {"1-2": 8}
    assert summarise(sound).nonfinite_examples == {}


def test_an_intact_model_that_is_not_finite_is_refused(make_results):
    logits = make_results(3).outputs.copy()
    logits[0, 4, 1] = np.nan
    refuses(ResultsError, ("1 of 40",), ablation_tables, changed(make_results(3), outputs=logits))


@pytest.fixture
def judged(make_results):
    """Results in which the variants' predictions are right as often as asked, of 60 examples."""

    def make(n_right: list[int], metric: str = "accuracy"):
        results = make_results(2, n_examples=60, n_labels=2, metric=metric)
        labels = (np.arange(60) % 3 == 0).astype(np.int64)
        order = np.random.default_rng(1).permutation(60)
        logits = np.zeros((len(n_right), 60, 2), dtype=np.float32)
        for row, n in enumerate(n_right):
            said = labels.copy()
            said[order[n:]] = 1 - labels[order[n:]]
            logits[row, np.arange(60), said] = 1
        return changed(results, scored_with=labels, outputs=logits)

    return make


@pytest.mark.parametrize(
    ("right", "said"),
    [
        ([58, 50, 41, 55], None),
        ([43, 50, 41, 20], ["not better", "most frequent"]),  # a little better than the commonest class
        *(([58, 50, removed, 55], ["not worse", "adapters off"]) for removed in (57, 58, 59)),
    ],
)
def test_why_spans_mean_nothing_is_told_first(judged, right, said):
    """Of the intact model, 0-0, 0-1 and 1-1 so many of 60 are right."""
    results = judged(right)
    found = summarise(results, ablation_tables(results)).warning
    assert found is None if said is None else names(found, *said)


@pytest.mark.parametrize("metric", ["accuracy", "f1", "macro_f1", "mcc"])
def test_a_model_that_says_the_commonest_class_is_told_first(judged, metric):
    results = judged([58, 50, 41, 55], metric)
    logits = np.zeros_like(results.outputs)
    logits[:, :, 0] = 1  # whatever is switched off
    results = changed(results, outputs=logits)
    found = summarise(results, ablation_tables(results))
    assert names(found.warning, "not better", "most frequent")


def test_six_of_six_right_are_no_proof_against_the_commonest_class(make_results):
    """Three of the six are right by guessing, too; three of three by chance have a p of 0.25."""
    labels = np.array([0, 1, 0, 1, 0, 1])
    outputs = np.tile(np.eye(2, dtype=np.float32)[labels], (4, 1, 1))
    outputs[1:] = outputs[1:, :, ::-1]
    results = changed(make_results(2, n_examples=6, n_labels=2), outputs=outputs, scored_with=labels)
    tables = ablation_tables(results)
    assert tables.chance_p == pytest.approx(0.25)
    assert "not better than" in summarise(results, tables).warning


def test_a_regression_that_learned_nothing(make_results):
    results = make_results(2, n_labels=1, metric="spearman")  # random
    found = summarise(results, ablation_tables(results))
    assert names(found.warning, "not better", "constant")


@pytest.mark.parametrize("gone", [[0], [2], [4], [0, 2], [1, 2]])
def test_layers_without_adapters_are_no_spans_and_no_tests(make_results, gone):
    """Against the same study of a model that has the other layers only."""
    whole = make_results(5, n_examples=200)
    variants = effective_variants(span_variants(5), np.repeat(~np.isin(np.arange(5), gone), 2))
    rows = [whole.row_names.index(name) for name in variants.names]
    left = [layer for layer in range(5) if layer not in gone]
    assert set(variants.names) == {"intact"} | {f"{a}-{b}" for i, a in enumerate(left) for b in left[i:]}
    settings = whole.settings | {
        "site_parameters": [0 if layer in gone else 7 for layer in range(5) for _ in range(2)]
    }
    bare = changed(
        whole,
        masks=variants.masks,
        spans=whole.spans[rows],
        row_names=variants.names,
        outputs=whole.outputs[rows],
        settings=settings,
    )
    small = dataclasses.replace(
        bare,
        masks=span_variants(len(left)).masks,
        spans=np.array([(-1, -1)] + [(i, j) for i in range(len(left)) for j in range(i, len(left))]),
        settings=whole.settings,
    )
    found, expected = ablation_tables(bare), ablation_tables(small)
    places = ["first", "last", "n_layers"]
    pd.testing.assert_frame_equal(found.spans.drop(columns=places), expected.spans.drop(columns=places))
    said, told = summarise(bare, found), summarise(small, expected)
    for name in ("tested_spans", "significant_spans", "warning"):
        assert getattr(said, name) == getattr(told, name)
    for tolerance, span in told.longest_removable.items():
        ends = span and dataclasses.replace(span, first=left[span.first], last=left[span.last])
        assert said.longest_removable[tolerance] == ends
    assert found.removable["n_layers"].equals(expected.removable["n_layers"])
    shares = found.layers["share_points"]
    assert shares[left].tolist() == pytest.approx(expected.layers["share_points"].tolist())
    assert (shares[gone] == 0).all()
    assert found.layers["delta_points"].isna().tolist() == [layer in gone for layer in range(5)]


@pytest.mark.parametrize("complement", [False, True])
def test_spans_that_change_no_prediction_have_the_exact_interval(make_results, complement):
    """What no test has examined is not removable by its bound."""
    results = make_results(2, n_labels=2, n_examples=240, complement=complement)
    same = changed(results, outputs=np.broadcast_to(results.outputs[:1], results.outputs.shape))
    tables, bound = ablation_tables(same, n_draws=100), 100 * (1 - 0.025 ** (1 / 240))  # Clopper, Pearson
    chosen = 100 * (1 - (0.05 / 2) ** (1 / 240))  # of two single layers, one-sided
    switched = ~results.masks[1:4].all(axis=1)  # both layers kept on are the intact model
    for column, end in (("ci_low_points", -bound), ("ci_high_points", bound)):
        np.testing.assert_allclose(tables.spans[column].to_numpy(), np.where(switched, end, 0.0))
    costs = span_costs(same, "interval")
    if not complement:
        np.testing.assert_array_equal(costs["bound_low_points"], tables.spans["bound_low_points"])
        np.testing.assert_allclose(costs["bound_low_points"], -chosen)
        assert longest_removable(costs, 1.5, "interval") is None
        assert longest_removable(costs, 1.6, "interval")["n_layers"] == 2
    mean = average_ablations([same, same, same]).spans
    np.testing.assert_allclose(mean["ci_low_points"], np.where(switched, -bound, 0.0))
    unknown = ablation_tables(changed(same, metric="mcc"), n_draws=100).spans
    assert unknown["ci_low_points"].isna().tolist() == switched.tolist()
    outputs = np.tile(np.float32([0, 1]), (*same.outputs.shape[:2], 1))
    outputs[0, :9] = 1, 0  # of one class only, nine more are right than in the intact model
    won = changed(same, outputs=outputs, scored_with=np.ones(240, dtype=np.int64))
    won = ablation_tables(won, n_draws=100).spans["ci_high_points"].to_numpy()
    np.testing.assert_allclose(won[switched], 100 * binomtest(9, 240).proportion_ci(0.95, "exact").high)
    agreeing = changed(same, metric="agreement", scored_with=np.ones(240, dtype=np.int64))
    spans = ablation_tables(agreeing, n_draws=100).spans
    np.testing.assert_allclose(spans["ci_low_points"], np.where(switched, -bound, 0.0))
    assert (spans["ci_high_points"] == 0).all()


def test_each_stack_has_the_tables_of_a_model_of_its_own(make_results):
    """But for Holm's correction and the choice of a span, which are over the spans of both."""
    whole = make_results(3, n_examples=200, n_labels=2)
    names = ("intact", "0-0", "0-1", "1-1", "2-2", "0-2")  # two layers of an encoder, one of a decoder; all
    rows = [whole.row_names.index(name) for name in names]
    spans = np.array([(-1, -1), (0, 0), (0, 1), (1, 1), (0, 0), (-1, -1)])
    stacks = np.array(["", *["encoder"] * 3, "decoder", ""])
    settings = whole.settings | {
        "stacks": [["encoder", 2], ["decoder", 1]],
        "site_parameters": [1, 2, 3, 4, 5, 6],
    }
    both = dataclasses.replace(whole.rows(rows), spans=spans, stacks=stacks, settings=settings)
    tables, own = ablation_tables(both, n_draws=300), []
    for columns, part in ((slice(0, 4), [0, 1, 2, 3]), (slice(4, 6), [0, 4])):
        alone = dataclasses.replace(whole.rows([rows[i] for i in part]), spans=spans[part])
        own.append(ablation_tables(dataclasses.replace(alone, masks=alone.masks[:, columns]), n_draws=300))
    for name in ("spans", "layers", "removable"):
        expected = pd.concat([getattr(one, name) for one in own], ignore_index=True)
        sizes = [len(getattr(one, name)) for one in own]
        assert getattr(tables, name)["stack"].tolist() == ["encoder"] * sizes[0] + ["decoder"] * sizes[1]
        told = ["stack", "p_holm", "significant", "bound_low_points"]
        told += ["delta_points"] * (name == "removable")
        corrected = [column for column in told if column in getattr(tables, name)]
        kept = [column for column in expected if column not in corrected]
        pd.testing.assert_frame_equal(getattr(tables, name)[kept], expected[kept])
    p = tables.spans["p_value"].to_numpy()
    order = np.argsort(p, kind="stable")
    steps = np.minimum(1.0, np.maximum.accumulate(p[order] * [4, 3, 2, 1]))
    np.testing.assert_allclose(tables.spans["p_holm"].to_numpy()[order], steps)
    n_tested = score_changes.tested_spans
    assert n_tested(of_stack(tables.spans, "decoder")) == n_tested(tables.spans) == 4
    assert (n_tested(tables.spans.drop(columns="p_holm")), of_stack(None, "decoder")) == (0, None)
    right = (both.predictions == both.scored_with)[[0, 5]]
    lost, won = int((right[0] & ~right[1]).sum()), int((right[1] & ~right[0]).sum())
    assert tables.removed_p == pytest.approx(binomtest(lost, lost + won).pvalue)
    said = summarise(both, tables)
    assert (list(said.stacks), said.removed_score) == (["encoder", "decoder"], right[1].mean())
    assert [one.layer_parameters for one in said.stacks.values()] == [(3, 7), (11,)]
    assert said.stacks["decoder"].largest_single_layer_drop.layer == 0
    mean = average_ablations([both, both])
    bounds = [one.spans["bound_low_points"] for one in (mean, tables)]  # of seeds that do not differ
    np.testing.assert_allclose(*bounds, atol=1e-6)
    assert (
        [len(one.spans) for one in mean.in_stacks]
        == [one.deltas.shape[1] for one in mean.in_stacks]
        == [3, 1]
    )
    assert [one.stack for one in mean.in_stacks] == ["encoder", "decoder"]
    (last,) = mean.in_stacks[1].in_stacks
    assert last.stack == "decoder"


def test_each_label_is_a_part_of_the_data(make_results):
    """A label that no example has is left out; of the others, F1 is scikit-learn's."""
    few = make_results(2, n_labels=4)
    labels = np.random.default_rng(2).integers(0, 2, (40, 4)) * np.array([1, 1, 0, 1])
    results = changed(few, kind="multilabel", metric="micro_f1", scored_with=labels)
    table, there = group_scores(results), [0, 1, 3]
    assert table["group"].unique().tolist() == ["a", "b", "d"]
    assert table["variant"].tolist() == ["intact", "all off", "0-0", "1-1"] * 3
    assert table["first"].isna().tolist() == [True, False, False, False] * 3
    counted = table.groupby("group")["n_examples"].unique().explode()
    assert counted.tolist() == labels.sum(axis=0)[there].tolist()
    scores = [[f1_score(labels[:, k], results.outputs[row, :, k] > 0) for row in (0, 2, 1, 3)] for k in there]
    np.testing.assert_allclose(table["score"], np.ravel(scores))
    np.testing.assert_allclose(
        table["delta_points"], np.ravel([[100 * (x - own[0]) for x in own] for own in scores])
    )
    said = group_summary(table)
    assert [said[name].intact_score for name in "abd"] == pytest.approx([own[0] for own in scores])
    assert [said[name].removed_score for name in "abd"] == pytest.approx([own[1] for own in scores])
    assert [said[name].n_examples for name in "abd"] == counted.tolist()
    own = changed(results, metric=CustomMetric(f1_score))
    assert group_scores(own) is None


def test_a_metric_of_the_users_own(make_results):
    """Accuracy and kappa as functions: the scores and intervals of the built-in one, and scikit-learn's."""
    results = make_results(3, n_labels=2, n_examples=300)
    own = changed(results, metric=CustomMetric(lambda labels, said: (labels == said).mean()))
    found, expected = ablation_tables(own, n_draws=300), ablation_tables(results, n_draws=300)
    for column in ("score", "delta_points", "interaction_points"):
        np.testing.assert_allclose(found.spans[column], expected.spans[column], atol=1e-9)
    for column in ("ci_low_points", "ci_high_points", "interaction_low_points"):  # by a bootstrap
        np.testing.assert_allclose(found.spans[column], expected.spans[column], atol=3)
    assert found.chance_p == pytest.approx(expected.chance_p, abs=0.1)
    kappa = changed(results, metric=CustomMetric(cohen_kappa_score))
    scores = [cohen_kappa_score(results.scored_with, row) for row in results.predictions]
    assert row_scores(kappa).tolist() == scores
    assert (kappa.metric, metric_label(kappa.metric)) == ("custom:cohen_kappa_score", "cohen kappa score")
    assert kappa.chance_score == 0.0
    assert copy.deepcopy(kappa.metric).function is cohen_kappa_score
    by_name = changed(results, metric="custom:cohen_kappa_score")  # as read from disk
    refuses(DataError, ("'custom:cohen_kappa_score'", "function"), row_scores, by_name)


def test_a_metric_of_the_users_own_of_numbers(make_results):
    def closeness(labels, predictions):
        return -np.abs(labels - predictions).mean()

    results = changed(make_results(2, n_labels=1), metric=CustomMetric(closeness))
    tables = ablation_tables(results, n_draws=100)
    logits, labels = results.outputs[1, :, 0], results.scored_with
    assert tables.spans["score"][0] == pytest.approx(-np.abs(labels - logits).mean())
    assert np.isnan(tables.chance_p)  # nothing says what guessing would score
