"""Costs of a trade-off's points, and the Pareto frontier, against frontiers written out here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from refusals import refuses
from scipy.stats import t, ttest_1samp, ttest_ind

from adapter_probe.analysis.costs import pareto_table, with_costs
from adapter_probe.analysis.study_records import TradeoffRecord
from adapter_probe.analysis.sweeps import tradeoff_table
from adapter_probe.errors import ResultsError
from adapter_probe.results.trial_files import ParameterCounts, TrialRecord, trial_frame

SCORES = {  # by method and size, for two tasks: the scores of three seeds
    ("lora", 1): ((0.70, 0.71, 0.72), (0.60, 0.62, 0.61)),
    ("lora", 8): ((0.80, 0.81, 0.79), (0.70, 0.70, 0.70)),
    ("ia3", None): ((0.75, 0.60, 0.90), (0.65, 0.66, 0.64)),
    ("full", None): ((0.81, 0.81, 0.81), (0.71, 0.72, 0.70)),
}
PARAMETERS = {("lora", 1): 1_000, ("lora", 8): 8_000, ("ia3", None): 8_000, ("full", None): 1_000_000}
SECONDS = {("lora", 1): 0.3, ("lora", 8): 0.2, ("ia3", None): 0.1, ("full", None): 0.5}


def record_of(tasks: tuple[str, ...] = ("a", "b"), seeds: int = 3) -> TradeoffRecord:
    records, costs = [], []
    for (method, size), scores in SCORES.items():
        for task, own in zip(tasks, scores):
            for seed, score in enumerate(own[:seeds]):
                count = PARAMETERS[method, size]
                settings = {"learning_rate": 1e-3, "epochs": 1, "batch_size": 8, "seed": seed}
                name = f"{task}-{method}-{size}-{seed}"
                about = {"name": "peft", "family": method, "size": size}
                counts = ParameterCounts(count, count, 10_000_000, 4)
                records.append(
                    TrialRecord(name, task, "accuracy", about, settings, (score,), False, 0.5, counts, 1.0)
                )
                costs.append((name, SECONDS[method, size] + 0.01 * seed, pd.NA, 4 * count))
    trials = trial_frame(records)
    columns = ["trial", "seconds_per_step", "peak_memory_bytes", "checkpoint_bytes"]
    frame = pd.DataFrame(costs, columns=columns).astype({"peak_memory_bytes": "Int64"})
    return TradeoffRecord(Path("folder"), tradeoff_table(trials), None, None, trials, {}, frame)


def names(table: pd.DataFrame, column: str = "on_frontier") -> list[str]:
    return table.loc[table[column], "label"].tolist()


def test_the_frontier_is_of_means_over_tasks():
    table = pareto_table(record_of(), "parameters")
    expected = {key: np.mean([np.mean(own) for own in scores]) for key, scores in SCORES.items()}
    assert table["label"].tolist() == ["LoRA 1", "(IA)³", "LoRA 8", "full fine-tuning"]
    for row in table.itertuples():
        key = (row.method, None if pd.isna(row.size) else row.size)
        assert row.mean == pytest.approx(expected[key], abs=1e-12)
        assert (row.cost, row.n_tasks, row.n_trials) == (PARAMETERS[key], 2, 6)
        assert row.ci_low <= row.mean <= row.ci_high
    assert names(table) == ["LoRA 1", "LoRA 8", "full fine-tuning"]


def test_another_cost_has_another_frontier():
    table = pareto_table(record_of(), "seconds")
    assert table["label"].tolist() == ["(IA)³", "LoRA 8", "LoRA 1", "full fine-tuning"]
    assert table["cost"].tolist() == pytest.approx([0.11, 0.21, 0.31, 0.51])
    assert names(table) == ["(IA)³", "LoRA 8", "full fine-tuning"]
    points, trials = with_costs(record_of(), "bytes")
    assert (points["trained_parameters"] == 4 * record_of().tradeoff["trained_parameters"]).all()
    assert len(trials) == 24


def test_the_interval_over_seeds_is_students():
    """Of one task it is the t interval; of two, Welch's of one half less the other, with fewer degrees."""
    one = pareto_table(record_of(("a",)), "parameters").set_index("label").loc["(IA)³"]
    scores = SCORES["ia3", None]
    assert [one["ci_low"], one["ci_high"]] == pytest.approx(
        list(ttest_1samp(scores[0], 0).confidence_interval())
    )
    both = pareto_table(record_of(), "parameters").set_index("label").loc["(IA)³"]
    first, second = (np.array(own) / 2 for own in scores)
    welch, fewest = ttest_ind(first, -second, equal_var=False), min(map(len, scores)) - 1
    reach = t.ppf(0.975, fewest + (welch.df - fewest) / 3) * (first.mean() + second.mean()) / welch.statistic
    expected = first.mean() + second.mean() + np.array([-reach, reach])
    assert [both["ci_low"], both["ci_high"]] == pytest.approx(list(expected))


@pytest.mark.parametrize(("tasks", "seeds", "known"), [(1, 1, False), (1, 2, True), (2, 1, False)])
def test_a_single_trial_has_no_interval(tasks, seeds, known):
    table = pareto_table(record_of(("a", "b")[:tasks], seeds=seeds), "parameters")
    assert table[["ci_low", "ci_high"]].notna().all(axis=None) == known
    assert table.index.tolist() == [0, 1, 2, 3]


def test_costs_that_nobody_recorded_are_refused():
    refuses(ResultsError, ("peak_memory_bytes",), pareto_table, record_of(), "memory")
    losses = record_of().tradeoff.assign(metric=["accuracy"] * 4 + ["perplexity"] * 4)
    refuses(ResultsError, ("losses",), pareto_table, replace(record_of(), tradeoff=losses), "parameters")
    record = record_of()
    record.trials.loc[record.trials["task"] == "b", "score"] = np.nan
    refuses(ResultsError, ("a, b",), pareto_table, record, "parameters")
