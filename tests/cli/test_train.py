"""What `train` prints: the score beside the majority class, and a warning of an untrained pooler."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from changed_files import retensor
from refusals import names
from training_models import load_plain

import adapter_probe as ap
from adapter_probe.checkpoints.base import has_untrained_pooler
from adapter_probe.checkpoints.files import DELTA
from adapter_probe.cli.studies import _training_text
from adapter_probe.data.tasks import find_task
from adapter_probe.errors import AdapterProbeWarning
from adapter_probe.jobs.trials import identify_trials
from adapter_probe.models.methods import Adapters, FullFineTuning, HeadOnly, LayerNormOnly, TopLayers
from adapter_probe.training.peft_methods import peft_method
from adapter_probe.training.request import TrainingRequest
from adapter_probe.training.settings import TrainingSettings


@pytest.mark.parametrize(
    ("score", "majority", "no_better"),
    [(0.9, 0.5, False), (0.5, 0.5, True), (0.4, 0.5, True), (None, 0.5, True)],
)
def test_the_majority_class_stands_beside_the_score(score, majority, no_better):
    outcome = {"task": "a", "metric": "accuracy", "score": score, "majority_score": majority,
               "validation_scores": [score], "checkpoint": "c"}  # fmt: skip
    line = next(line for line in _training_text(outcome).splitlines() if line.startswith("majority class"))
    assert "50.0%" in line
    assert ("no higher" in line) == no_better


@pytest.mark.parametrize("metric", ["accuracy", "pearson", "nll", "entity_f1", "ndcg@10"])
def test_what_has_no_classes_has_no_majority_class(metric):
    outcome = {"task": "a", "metric": metric, "score": 0.9, "majority_score": None,
               "validation_scores": [0.9], "checkpoint": "c"}  # fmt: skip
    assert "majority class" not in _training_text(outcome)


@pytest.fixture
def untrained_pooler(tiny_base, tmp_path) -> Path:
    """A BERT whose pooler has zero biases."""
    base = shutil.copytree(tiny_base("bert"), tmp_path / "base")
    name = "pooler.dense.bias"
    retensor(base / "model.safetensors", lambda tensors: {**tensors, name: 0 * tensors[name]})
    return base


def test_an_untrained_pooler_is_named_in_one_line(
    program, untrained_pooler, tiny_base, train_arguments, tmp_path
):
    cases = (
        (untrained_pooler, (), 1),
        (untrained_pooler, ("--train-pooler",), 0),
        (tiny_base("bert"), (), 0),
    )
    for number, (base, more, n_lines) in enumerate(cases):
        arguments = [base if one == tiny_base("bert") else one for one in train_arguments]
        outcome = program(*arguments, *more, "--out", tmp_path / f"{number}")
        assert outcome.code == 0, outcome.stderr
        lines = [line for line in outcome.stderr.splitlines() if "pooler" in line]
        assert len(lines) == n_lines
        assert all(names(line, "adapter-probe: warning", "pooler", f"base {base}") for line in lines)


@pytest.mark.parametrize(
    ("method", "warned"),
    [
        (Adapters(2), "class; use a copy"), (Adapters(2, train_pooler=True), ""), (TopLayers(1), ""),
        (LayerNormOnly(), "class; use a copy"), (HeadOnly(), "class; use a copy"), (FullFineTuning(), ""),
        (peft_method("lora:r=2"), "modules_to_save=pooler"),
        (peft_method("lora:r=2,modules_to_save=pooler"), ""),
    ],
)  # fmt: skip
def test_a_sweep_warns_of_the_methods_that_keep_an_untrained_pooler(
    method, warned, untrained_pooler, tiny_task, recwarn
):
    task, settings = find_task(str(tiny_task)), TrainingSettings()
    first = TrainingRequest(str(untrained_pooler), task, FullFineTuning(), settings)
    trials = list(identify_trials([first, replace(first, method=method)]))
    assert len(trials) == 2
    found = [one for one in recwarn if issubclass(one.category, AdapterProbeWarning)]
    assert [warned in str(one.message) for one in found] == [True] * bool(warned)


@pytest.mark.parametrize(("family", "pooler"), [("bert", True), ("bert", False), ("roberta", True)])
def test_only_a_pooler_in_the_files_can_be_untrained(family, pooler, tiny_base):
    loaded = load_plain(tiny_base(family, pooler=pooler))
    assert not has_untrained_pooler(loaded.model, loaded.missing)


def test_a_pooler_with_zero_biases_is_untrained(untrained_pooler):
    loaded = load_plain(untrained_pooler)
    assert has_untrained_pooler(loaded.model, loaded.missing)


def test_python_trains_what_the_command_does(trained, tiny_base, tiny_task, tmp_path, capfd):
    """The same tensors; a finished training is read back, and a wrong choice is refused in one line."""
    out = tmp_path / "python"
    options = {"task": tiny_task, "size": 4, "epochs": 2, "init_std": 0.2, "learning_rate": 0.01}
    done = ap.train(tiny_base("bert"), out, **options, progress=False)
    assert (out / DELTA).read_bytes() == (trained / DELTA).read_bytes()
    assert done.score == max(done.validation_scores)
    assert capfd.readouterr() == ("", "")
    assert ap.train(tiny_base("bert"), out, **options, progress=False) == done
    for wrong, word in (
        ({"method": "tfidf"}, "'tfidf'"), ({"method": "top_layers"}, "k="), ({"k": 1}, "k=1"),
        ({"sites": "all"}, "sites must"), ({"method": "bitfit"}, "size="),
    ):  # fmt: skip
        with pytest.raises(ap.ModelError) as caught:
            ap.train(tiny_base("bert"), tmp_path / "no", **{**options, **wrong})
        assert word in str(caught.value)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "no").exists()
