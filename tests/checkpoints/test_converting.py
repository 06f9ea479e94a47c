"""Conversions: what comes out opens to the same logits, and what would be lost is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from exact import Float64, assert_close_in_float64, to_float64
from refusals import names, refuses
from tiers import slow_unless
from training_models import load_plain

from adapter_probe.checkpoints.converting import to_adapterhub, to_native
from adapter_probe.checkpoints.opened_peft import OpenedPeft
from adapter_probe.checkpoints.opening import open_any
from adapter_probe.data.task_of_files import given_task
from adapter_probe.errors import CheckpointError
from adapter_probe.replay.replay import Replay

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Labelled examples for the fixtures' bases."""
    path = tmp_path / "validation.jsonl"
    rows = [{"text": f"w{n} w{3 * n}", "label": n % 3} for n in range(9)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def masks(n_layers: int) -> np.ndarray:
    """By layers, because PEFT's LayerNorms between sublayers count with either."""
    return (np.random.default_rng(0).random((12, n_layers)) < 0.5).repeat(2, axis=1)


def all_variants(opened: OpenedPeft) -> np.ndarray:
    """Logits ``[variants, texts, labels]`` in float64."""
    ids = np.random.default_rng(0).integers(5, 30, (3, 6))
    model = to_float64(opened.model)
    with Float64():
        if model.config.pad_token_id is None:
            model.config.pad_token_id = -1
        replay = Replay(model, {"input_ids": torch.from_numpy(ids)})
        return replay.outputs({"input_ids": torch.from_numpy(ids)}, masks(len(replay.layers))).numpy()


def opened_with_data(case: str, data: Path) -> OpenedPeft:
    family = Path(case).name.partition("-")[0]
    family = family if family in ("roberta", "llama", "gpt2", "distilbert") else "bert"
    opened = open_any(FIXTURES / case, str(FIXTURES / "bases" / family))
    return opened.with_task(given_task(opened.description.task, [data], "validation", FIXTURES / case))


QUICK = ("union", "gpt2-pfeiffer", "distilbert-flex", "ia3")
OTHERS = ("gated-channel", "norms-per-layer", "flex-first", "roberta-flex", "lora-everywhere")


@pytest.mark.parametrize("case", slow_unless(QUICK.__contains__, QUICK + OTHERS))
def test_this_projects_format_holds_all_that_can_be_opened(case: str, data: Path, tmp_path: Path):
    opened = opened_with_data(f"adapterhub/{case}", data)
    to_native(opened, tmp_path / "native")
    again = open_any(tmp_path / "native")
    assert again.description.method == opened.description.method
    assert again.description.task == opened.description.task
    assert_close_in_float64(all_variants(again), all_variants(opened))


@pytest.mark.parametrize(
    ("case", "convert", "facts"),
    [
        ("adapterhub/ia3", to_native, ("--data FILE",)),
        ("causal/gpt2-lora", to_native, ("--to peft",)),
        ("adapterhub/lora", to_adapterhub, ("not imported",)),
        (None, to_adapterhub, ("LayerNorms", "--lossy")),  # the project's own
    ],
)
def test_what_a_format_cannot_hold_is_refused(case, convert, facts, bert_checkpoint: Path, tmp_path: Path):
    base = str(FIXTURES / "bases" / ("gpt2" if case == "causal/gpt2-lora" else "bert"))
    opened = open_any(FIXTURES / case, base) if case else open_any(bert_checkpoint)
    refuses(CheckpointError, facts, convert, opened, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_adapterhub_and_back(tiny_base: Callable[..., Path], bert_checkpoint: Path, tmp_path: Path):
    opened = open_any(bert_checkpoint)
    (lost,) = to_adapterhub(opened, tmp_path / "hub", lossy=True)
    assert names(lost, "LayerNorms")
    back = open_any(tmp_path / "hub")
    # What was lost, lost on the one side too: the base's own LayerNorms.
    base = dict(load_plain(tiny_base("bert")).model.named_parameters())
    with torch.no_grad():
        for name, parameter in opened.model.named_parameters():
            if "LayerNorm" in name:
                parameter.copy_(base[name])
    assert_close_in_float64(all_variants(back), all_variants(opened))
    assert back.description.task.label_names == opened.description.task.label_names


@pytest.mark.parametrize("hidden", [32, 100, 768])
def test_every_size_can_be_said_as_a_reduction_factor(hidden: int):
    from adapter_probe.checkpoints.converting import _reduction_factor

    for size in range(1, 2 * hidden + 1):
        assert int(hidden // _reduction_factor(hidden, size)) == size
