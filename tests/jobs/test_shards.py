"""An ablation in shards: the same parts wherever they are computed, each counted once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from refusals import naming, refuses
from where import DEVICE, KIND

from adapter_probe.ablation_settings import AblationSettings
from adapter_probe.custom_metric import CustomMetric
from adapter_probe.errors import ResultsError
from adapter_probe.jobs.shards import gather_shards, run_shard, write_shards
from adapter_probe.probe import resumable as engine
from adapter_probe.probe.ablation_arguments import AblationArguments
from adapter_probe.probe.request import prepare_ablation
from adapter_probe.probe.resumable import AblationRun
from adapter_probe.results.schema import GUARD


@pytest.fixture(scope="module")
def checkpoint(random_checkpoint: Callable[..., Path], tiny_task: Path) -> Path:
    return random_checkpoint(tiny_task, 11)


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(engine.TOKENS_PER_PART, KIND, 40)


@pytest.fixture
def arguments(checkpoint: Path) -> AblationArguments:
    return AblationArguments(str(checkpoint), AblationSettings(), max_examples=32, tokens_per_pass=100)


def in_shards(arguments: AblationArguments, out: Path, most: int, work: Callable[[dict[Path, int]], None]):
    request = prepare_ablation(arguments, DEVICE)
    with AblationRun(request, out) as ablation:
        gather_shards(out, ablation)
        work(write_shards(out, arguments, ablation, most))
        gather_shards(out, ablation)
        return ablation, ablation.missing()


def compute_all(shards: dict[Path, int]) -> None:
    for folder, tokens in shards.items():
        seen = [0]
        run_shard(folder, DEVICE, seen.append)
        assert seen == sorted(seen)
        assert seen[-1] == tokens


SLOW_ALONE = pytest.param(1, "float32", marks=pytest.mark.slow)
SLOW_MIXED = pytest.param(3, "mixed", marks=pytest.mark.slow)


def arrays(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((out / "parts").glob("*.npz"))}


@pytest.mark.parametrize(("most", "precision"), [SLOW_ALONE, (4, "float32"), SLOW_MIXED])
def test_shards_give_the_same_parts(most, precision, arguments, tmp_path):
    arguments = replace(arguments, settings=AblationSettings(precision=precision))
    request = prepare_ablation(arguments, DEVICE)
    with AblationRun(request, tmp_path / "whole") as run:
        run.compute(lambda _: None)
        whole = run.results()
    _, missing = in_shards(arguments, tmp_path / "cut", most, compute_all)
    assert missing == []
    assert arrays(tmp_path / "cut") == arrays(tmp_path / "whole") != {}
    assert (tmp_path / "cut" / GUARD).exists() == (precision == "mixed")
    shutil.rmtree(tmp_path / "cut" / "shards")
    with AblationRun(request, tmp_path / "cut") as run:
        run.compute(lambda _: pytest.fail("computed again"))
        together = run.results()
    np.testing.assert_array_equal(together.outputs, whole.outputs)


def test_every_part_is_in_one_shard(arguments, tmp_path):
    def look(shards):
        lists = [json.loads((folder / "shard.json").read_text())["parts"] for folder in shards]
        assert sorted(part for parts in lists for part in parts) == list(range(sum(map(len, lists))))
        assert max(map(len, lists)) - min(map(len, lists)) <= 1

    ablation, missing = in_shards(arguments, tmp_path, 3, look)
    assert len(missing) == ablation.parts_done()[1]


@pytest.mark.slow
def test_what_is_done_is_not_shared_out_again(arguments, tmp_path):
    def the_first(shards):
        run_shard(next(iter(shards)), DEVICE, lambda _: None)

    ablation, missing = in_shards(arguments, tmp_path, 3, the_first)
    assert 0 < len(missing) < ablation.parts_done()[1]
    before = arrays(tmp_path)

    def rest(shards):
        assert next(iter(shards.values())) == 0
        assert sum(shards.values()) == sum(map(ablation.tokens_of, missing))
        compute_all({folder: tokens for folder, tokens in shards.items() if tokens})

    assert in_shards(arguments, tmp_path, 7, rest)[1] == []  # seven are not made: three are there
    assert before.items() <= arrays(tmp_path).items()


def test_an_interrupted_shard_goes_on(arguments, tmp_path):
    def stop(_):
        raise KeyboardInterrupt

    def work(shards):
        (folder, tokens), *_ = shards.items()
        with pytest.raises(KeyboardInterrupt):
            run_shard(folder, DEVICE, lambda done: stop(done) if done > tokens / 2 else None)
        kept = arrays(folder)
        assert kept
        seen = []
        run_shard(folder, DEVICE, seen.append)
        assert kept.items() <= arrays(folder).items()
        assert seen[0] > tokens / 4
        assert seen[-1] == tokens

    in_shards(arguments, tmp_path, 2, work)


@pytest.mark.slow
def test_a_damaged_part_is_left_to_its_shard(arguments, tmp_path):
    def work(shards):
        compute_all(shards)
        part = next(iter(next(iter(shards)).glob("parts/*.npz")))
        part.write_bytes(part.read_bytes()[:-5])

    assert len(in_shards(arguments, tmp_path, 2, work)[1]) == 1
    assert in_shards(arguments, tmp_path, 2, compute_all_that_is_left)[1] == []


def compute_all_that_is_left(shards: dict[Path, int]) -> None:
    compute_all({folder: tokens for folder, tokens in shards.items() if tokens})


@pytest.mark.slow
def test_a_shard_of_other_data_is_refused(arguments, tmp_path):
    in_shards(arguments, tmp_path / "a", 1, compute_all)
    other = AblationArguments(arguments.checkpoint, arguments.settings, max_examples=20)
    (tmp_path / "a" / "shards").rename(tmp_path / "shards")
    refuses(ResultsError, ("data",), in_shards, other, tmp_path, 1, compute_all)


def test_a_damaged_shard(arguments, tmp_path):
    def work(shards):
        (folder,) = shards
        (folder / "shard.json").write_text('{"arguments": {"checkpoint": 3}, "plan": {}, "parts": []}')
        with pytest.raises(ResultsError, match=naming("shard.json", "arguments.checkpoint", "3")):
            run_shard(folder, DEVICE, lambda _: None)

    in_shards(arguments, tmp_path, 1, work)


def test_paths_are_absolute(arguments, checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(checkpoint.parent)
    relative = AblationArguments(checkpoint.name, arguments.settings, base="no/folder", data=("x.tsv",))
    settled = relative.settled()
    assert settled["checkpoint"] == str(checkpoint)
    assert settled["data"] == [str(checkpoint.parent / "x.tsv")]
    assert settled["base"] == "no/folder"  # on the hub


def test_a_function_that_scores_stays_with_who_asked():
    metric = CustomMetric(lambda labels, predictions: 1.0)
    asked = AblationArguments("checkpoint", AblationSettings(), metric=metric).settled()
    assert asked["metric"] is None
    assert AblationArguments("checkpoint", AblationSettings(), metric="mcc").settled()["metric"] == "mcc"
