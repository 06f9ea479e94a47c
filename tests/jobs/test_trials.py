"""Trials: known by what determines them, done once, resumed, and counted from the tensors."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from changed_files import edit
from refusals import refuses
from safetensors.torch import load_file, save_file

from adapter_probe.checkpoints.native import read_description
from adapter_probe.data.tasks import find_task
from adapter_probe.errors import CheckpointError, DataError, ModelError, ResultsError, TrainingError
from adapter_probe.jobs import trial_run
from adapter_probe.jobs.trial_run import PeakMemory, bytes_of_checkpoint, run_trial
from adapter_probe.jobs.trials import finished_trials, plan_trials, shared_settings, write_requests
from adapter_probe.models.methods import Adapters, FullFineTuning, HeadOnly, LayerNormOnly, TopLayers
from adapter_probe.results.trial_files import claim_study, read_trial
from adapter_probe.training.checkpoint import train_checkpoint
from adapter_probe.training.loop import Trainer
from adapter_probe.training.objectives import LabelObjective
from adapter_probe.training.peft_methods import method_of
from adapter_probe.training.request import TrainingRequest, build_model, load_inputs, read_request
from adapter_probe.training.settings import TrainingSettings

CPU = torch.device("cpu")


@pytest.fixture
def request_for(tiny_base, short_task) -> Callable[..., TrainingRequest]:
    def make(method=Adapters(size=2), base=None, task=short_task, **settings) -> TrainingRequest:  # noqa: B008
        chosen = TrainingSettings(**{"epochs": 2, "learning_rate": 1e-2, **settings})
        return TrainingRequest(str(base or tiny_base("bert")), find_task(task), method, chosen)

    return make


def run(requests, out: Path, report=lambda _: None) -> list:
    trials = plan_trials(requests)
    write_requests(out, trials)
    return [run_trial(trial.folder(out), CPU, report) for trial in trials]


def test_the_id_follows_what_determines_the_numbers(request_for, tiny_base, tiny_task):
    one = request_for()
    others = [
        request_for(Adapters(size=3)),
        request_for(TopLayers(1)),
        request_for(seed=1),
        request_for(learning_rate=1e-3),
        request_for(base=tiny_base("bert", seed=1)),
        request_for(task=tiny_task),
        dataclasses.replace(one, max_length=5),
        dataclasses.replace(one, max_train=40),
    ]
    ids = [trial.id for trial in plan_trials([one, *others])]
    assert len(set(ids)) == 9
    renamed = dataclasses.replace(one, task=dataclasses.replace(one.task, name="other"))
    assert [trial.id for trial in plan_trials([one, one])] == ids[:1]
    assert [trial.id for trial in plan_trials([renamed])] == ids[:1]
    refuses(DataError, (one.task.name, "other", "same examples"), plan_trials, [one, renamed])


def test_a_request_survives_its_file(request_for, tmp_path):
    for method in (Adapters(size=2, norm="layernorm"), TopLayers(1), LayerNormOnly(), HeadOnly()):
        [trial] = plan_trials([request_for(method)])
        write_requests(tmp_path, [trial])
        assert read_request(trial.folder(tmp_path) / "request.json") == trial.request


def test_a_trial_is_the_training_that_train_does(request_for, tiny_base, short_task, train, tmp_path):
    [record] = run([request_for()], tmp_path / "trials")
    train(tiny_base("bert"), short_task, tmp_path / "c", method=Adapters(size=2))
    described = read_description(tmp_path / "c")
    assert list(record.scores) == described.training["validation_scores"]
    assert record.scores[record.best_epoch - 1] == described.scores["accuracy"]


def test_a_score_beyond_all_numbers_is_undefined(
    request_for, train, tiny_base, short_task, tmp_path, monkeypatch
):
    """As a perplexity is where the mean loss of an answer exceeds 709 nats; it ended in a traceback."""
    scores = iter([float("inf"), 0.5] * 2)
    monkeypatch.setattr(LabelObjective, "score", lambda *_: next(scores))
    [record] = run([request_for()], tmp_path / "trials")
    assert (record.scores, record.best_epoch) == ((None, 0.5), 2)
    train(tiny_base("bert"), short_task, tmp_path / "c", method=Adapters(size=2))
    assert read_description(tmp_path / "c").scores == {"accuracy": 0.5}


def test_a_finished_trial_is_not_done_again(request_for, tmp_path, monkeypatch):
    [first] = run([request_for()], tmp_path)
    monkeypatch.setattr(Trainer, "train", lambda _: pytest.fail("trained again"))
    [second] = run([request_for()], tmp_path)
    assert second == first
    trials = plan_trials([request_for(), request_for(seed=5)])
    assert list(finished_trials(tmp_path, trials)) == [trials[0].id]


def test_a_trial_left_unfinished_takes_the_new_paths(request_for, tiny_base, tmp_path, monkeypatch):
    moving = shutil.copytree(tiny_base("bert"), tmp_path / "here" / "base")
    monkeypatch.chdir(moving.parent)
    with pytest.raises(KeyboardInterrupt):
        run([request_for(base="base")], tmp_path / "s", stop)
    monkeypatch.chdir(tmp_path)  # where there is no folder called base
    moved = moving.rename(tmp_path / "moved")
    [trial] = plan_trials([request_for(base="moved")])
    assert trial.request.base == str(moved)
    [record] = run([request_for(base="moved")], tmp_path / "s")
    assert record.trial == trial.id
    assert len(list((tmp_path / "s" / "trials").iterdir())) == 1


def test_a_finished_trial_keeps_its_request(request_for, tiny_base, tmp_path):
    [record] = run([request_for()], tmp_path)
    path = tmp_path / "trials" / record.trial / "request.json"
    before = path.read_bytes()
    elsewhere = shutil.copytree(tiny_base("bert"), tmp_path / "elsewhere")
    [again] = run([request_for(base=elsewhere)], tmp_path)
    assert again == record
    assert path.read_bytes() == before


def test_an_interrupted_trial_goes_on(request_for, tmp_path):
    [whole] = run([request_for()], tmp_path / "whole")

    def stop(now):
        if now.step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run([request_for()], tmp_path / "stopped", stop)
    seen: list[int] = []
    [resumed] = run([request_for()], tmp_path / "stopped", lambda now: seen.append(now.step))
    assert seen == [5, 6]
    assert dataclasses.replace(resumed, seconds=0.0) == dataclasses.replace(whole, seconds=0.0)
    assert resumed.seconds > 0


def test_divergence_is_an_outcome(request_for, tmp_path):
    [record] = run([request_for(learning_rate=1e30, warmup=0.0)], tmp_path)
    assert record.diverged
    assert record.best_epoch is None
    assert (
        read_trial(plan_trials([request_for(learning_rate=1e30, warmup=0.0)])[0].folder(tmp_path)) == record
    )


@pytest.mark.parametrize("pooler", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "method",
    [
        Adapters(size=2),
        *(pytest.param(m, marks=pytest.mark.slow) for m in
          (TopLayers(2), FullFineTuning(), TopLayers(0), LayerNormOnly(), HeadOnly())),
    ],
)  # fmt: skip
def test_counts_are_those_of_the_formulas(method, pooler, request_for, tiny_base, tmp_path):
    base = tiny_base("bert", pooler=pooler)
    [record] = run([request_for(method, base=base, epochs=1)], tmp_path)
    # The tiny BERT: width d, three layers, 35 words, 40 positions, two token types; intermediate width 2d.
    config = json.loads((base / "config.json").read_text())
    d, inner, n = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    rows = config["vocab_size"] + config["max_position_embeddings"] + config["type_vocab_size"]
    layer = 4 * (d * d + d) + (d * inner + inner) + (inner * d + d) + 4 * d
    embeddings, pool, classifier = rows * d + 2 * d, d * d + d, 2 * d + 2
    norms = 2 * d + n * 4 * d
    trained = {
        "adapters": 2 * n * (2 * 2 * d + d + 2) + norms,
        "top_layers": getattr(method, "k", 0) * layer + pool * pooler,
        "layernorm_only": norms,
        "head_only": 0,
        "full": embeddings + n * layer + pool * pooler,
    }[method.name]
    assert record.counts.trained_without_head == trained
    assert record.counts.trained == trained + classifier + pool * (not pooler)
    assert record.counts.base == embeddings + n * layer + pool * pooler
    assert record.counts.base_layers == n


def test_requests_that_cannot_be(request_for, tmp_path):
    refuses(ModelError, ("k 4", "3"), plan_trials, [request_for(TopLayers(4))])
    refuses(ResultsError, ("request.json",), run_trial, tmp_path, CPU, lambda _: None)


def stop(now):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("change", "began", "words"),
    [
        ({"method": {"name": "lora"}}, False, ["request.json", "method.name", "lora"]),
        ({"base": 3}, False, ["request.json", "base is 3"]),
        ({"extra": 1}, False, ["request.json", "extra"]),
        ({"settings.seed": 7}, True, ["settings.seed", "0", "7"]),  # a request of another training
    ],
)
def test_an_edited_request(change, began, words, request_for, tmp_path):
    [trial] = plan_trials([request_for()])
    write_requests(tmp_path, [trial])
    folder = trial.folder(tmp_path)
    if began:
        with pytest.raises(KeyboardInterrupt):
            run_trial(folder, CPU, stop)
    edit(folder / "request.json", change)
    said = refuses(ResultsError, words, run_trial, folder, CPU, lambda _: None)
    assert str(folder / "request.json") in said or began


def test_a_base_that_changed_before_its_trial_began(request_for, tiny_base, tmp_path):
    base = Path(shutil.copytree(tiny_base("bert"), tmp_path / "base"))
    [trial] = plan_trials([request_for(base=base)])
    write_requests(tmp_path, [trial])
    shutil.copytree(tiny_base("bert", seed=1), base, dirs_exist_ok=True)
    refuses(TrainingError, (trial.id,), run_trial, trial.folder(tmp_path), CPU, lambda _: None)
    assert read_trial(trial.folder(tmp_path)) is None


def test_two_tasks_of_one_name(request_for, tiny_task):
    one = request_for()
    other = request_for(task=tiny_task)
    other = dataclasses.replace(other, task=dataclasses.replace(other.task, name=one.task.name))
    refuses(TrainingError, (one.task.name,), shared_settings, plan_trials([one, other]))


@pytest.mark.parametrize("change", [{"warmup": 0.5}, {"dtype": "bfloat16"}])
def test_trials_that_the_table_cannot_tell_apart_do_not_share_a_study(request_for, tmp_path, change):
    request = request_for()
    claim_study(tmp_path, "tradeoff", *shared_settings(plan_trials([request])))
    other = dataclasses.replace(request, settings=dataclasses.replace(request.settings, **change))
    (name,) = change
    with pytest.raises(ResultsError, match=f"{name}: "):
        claim_study(tmp_path, "tradeoff", *shared_settings(plan_trials([other])))


@pytest.mark.parametrize("text", ["lora:r=2", pytest.param("adapters", marks=pytest.mark.slow)])
def test_costs_and_counts_are_those_of_the_files(text, request_for, tmp_path):
    request = request_for(method_of(text), epochs=1)
    [record] = run([request], tmp_path / "trials")
    train_checkpoint(request, tmp_path / "c", CPU, lambda _: None)
    (file,) = (tmp_path / "c").glob("*.safetensors")
    assert record.cost.checkpoint_bytes == file.stat().st_size
    assert record.counts.trained == sum(t.numel() for t in load_file(file).values())
    assert 0 < record.cost.seconds_per_step < record.seconds
    assert read_trial(next((tmp_path / "trials" / "trials").iterdir())).cost == record.cost


def peak(n_bytes: int = 0) -> int:
    """The peak of the memory of a block that makes so many bytes."""
    with PeakMemory(CPU) as memory:
        torch.ones(n_bytes // 8, dtype=torch.float64).sum() if n_bytes else None
    if memory.n_bytes is None:
        pytest.skip("this system does not tell")
    return memory.n_bytes


def test_the_peak_is_of_the_block():
    size = 200_000_000
    before, large, after = peak(8), peak(size), peak(8)
    assert large - before > 0.9 * size
    assert large - after > 0.9 * size


def test_a_system_that_does_not_tell_the_peak_has_none(tmp_path, monkeypatch):
    (tmp_path / "status").write_text("Name:\tpython\n")
    monkeypatch.setattr(trial_run, "_PROCESS", tmp_path)
    with trial_run.PeakMemory(CPU) as memory:
        pass
    assert memory.n_bytes is None


def test_what_an_earlier_trial_left_is_not_counted():
    before = peak()
    blocks = [torch.ones(1_000) for _ in range(20_000)]  # too small to be given back by themselves
    del blocks[::2]
    blocks.clear()
    assert peak() - before < 30_000_000


@pytest.mark.parametrize("text", ["lora:r=2", "full"])
def test_the_size_of_a_checkpoint_is_that_of_its_file(text, request_for, tmp_path):
    request = request_for(method_of(text))
    model = build_model(request, load_inputs(request).base, CPU)
    tensors = {name: t.detach().contiguous() for name, t in model.saved().items()}
    save_file(tensors, tmp_path / "tensors.safetensors", metadata={"format": "pt"})
    assert bytes_of_checkpoint(model) == (tmp_path / "tensors.safetensors").stat().st_size


def test_a_base_that_does_not_fit_is_refused_before_it_is_read(request_for, monkeypatch):
    request = request_for()
    monkeypatch.setattr("adapter_probe.jobs.trials.available_memory", lambda device: 10_000)
    monkeypatch.setattr("adapter_probe.jobs.trials.load_inputs", lambda request: pytest.fail("it was read"))
    refuses(CheckpointError, ("0.0 GB", "float32"), plan_trials, [request])
