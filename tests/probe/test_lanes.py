"""Batches side by side: the same results as one after another, in order, and an end when nobody waits."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from exact import assert_close_in_float32
from tiers import slow_unless

from adapter_probe.ablation_results import AblationResults
from adapter_probe.ablation_settings import AblationSettings
from adapter_probe.probe.ablation_arguments import AblationArguments
from adapter_probe.probe.lanes import Lanes, Stopped
from adapter_probe.probe.request import AblationRequest, prepare_ablation
from adapter_probe.probe.resumable import AblationRun
from adapter_probe.probe.runners import model_runners

FIXTURES = Path(__file__).parents[1] / "checkpoints" / "fixtures"


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """``threads(n)`` until the test's end."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("texts") / "d.jsonl"
    rows = [" ".join(f"w{word}" for word in draw.integers(0, 48, 3 + n % 12)) for n in range(60)]
    path.write_text("".join(json.dumps({"text": t, "label": n % 3}) + "\n" for n, t in enumerate(rows)))
    return path


def prepare(case: str, texts: Path, precision: str = "float32") -> AblationRequest:
    arguments = AblationArguments(
        str(FIXTURES / case), AblationSettings(precision=precision), data=(str(texts),),
        base=str(FIXTURES / "bases" / "bert"), tokens_per_pass=120,
    )  # fmt: skip
    return prepare_ablation(arguments, torch.device("cpu"))


def ablate(request: AblationRequest, out: Path) -> tuple[AblationResults, list[int]]:
    reports: list[int] = []
    with AblationRun(request, out) as ablation:
        ablation.compute(reports.append)
        return ablation.results(), reports


# What forks at the residual sum, inside a sublayer and in a norm.
@pytest.mark.parametrize(
    "case",
    ["adapterhub/houlsby"]
    + [
        pytest.param(case, marks=pytest.mark.slow)
        for case in ("peft/lora", "adapterhub/flex-pooled", "peft/norms")
    ],
)
@pytest.mark.parametrize("precision", slow_unless("float32".__eq__, ["float32", "mixed"]))
def test_lanes_change_no_result(case, precision, texts, threads, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "adapter_probe.probe.resumable.TOKENS_PER_PART", dict.fromkeys(("cpu", "accelerator"), 150)
    )

    def results(n: int) -> tuple[AblationResults, list[int]]:
        threads(n)
        request = prepare(case, texts, precision)
        found = ablate(request, tmp_path / str(n))
        assert torch.get_num_threads() == n
        return found

    (alone, _), (together, reports) = results(1), results(4)
    assert sum(reports) == prepare(case, texts).encoded.lengths.sum()
    assert np.array_equal(together.predictions, alone.predictions)
    if precision == "float32":
        assert_close_in_float32(together.outputs, alone.outputs, layers=3)
    assert len({tuple(row) for row in together.outputs.round(4).reshape(len(together.outputs), -1)}) > 1


def test_a_twin_has_the_same_weights_and_switches_of_its_own(texts):
    request = prepare("adapterhub/houlsby", texts)
    replay = next(model_runners(request, torch.float32, 1))._replay
    own, shared = (one.model.state_dict() for one in (replay, replay.twin()))
    assert own.keys() == shared.keys()
    assert all(own[name].data_ptr() == shared[name].data_ptr() for name in own)
    other, x = replay.twin(), torch.ones(1, 2, request.checkpoint.description.base.hidden_size)
    (one, *_), (same, *_) = (r.layers[0].parts[0] for r in (replay, other))
    other.set(same, False)
    assert same(x, x) is x
    assert one(x, x) is not x


def test_results_come_in_order_and_side_by_side(threads):
    threads(3)
    meeting = threading.Barrier(3, timeout=20)  # passes only when three are under way

    def work(item: int) -> int:
        assert torch.get_num_threads() == 1
        meeting.wait()
        time.sleep(0.002 * (item % 3))
        return item

    assert list(Lanes("cpu").map(work, range(12))) == list(range(12))
    assert torch.get_num_threads() == 3


def test_an_error_reaches_whoever_waits(threads):
    threads(2)

    def work(item: int) -> int:
        return 1 // (item - 3)

    with pytest.raises(ZeroDivisionError):
        list(Lanes("cpu").map(work, range(9)))


def test_nothing_goes_on_when_nobody_waits(threads):
    threads(2)
    run, begun, stopped = Lanes("cpu"), threading.Event(), []

    def work(item: int) -> int:
        if item == 2:
            begun.set()
        deadline = time.monotonic() + 60
        while item and time.monotonic() < deadline:
            try:
                run.check()
            except Stopped:
                stopped.append(item)
                raise
            time.sleep(0.001)
        return item

    begin = time.monotonic()
    with closing(run.map(work, range(50))) as results:
        assert next(results) == 0
        assert begun.wait(60)  # or closing would cancel the second before it is on its lane
    assert time.monotonic() - begin < 30
    assert sorted(stopped) == [1, 2]
    assert list(run.map(lambda item: run.check() or item, range(3))) == [0, 1, 2]  # and it can begin anew


@pytest.mark.parametrize(("n", "expected"), [(1, 1), (2, 2), (16, 16), (17, 8), (40, 13), (64, 16)])
def test_many_cores_share_lanes(n, expected, threads):
    threads(n)
    assert Lanes("cpu").n == expected
    assert Lanes("cuda").n == 1
