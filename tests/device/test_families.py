"""Every family's prefix tree on a device, against the loop on the processor."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from mask_loop import assert_same, brute, read, spans
from tiny_families import FLOAT32_INSIDE, OTHERS, ROWS, TARGETS, family, lora

from adapter_probe.replay.replay import Replay

QUICK = ["llama", "bert", "t5 (labels)", "deberta-v2", "gemma3_text", "mixtral"]
REFUSED = {"xlm"}
NAMES = [
    pytest.param(n, marks=() if n in QUICK else pytest.mark.slow)
    for n in (*ROWS, *OTHERS)
    if n not in REFUSED
]


@pytest.mark.parametrize("name", NAMES)
def test_every_span_equals_the_loop_on_the_processor(name, devices):
    base, x = family(name)
    model = lora(base, target_modules=TARGETS.get(name, "all-linear"))
    with devices() as machine:
        moved = {key: own.to("pretend") if isinstance(own, torch.Tensor) else own for key, own in x.items()}
        replay = Replay(copy.deepcopy(model).to("pretend"), moved, read=read)
        n = len(replay.layers)
        masks = np.concatenate([spans(n), np.random.default_rng(0).random((2, n)) < 0.5])
        columns = masks.repeat(2, axis=1)
        found = replay.outputs(moved, columns, rows=60, read=read).cpu()
        assert machine.operations
    modules = [model.get_submodule(layer.name) for layer in replay.layers]
    if len(set(modules)) < n:  # one module is several layers: switched when it is called
        on_host = Replay(model, x, read=read)
        own = torch.stack([on_host.own(x, mask, read) for mask in columns])
    else:
        own = brute(model, modules, x, masks)
    assert_same(found, own, 1e-6 if name in FLOAT32_INSIDE else 1e-10)
