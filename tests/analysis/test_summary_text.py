"""The facts in what the commands print, with the numbers of studies that are made by hand."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
from ablation_facts import record_of
from refusals import names, value_of

from adapter_probe.analysis.comparing import AverageRecord, ComparisonRecord, DataComparisonRecord
from adapter_probe.analysis.groups import GroupScores
from adapter_probe.analysis.summary import AblationSummary
from adapter_probe.analysis.summary_parts import LayerDrop, ModuleDrop, SpanDrop
from adapter_probe.analysis.summary_text import (
    ablation_rows,
    aligned_columns,
    average_rows,
    both_scores,
    change_interval_text,
    comparison_rows,
    data_comparison_rows,
    duration_text,
    file_lists,
)
from adapter_probe.studies.ablation_study import Ablation

SUMMARY = AblationSummary(
    task="t", split="s", metric="accuracy", kind="classification", study="ablated", n_examples=9,
    n_layers=4, intact_score=0.9, removed_score=0.7, removed_delta_points=-20.0, majority_score=0.5,
    significant_spans=3, tested_spans=10,
    largest_single_layer_drop=LayerDrop(2, -5.0),
    longest_removable={"0.5": None, "2": SpanDrop(0, 1, 2, -1.25, -3.0, 0.5)},
    longest_removable_surely={"0.5": None, "2": SpanDrop(3, 3, 1, 0.5)},
)  # fmt: skip


def test_a_study_is_told_by_its_numbers():
    rows = ablation_rows(SUMMARY)
    assert not [name for name, _ in rows if names(name, "note") or "positive" in name or "PEFT" in name]
    assert names(value_of(rows, "task"), "t", "s", "9 examples", "accuracy")
    assert value_of(rows, "intact") == "90.0%"
    assert names(value_of(rows, "all", "off"), "70.0%", "drop 20.0 points")
    assert value_of(rows, "majority class") == "50.0%"
    assert names(value_of(rows, "largest", "layer"), "layer 2", "drop 5.0 points")
    assert names(value_of(rows, "significant"), "3 of 10 spans", "0.05")
    assert value_of(rows, "longest span switched off", "0.5 points") == "none"
    assert names(value_of(rows, "span switched off", "2 points"), "layers 0-1", "2 layers", "1.3 points")
    assert names(
        value_of(rows, "longest span switched off", "2 points"), "95% interval", "-0.5 to 3.0 points"
    )
    sure = value_of(rows, "by the 95% bound", "2 points")
    assert names(sure, "layer 3", "gain 0.5 points")
    assert "1 layer" not in sure
    assert value_of(rows, "by the 95% bound", "0.5 points") == "none"


def test_what_a_study_lacks_is_left_out():
    warned = ablation_rows(replace(SUMMARY, warning="It learned nothing.", switched="attention"))
    assert value_of(warned, "note") == "It learned nothing."
    assert names(value_of(warned, "all", "off"), "attention only")
    assert not [name for name, _ in warned if "span" in name]
    undefined = replace(SUMMARY, removed_score=None, removed_delta_points=None)
    assert value_of(ablation_rows(undefined), "all", "off") == "undefined"
    gained = replace(SUMMARY, largest_single_layer_drop=LayerDrop(2, 0.0, last_layer=3))
    assert value_of(ablation_rows(gained), "largest", "group") == "none"
    own = replace(SUMMARY, positive_class="yes", majority_score=None, kind="tokens", significant_spans=None)
    rows = ablation_rows(own)
    assert value_of(rows, "positive class") == "yes"
    assert not [name for name, _ in rows if "majority" in name or "frequent" in name or "significant" in name]
    kinds = {"regression": True, "tokens": False, "multilabel": False, "extractive": False, "causal": False}
    for kind, guesses in kinds.items():
        rows = ablation_rows(replace(SUMMARY, majority_score=None, kind=kind))
        assert ("undefined" in [value for _, value in rows]) == guesses
    of_texts = ablation_rows(replace(SUMMARY, metric="nll", kind="causal", majority_score=None))
    assert "undefined" not in [value for _, value in of_texts]


@pytest.mark.parametrize(
    ("changes", "switched", "done", "removed"),
    [
        ({}, None, "switched off", "all switched off"),
        ({"strength": 0.5}, "attention", "scaled by 0.5", "all attention scaled by 0.5"),
        ({"rank": 2}, "the encoder", "cut to rank 2", "all of the encoder cut to rank 2"),
        ({"study": "kept"}, "layers 2-3", "kept on", "layers 2-3 switched off"),
    ],
)
def test_what_was_done_to_the_spans(changes, switched, done, removed):
    summary = replace(SUMMARY, switched=switched, **changes)
    assert (summary.done, summary.removed) == (done, removed)
    told = [name for name, _ in ablation_rows(summary) if "longest" in name and "scaled by 0.5" in name]
    assert len(told) == (2 if "strength" in changes else 0)


def test_the_score_of_all_adapters_says_to_which_rank_they_were_cut():
    cut = replace(SUMMARY, rank=2)
    assert "all cut to rank 2" in dict(ablation_rows(cut))
    assert "all cut to rank 2" in both_scores(cut)


def test_a_distance_is_told_without_scores():
    rows = ablation_rows(replace(SUMMARY, metric="agreement", groups={"g": GroupScores(4, 1.0, 0.7, -30.0)}))
    assert "intact" in value_of(rows, "compared")
    assert value_of(rows, "all", "off") == "disagreement 20.0 points"
    assert names(value_of(rows, "on g"), "4 examples", "30.0 points")
    assert "100" not in value_of(rows, "on g")


def test_kept_spans_and_modules():
    kept = replace(
        SUMMARY, study="kept", best_single_layer=LayerDrop(1, -3.0), shortest_sufficient={"1": None},
        longest_removable_surely=None,
    )  # fmt: skip
    rows = ablation_rows(kept)
    assert names(value_of(rows, "best", "layer"), "layer 1", "drop 3.0 points")
    assert value_of(rows, "shortest span kept on", "1 point") == "none"
    gain, loss = LayerDrop(0, 1.0), LayerDrop(2, -4.0, last_layer=3)
    of = {"q": ModuleDrop(-6.0, loss), "v": ModuleDrop(2.0, gain), "o": ModuleDrop(None, None)}
    for study, done, told in (
        ("ablated", "off", ("-", "most")),
        ("kept", "only", ("best alone", "best alone")),
    ):
        rows = ablation_rows(replace(kept, study=study, modules=of))
        assert names(value_of(rows, "q", done), "drop 6.0 points", "layers 2-3", told[1], "drop 4.0 points")
        gained = value_of(rows, "v", done)
        assert names(gained, "gain 2.0 points")
        assert (told[0] in gained and names(gained, "layer 0", "gain 1.0 point")) == (study == "kept")
        assert value_of(rows, "o", done) == "undefined"
        assert names(value_of(rows, "significant"), "3 of 10 cells")


def test_each_stack_is_told_under_its_name():
    stacks = {"encoder": SUMMARY, "decoder": replace(SUMMARY, warning="Nothing.", removed_delta_points=-1.0)}
    rows = ablation_rows(replace(SUMMARY, stacks=stacks))
    assert sum("significant" in name for name, _ in rows) == 1
    assert value_of(rows, "encoder", "all", "off") == "drop 20.0 points"
    assert value_of(rows, "decoder", "all", "off") == "drop 1.0 point"
    assert value_of(rows, "decoder", "note") == "Nothing."
    assert value_of(rows, "encoder", "longest span switched off", "0.5 points") == "none"
    assert next(name for name, _ in rows if "bound" in name).startswith("  encoder: ")
    assert not [name for name, _ in rows if "span" in name and "decoder" in name]
    study = Ablation(record_of(pd.DataFrame()))
    several = replace(study, record=replace(study.record, summary=replace(SUMMARY, stacks=stacks)))
    *_, best = repr(several).splitlines()
    assert names(best, "encoder", "longest span switched off", "2 points", "layers 0-1")
    assert len(repr(study).splitlines()) == 2  # which has no spans to tell of


@pytest.mark.parametrize("n", [11, 12, 13])
def test_the_parts_of_the_data_are_told_up_to_twelve(n):
    groups = {f"part {i}": GroupScores(i + 1, 0.5, 0.25, -25.0) for i in range(n)}
    rows = ablation_rows(replace(SUMMARY, groups=groups | {"part 0/within": groups["part 0"]}))
    assert sum(name.startswith("on part") for name, _ in rows) == min(n, 12)
    assert names(value_of(rows, "on part 1"), "50.0% of 2 examples", "off", "drop 25.0 points")
    more = [value for name, value in rows if "more" in name]
    assert [names(value, "1", "groups.csv") for value in more] == [True] * (n > 12)


def test_settings_and_rounding_are_told_where_there_are_any():
    guard = {
        "decided_in_float32": 0.125, "band": 0.5, "largest_error": 0.25, "pairs": 1000, "sampled_pairs": 400,
        "threshold": 0.0625, "scale": 0.03, "chance": 0.00001,
    }  # fmt: skip
    rows = ablation_rows(replace(SUMMARY, guard=guard, base_weights="quantised with x"))
    assert value_of(rows, "weights of the base") == "quantised with x"
    assert names(value_of(rows, "float32"), "12.5%", "0.5")
    assert names(value_of(rows, "rounding"), "0.25", "1,000", "400", "0.062", "0.03")
    assert names(value_of(rows, "risk"), "0.1%")
    risky = ablation_rows(replace(SUMMARY, guard=guard | {"chance": 0.25}))
    assert names(value_of(risky, "risk"), "25.0%")


def spans_of(**columns: list[float]) -> pd.DataFrame:
    frame = pd.DataFrame({"first": [0, 0, 1], "last": [0, 1, 1], "n_layers": [1, 2, 1]})
    return frame.assign(significant=[True, False, False], **columns)


def test_the_significant_differences_on_either_side():
    points = {
        "difference_points": [-3.0, 0.5, 0.0],
        "ci_low_points": [-4.0, 0.04, -1.0],
        "ci_high_points": [-2.0, 5.0, 1.0],
    }
    record = ComparisonRecord(("one", "two"), spans_of(**points), "accuracy", 9, (0.5, 0.75), {})
    rows = comparison_rows(record)
    assert names(value_of(rows, "comparison"), "one", "two", "accuracy", "9 examples")
    assert names(value_of(rows, "intact"), "50.0%", "75.0%")
    assert names(value_of(rows, "significant"), "1 of 3 spans")
    assert value_of(rows, "larger drop in b") == "none is significant"  # layers 0-1 are not
    assert names(value_of(rows, "larger drop in a"), "layer 0", "-3.0 points", "-4.0 to -2.0 points")
    told = value_of(comparison_rows(replace(record, metric="nll")), "larger rise in a")
    assert names(told, "-0.030 nats", "-0.040 to -0.020 nats")
    many = pd.concat([record.spans.assign(significant=True, difference_points=-n) for n in (1.0, 2.0)])
    first, *_, last = (said for name, said in comparison_rows(replace(record, spans=many))[-4:])
    assert names(first, "-2.0 points")
    assert last == "and 3 more"
    none = record.spans.assign(difference_points=[-2.0, -1.0, 0.0], module="q")
    rows = comparison_rows(replace(record, spans=none, metric="agreement", warnings={"one": "No."}))
    assert names(value_of(rows, "in b"), "none")
    assert names(value_of(rows, "in a"), "q", "layer 0")
    assert names(value_of(rows, "significant"), "cells")
    assert names(value_of(rows, "note"), "one", "No")
    assert "intact" not in dict(rows)


def test_the_frontier_of_two_data_sets_names_the_longest_of_equal_spans():
    points = {"task_points": [-1.0, -1.0, 0.5], "other_points": [2.0, 2.0, 1.0]}
    spans = spans_of(**points).assign(on_frontier=[True, True, False], stack="encoder")
    record = DataComparisonRecord(("a", "b"), ("accuracy", "nll"), spans, (0.5, 3.0), (9, 1), {})
    rows = data_comparison_rows(record)
    told = "b: negative log-likelihood 3.000 nats, 1 example"
    assert value_of(rows, "intact") == f"a: 50.0% accuracy, 9 examples; {told}"
    told = value_of(rows, "frontier", "layers 0-1 of the encoder", "off")
    assert names(told, "drop 1.0 point on a", "fall 0.020 nats on b", "1 other")
    one = replace(record, spans=spans.iloc[:1].drop(columns="stack").assign(module="q"), warning="No.")
    assert "other" not in value_of(data_comparison_rows(one), "frontier", "q", "layer 0")
    none = replace(record, spans=spans.assign(on_frontier=False), warning="No.")
    assert value_of(data_comparison_rows(none), "note") == "No."
    for warning in ("No.", None):
        rows = data_comparison_rows(replace(none, warning=warning))
        assert value_of(rows, "frontier") == "only the intact model"
    cut = replace(record, identity={"a": {"settings": {"rank": 2}}})
    assert value_of(data_comparison_rows(cut), "frontier", "layers 0-1", "cut to rank 2")


def test_the_mean_and_its_spread():
    spans = spans_of(sd_points=[1.0, 3.0, 4.0])
    record = AverageRecord(("x", "y"), spans, "accuracy", 9, (0.75, 0.5), {}, removed_points=(-2.0, -6.0))
    rows = average_rows(record)
    assert names(value_of(rows, "average"), "2 studies", "accuracy", "9 examples")
    assert names(value_of(rows, "intact"), "50.0% to 75.0%")
    assert names(value_of(rows, "all", "off"), "drop 4.0 points", "2.8 points")
    assert names(value_of(rows, "spread"), "3.0 points", "span")
    assert names(
        value_of(average_rows(replace(record, metric="nll")), "all", "off"), "0.040 nats", "0.028 nats"
    )
    assert names(value_of(rows, "beyond chance"), "1 of 3 spans")
    rows = average_rows(replace(
        record, spans=spans.drop(columns="significant"), metric="agreement", warnings={"x": "No."},
        removed_points=(float("nan"), 1.0),
    ))  # fmt: skip
    assert value_of(rows, "all", "off") == "undefined"
    assert value_of(average_rows(replace(record, identity={"x": {"settings": {"rank": 2}}})), "all", "rank 2")
    unknown = average_rows(replace(record, spans=spans.assign(sd_points=float("nan"))))
    assert value_of(unknown, "spread") == "undefined"
    assert names(value_of(rows, "note"), "x", "No")
    assert not {"intact", "beyond chance"} & dict(rows).keys()


def test_columns_files_and_durations():
    assert aligned_columns([("a", "1"), ("bcd", "2"), ("e", "")]) == "a    1\nbcd  2\ne"
    files = [["f/map.pdf", "f/map.csv"], ["f/one.png"], ["f/map.png"]]
    assert file_lists(files) == "f/map.{pdf,csv,png}\nf/one.png"
    seconds = {89: "89 s", 90: "2 min", 5399: "90 min", 5400: "1.5 h", 9000: "2.5 h"}
    assert {n: duration_text(n) for n in seconds} == seconds


def test_a_change_has_the_interval_of_its_drop():
    assert names(change_interval_text(-2.0, (-3.0, 0.5), "accuracy"), "drop 2.0 points", "95%", "-0.5 to 3.0")
    assert change_interval_text(-2.0, (None, 0.5), "accuracy") == "drop 2.0 points"
    assert change_interval_text(None, (None, None), "accuracy") == "undefined"
