"""A study and a training on an accelerator, by the stand-in of `tests/fixtures/accelerator.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerator import DEVICE, accelerator

from adapter_probe.ablation_settings import AblationSettings
from adapter_probe.probe.arguments import AblationArguments
from adapter_probe.probe.engine import Engine
from adapter_probe.probe.request import prepare_ablation

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "mixed"])
def test_a_study_stays_on_the_device_until_a_batch_is_done(
    precision: str, random_checkpoint: Callable[..., Path], tiny_task: Path
):
    folder = random_checkpoint(tiny_task, 20)
    request = prepare_ablation(
        AblationArguments(str(folder), AblationSettings(precision=precision)), torch.device("cpu")
    )
    items = torch.arange(len(request.encoded)).numpy()
    with accelerator() as device:
        device.move(request.checkpoint.model)
        engine = Engine(replace(request, device=DEVICE))
        (arrays,) = engine.outputs([items], lambda _: None)
        engine.repeat_doubtful_pairs(arrays)
        assert arrays["logits"].shape[:2] == (len(request.variants.masks), len(items))
