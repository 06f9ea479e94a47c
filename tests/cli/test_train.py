"""What `train` prints: the score beside the majority class, and a warning of an untrained pooler."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from adapter_probe.checkpoints.base import has_untrained_pooler, load_base
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


@pytest.fixture
def untrained_pooler(tiny_base, tmp_path) -> Path:
    """A BERT whose pooler has zero biases."""
    base = shutil.copytree(tiny_base("bert"), tmp_path / "base")
    tensors = load_file(base / "model.safetensors")
    (name,) = (name for name in tensors if name.endswith("pooler.dense.bias"))
    tensors[name].zero_()
    save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})
    return base


def test_an_untrained_pooler_is_named_in_one_line(
    program, untrained_pooler, tiny_base, train_arguments, tmp_path
):
    for base, warned in ((untrained_pooler, True), (tiny_base("bert"), False)):
        arguments = [base if one == tiny_base("bert") else one for one in train_arguments]
        outcome = program(*arguments, "--epochs", 1, "--out", tmp_path / f"{warned}")
        assert outcome.code == 0, outcome.stderr
        lines = [line for line in outcome.stderr.splitlines() if "pooler" in line]
        assert [line.startswith(f"adapter-probe: warning: the pooler of base {base} ") for line in lines] == (
            [True] if warned else []
        )


@pytest.mark.parametrize(("family", "pooler"), [("bert", True), ("bert", False), ("roberta", True)])
def test_only_a_pooler_in_the_files_can_be_untrained(family, pooler, tiny_base):
    assert not has_untrained_pooler(load_base(str(tiny_base(family, pooler=pooler)), 2))


def test_a_pooler_with_zero_biases_is_untrained(untrained_pooler):
    assert has_untrained_pooler(load_base(str(untrained_pooler), 2))
