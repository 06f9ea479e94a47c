"""Learning rates that stop early: the choice is that of a full search."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from adapter_probe.analysis.halving import go_on, margin, saved_share, steps_to_cut
from adapter_probe.analysis.sweeps import chosen_trials

RECORDED = Path(__file__).parents[2] / "docs/studies/tradeoff/trials.csv"
N_VALIDATION = 400
POINT = ["task", "metric", "method", "size", "k"]


def test_the_better_half_goes_on_and_what_is_as_good():
    assert go_on([0.9, 0.5, 0.7, 0.2], "accuracy", 10_000).tolist() == [True, False, True, False]
    assert go_on([0.9, 0.5, 0.89], "accuracy", 10_000).tolist() == [True, False, True]
    assert go_on([0.60, 0.58, 0.59], "accuracy", 400).tolist() == [True] * 3  # 2.5 points
    assert go_on([3.0, 1.0, 2.0], "nll", 400).tolist() == [False, True, True]
    assert go_on([None, 0.1, None], "accuracy", 400).tolist() == [False, True, False]
    assert go_on([None, None], "accuracy", 400).tolist() == [True, True]
    assert [steps_to_cut(n) for n in (1, 3, 4, 100)] == [1, 1, 2, 34]


def test_the_margin_is_no_less_than_the_standard_error():
    draw = np.random.default_rng(0)
    for share in (0.1, 0.5, 0.9):
        scores = draw.binomial(400, share, 20_000) / 400
        assert scores.std() <= margin("accuracy", 400) * 1.01
    assert margin("nll", 400) == 0


@pytest.mark.parametrize("seed", range(3))
def test_the_choice_in_nine_recorded_tasks_is_that_of_the_full_search(seed):
    """The scores at the cut are the recorded ones, each off by anything up to half of the margin."""
    trials = pd.read_csv(RECORDED)
    trials = trials[(trials["method"] != "tfidf") & (trials["seed"] == 0)]
    assert trials["task"].nunique() == 9
    off, rows = np.random.default_rng(seed), []
    for (_, metric, *_), own in trials.groupby(POINT, dropna=False):
        reach = margin(str(metric), N_VALIDATION) / 2
        early = own["score"] + off.uniform(-reach, reach, len(own))
        kept = go_on(list(early), str(metric), N_VALIDATION)
        rows.append(own.assign(stopped=~kept, seeds=1, n_steps=50, step=steps_to_cut(50)))
    every = pd.concat(rows)
    full, halved = (chosen_trials(one, POINT) for one in (every, every[~every["stopped"]]))
    assert set(full["trial"]) == set(halved["trial"])
    assert 0.1 < saved_share(every) < 0.5
