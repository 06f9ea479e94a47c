"""The majority class beside the score that `train` prints, and a word where the model is no better."""

from __future__ import annotations

import pytest

from adapter_probe.cli.train import _text


@pytest.mark.parametrize(
    ("score", "majority", "no_better"),
    [(0.9, 0.5, False), (0.5, 0.5, True), (0.4, 0.5, True), (None, 0.5, True), (0.9, None, False)],
)
def test_the_majority_class_stands_beside_the_score(score, majority, no_better):
    outcome = {"task": "a", "metric": "accuracy", "score": score, "majority_score": majority,
               "validation_scores": [score], "checkpoint": "c"}  # fmt: skip
    line = next(line for line in _text(outcome).splitlines() if line.startswith("majority class"))
    assert ("undefined" if majority is None else "50.0 %") in line
    assert ("scores no higher" in line) == no_better
