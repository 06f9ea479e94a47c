from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pandas as pd
import pytest
from ablation_facts import changed
from refusals import value_of

from adapter_probe.analysis.ablation_tables import ablation_tables
from adapter_probe.analysis.published import (
    published_ablation,
    published_aggregate,
    published_init_sweep,
    published_tradeoff,
)
from adapter_probe.analysis.summary import summarise
from adapter_probe.analysis.summary_parts import LayerDrop, SpanDrop, notable_spans
from adapter_probe.analysis.summary_text import ablation_rows
from adapter_probe.spans import contiguous_spans


def frame_of(*rows: tuple[int, int, float]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["first", "last", "delta_points"])
    return frame.assign(n_layers=frame["last"] - frame["first"] + 1)


def span(first: int, last: int, delta: float) -> SpanDrop:
    return SpanDrop(first, last, last - first + 1, delta)


def best_by_brute_force(frame: pd.DataFrame, tolerance: float, longest: bool) -> SpanDrop | None:
    best, best_key = None, None
    for row in frame.to_dict("records"):
        drop = round(-row["delta_points"], 9)
        if math.isnan(drop) or drop > tolerance:
            continue
        key = (-row["n_layers"] if longest else row["n_layers"], drop, row["first"])
        if best_key is None or key < best_key:
            best, best_key = span(row["first"], row["last"], row["delta_points"]), key
    return best


def test_a_grid_made_by_hand():
    frame = frame_of((0, 0, -0.2), (0, 1, -0.9), (0, 2, -6.0), (1, 1, -3.0), (1, 2, 0.4), (2, 2, -1.0))
    assert notable_spans(frame) == {
        "largest_single_layer_drop": LayerDrop(1, -3.0),
        "longest_removable": {"0.5": span(1, 2, 0.4), "1": span(1, 2, 0.4), "2": span(1, 2, 0.4)},
    }
    assert notable_spans(frame, "kept") == {
        "best_single_layer": LayerDrop(0, -0.2),
        "shortest_sufficient": dict.fromkeys(("0.5", "1", "2"), span(0, 0, -0.2)),
    }


def test_ties_go_to_the_smaller_drop_then_to_the_lower_layer():
    frame = frame_of(
        (0, 1, -0.4), (1, 2, -0.1), (2, 3, -0.1), (0, 0, -0.5), (1, 1, 0.0), (2, 2, 0.0), (3, 3, -0.5)
    )
    found = notable_spans(frame)
    assert found["longest_removable"]["0.5"] == span(1, 2, -0.1)
    assert found["largest_single_layer_drop"].layer == 0


def test_nothing_within_the_tolerance_is_none():
    found = notable_spans(frame_of((0, 0, -3.0), (0, 1, float("nan")), (1, 1, float("nan"))))
    assert found["longest_removable"] == {"0.5": None, "1": None, "2": None}
    assert found["largest_single_layer_drop"] == LayerDrop(0, -3.0)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("study", ["ablated", "kept"])
def test_spans_equal_a_search_through_all(seed, study):
    generator = np.random.default_rng(seed)
    deltas = generator.integers(-8, 3, size=21) / 4  # many ties
    frame = frame_of(*((s.first, s.last, d) for s, d in zip(contiguous_spans(6), deltas)))
    frame = frame.sample(frac=1, random_state=seed)
    found = notable_spans(frame, study)
    key = "longest_removable" if study == "ablated" else "shortest_sufficient"
    for tolerance in (0.5, 1.0, 2.0):
        assert found[key][f"{tolerance:g}"] == best_by_brute_force(frame, tolerance, study == "ablated")


def test_scores_of_an_ablation(make_results):
    results = make_results(3, n_labels=2)
    labels = np.array([0] * 30 + [1] * 10)
    logits = np.zeros((7, 40, 2), dtype=np.float32)
    for row, hits in enumerate([36, 35, 30, 30, 34, 36, 37]):  # intact, 0-0, 0-1, 0-2, 1-1, 1-2, 2-2
        right = np.arange(40) < hits
        logits[row, np.arange(40), np.where(right, labels, 1 - labels)] = 1
    found = summarise(changed(results, scored_with=labels, outputs=logits))
    expected = {
        "task": "made up",
        "split": "validation",
        "warning": None,
        "study": "ablated",
        "metric": "accuracy",
        "n_examples": 40,
        "n_layers": 3,
        "intact_score": 0.9,
        "removed_score": 0.75,
        "removed_delta_points": pytest.approx(-15.0),
        "majority_score": 0.75,
        "kind": "classification",
        "nonfinite_examples": {},
        "layer_parameters": None,
        "largest_single_layer_drop": {"layer": 1, "delta_points": pytest.approx(-5.0)},
        "longest_removable": {
            tolerance: {"first": 1, "last": 2, "n_layers": 2, "delta_points": pytest.approx(0.0, abs=1e-9)}
            for tolerance in ("0.5", "1", "2")
        },
    }
    assert found.to_dict() == expected


