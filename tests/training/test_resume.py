"""A training that was interrupted anywhere ends in the same bytes as one that was not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from refusals import refuses
from trainings import stop_at

import adapter_probe.training.loop as loop
from adapter_probe.errors import ResultsError, TrainingError
from adapter_probe.models.methods import Adapters
from adapter_probe.training.model import TrainingModel

FILES = ("adapter_probe.json", "delta.safetensors")


@pytest.fixture(scope="module")
def undisturbed(tiny_base, short_task, train, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed") / "c"
    train(tiny_base("bert"), short_task, folder)
    return folder


def assert_same(folder: Path, other: Path) -> None:
    for name in FILES:
        assert (folder / name).read_bytes() == (other / name).read_bytes(), name


@pytest.mark.parametrize(
    "steps", [(1, 2, 3, 4, 5), *(pytest.param((n,), marks=pytest.mark.slow) for n in range(1, 7))]
)
def test_interrupted_after_a_step(steps, tiny_base, short_task, train, undisturbed, tmp_path):
    # Three steps an epoch: 1 and 2 lie inside the first, 3 and 6 end one; the base has dropout.
    for step in steps:
        with pytest.raises(KeyboardInterrupt):
            train(tiny_base("bert"), short_task, tmp_path / "c", stop_at(step))
        assert not (tmp_path / "c" / "adapter_probe.json").exists()
    seen: list[int] = []
    train(tiny_base("bert"), short_task, tmp_path / "c", lambda now: seen.append(now.step))
    assert seen == list(range(steps[-1] + 1, 7))  # it went on, not from the start
    assert_same(tmp_path / "c", undisturbed)


def interrupt_once(monkeypatch: pytest.MonkeyPatch, place: object, name: str, call: int, after: bool) -> None:
    """Ctrl-C before or after the given call, from 1, of a function."""
    original, calls = getattr(place, name), []

    def interrupted(*arguments: object, **options: object) -> object:
        calls.append(None)
        if len(calls) == call and not after:
            raise KeyboardInterrupt
        result = original(*arguments, **options)
        if len(calls) == call:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(place, name, interrupted)


@pytest.mark.parametrize(
    "after", [pytest.param(False, marks=pytest.mark.slow), True], ids=["before", "after"]
)
@pytest.mark.parametrize(
    ("place", "name", "call"),
    [
        (torch.optim.Adam, "step", 5),
        pytest.param(TrainingModel, "evaluate", 2, marks=pytest.mark.slow),
        pytest.param(loop.Trainer, "_save", 1, marks=pytest.mark.slow),
        pytest.param(loop, "pack", 4, marks=pytest.mark.slow),
        pytest.param(torch.optim.Adam, "zero_grad", 2, marks=pytest.mark.slow),
        pytest.param(torch.optim.Adam, "step", 1, marks=pytest.mark.slow),
        pytest.param(TrainingModel, "evaluate", 1, marks=pytest.mark.slow),
        pytest.param(loop.Trainer, "_finish_epoch", 1, marks=pytest.mark.slow),
        pytest.param(loop.Trainer, "_finish_epoch", 2, marks=pytest.mark.slow),
        pytest.param(loop.Trainer, "_restore", 1, marks=pytest.mark.slow),
    ],
)
def test_interrupted_inside_a_step(
    place, name, call, after, tiny_base, short_task, train, undisturbed, tmp_path, monkeypatch
):
    # Ctrl-C falls anywhere, also between an update and its count, or in the middle of an evaluation.
    with monkeypatch.context() as patch:
        interrupt_once(patch, place, name, call, after)
        with pytest.raises(KeyboardInterrupt):
            train(tiny_base("bert"), short_task, tmp_path / "c")
    train(tiny_base("bert"), short_task, tmp_path / "c")
    assert_same(tmp_path / "c", undisturbed)


def test_a_damaged_state_is_not_trusted(tiny_base, short_task, train, undisturbed, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(tiny_base("bert"), short_task, tmp_path / "c", stop_at(4))
    (part,) = (tmp_path / "c" / "training" / "parts").glob("*.npz")
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    train(tiny_base("bert"), short_task, tmp_path / "c")
    assert_same(tmp_path / "c", undisturbed)


def test_the_same_command_on_a_finished_folder_does_nothing(
    tiny_base, short_task, train, tree, undisturbed, tmp_path
):
    folder = shutil.copytree(undisturbed, tmp_path / "c", copy_function=shutil.copy2)
    before, steps = tree(folder), []
    described = train(tiny_base("bert"), short_task, folder, steps.append)
    assert (steps, tree(folder)) == ([], before)
    assert described.scores == json.loads((folder / "adapter_probe.json").read_text())["scores"]


def test_the_state_is_gone_once_the_checkpoint_is_there(undisturbed):
    assert not list(undisturbed.rglob("*.npz"))
    assert {path.name for path in undisturbed.iterdir()} == {*FILES, "training"}


CHANGES = [
    ({"epochs": 3}, "settings.epochs: 2 -> 3"),
    ({"learning_rate": 2e-2}, "settings.learning_rate: 0.01 -> 0.02"),
    ({"batch_size": 16}, "settings.batch_size: 32 -> 16"),
    ({"seed": 1}, "settings.seed: 0 -> 1"),
    ({"warmup": 0.2}, "settings.warmup: 0.1 -> 0.2"),
    ({"dtype": "bfloat16"}, "settings.dtype: float32 -> bfloat16"),
    ({"method": Adapters(size=8, init_std=0.1)}, "method.size: 4 -> 8"),
    ({"method": Adapters(size=4, init_std=0.2)}, "method.init_std: 0.1 -> 0.2"),
]


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize(("change", "named"), CHANGES)
def test_changed_settings_are_refused_by_name(
    change, named, finished, tiny_base, short_task, train, undisturbed, tmp_path
):
    folder = shutil.copytree(undisturbed, tmp_path / "c")
    if not finished:
        (folder / "adapter_probe.json").unlink()
    with pytest.raises(ResultsError) as caught:
        train(tiny_base("bert"), short_task, folder, **change)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_another_base_and_other_data_are_refused(
    tiny_base, short_task, tiny_task, train, undisturbed, tmp_path
):
    folder = shutil.copytree(undisturbed, tmp_path / "c")
    refuses(ResultsError, ("base.weights_sha256",), train, tiny_base("bert", seed=1), short_task, folder)
    refuses(ResultsError, ("data.train", "data.validation"), train, tiny_base("bert"), tiny_task, folder)


def test_a_checkpoint_of_unknown_origin_is_not_taken_for_the_result(
    tiny_base, short_task, train, tree, undisturbed, tmp_path
):
    # A checkpoint that was copied or tidied has lost the record of its training; other settings than
    # those in its description must not return it as if they had trained it.
    folder = shutil.copytree(undisturbed, tmp_path / "c")
    shutil.rmtree(folder / "training")
    before = tree(folder)
    with pytest.raises((ResultsError, TrainingError)) as caught:
        train(tiny_base("bert"), short_task, folder, learning_rate=5e-4, epochs=1)
    assert str(folder) in str(caught.value)
    assert {name: content for name, content in tree(folder).items() if name in FILES} == before