@pytest.mark.parametrize(
    ("sites", "counts"), [("both", [3, 30, 300]), ("attention", [1, 10, 100]), ("ffn", [2, 20, 200])]
)
def test_parameters_of_the_sites_that_are_switched_and_the_guard_are_told(sites, counts, make_results):
    results = make_results(3, sites=sites)
    results = dataclasses.replace(
        results,
        settings={**results.settings, "site_parameters": [1, 2, 10, 20, 100, 200], "guard": {"band": 0.5}},
    )
    assert summarise(results).layer_parameters == tuple(counts)
    assert summarise(results).guard == {"band": 0.5}


def test_spans_say_nothing_only_where_none_differs_from_the_intact_model(make_results):
    results = changed(make_results(3, n_labels=2), scored_with=np.ones(40, np.int64), metric="agreement")
    logits = np.zeros((7, 40, 2), np.float32)
    logits[..., 0] = 1
    same = changed(results, outputs=logits.copy())
    logits[results.row_names.index("1-1"), 0] = 0, 1  # of one example
    single = changed(results, outputs=logits)
    same, single = (summarise(one, ablation_tables(one, n_draws=20)) for one in (same, single))
    assert same.removed_score == single.removed_score == 1.0
    assert same.warning
    assert single.warning is None


def test_of_kept_spans_all_layers_count(make_results):
    """Also those without adapters between others; `test_ablation_tables.py` has the spans switched off."""
    results = make_results(3, n_labels=2, complement=True)
    masks = results.masks.copy()
    masks[:, 2:4] = True  # layer 1 has no adapters
    outputs = np.broadcast_to(results.outputs[:1], results.outputs.shape).copy()
    outputs[[results.row_names.index(name) for name in ("0-0", "0-1", "1-1", "1-2", "2-2")]] *= -1
    said = summarise(changed(results, masks=masks, outputs=outputs))
    assert said.shortest_sufficient == dict.fromkeys(("0.5", "1", "2"), span(0, 2, 0.0))


@pytest.mark.parametrize("n", [5, 6])
def test_of_variants_without_a_score_five_are_named(make_results, n):
    results = make_results(3)
    results.outputs[1 : n + 1, 3, 0] = np.nan
    told = value_of(ablation_rows(summarise(results)), "undefined")
    assert told.startswith(f"{n} variants")
    assert [name for name in results.row_names if f"{name} (1)" in told] == [*results.row_names[1:6]]
    assert ("..." in told) == (n > 5)


def test_undefined_scores_are_null_in_json(make_results):
    results = make_results(2, n_labels=1, metric="pearson")
    constant = results.outputs.copy()
    constant[results.row_names.index("0-1")] = 1.0
    summary = summarise(changed(results, outputs=constant))
    found = json.loads(json.dumps(summary.to_dict(), allow_nan=False))
    assert found["removed_score"] is None
    assert found["removed_delta_points"] is None
    assert found["majority_score"] is None
    assert found["intact_score"] is not None


def test_the_published_mnli_grid():
    frame = published_ablation("mnli")
    assert list(zip(frame["first"], frame["last"])) == [(s.first, s.last) for s in contiguous_spans(12)]
    delta = frame.set_index(["first", "last"])["delta_points"]
    assert delta[0, 11] == pytest.approx(-43.5, abs=0.05)
    assert delta[0, 10] < delta[0, 11]
    singles = [-1.16, -0.268, -0.268, -0.089, -0.089, -0.268, -0.625, -1.874, -1.16, -1.339, -1.874, -0.625]
    assert [delta[layer, layer] for layer in range(12)] == singles
    found = notable_spans(frame)
    assert found["largest_single_layer_drop"] == LayerDrop(7, -1.874)
    assert found["longest_removable"] == {
        "0.5": span(0, 1, -0.446),
        "1": span(0, 2, -0.982),
        "2": span(0, 3, -1.874),
    }


def test_the_published_cola_grid():
    frame = published_ablation("cola")
    assert len(frame) == 78
    found = notable_spans(frame)
    assert found["largest_single_layer_drop"] == LayerDrop(7, -2.62)
    assert found["longest_removable"]["1"] == span(0, 2, -0.979)


def test_other_tasks_were_not_published():
    for published in (published_ablation, published_init_sweep, published_tradeoff, published_aggregate):
        assert published("rte") is None


def test_a_correlation_with_the_wrong_sign_is_not_better_than_guessing(make_results):
    results = make_results(2, n_labels=1, metric="pearson", n_examples=100)
    for sign in (1, -1):
        outputs = sign * np.broadcast_to(results.scored_with, results.outputs.shape[:2])[..., None]
        noise = np.random.default_rng(0).normal(size=outputs.shape)
        noise[results.masks.all(axis=1)] *= 0.1
        own = changed(results, outputs=(outputs + noise).astype(np.float32))
        said = summarise(own, ablation_tables(own, n_draws=200))
        assert np.sign(said.intact_score) == sign
        assert (said.warning or "").startswith("The intact model is not better") == (sign < 0)
