"""Replay against the loop over variants, in float64, on tiny models of every family."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mask_loop import assert_equal_to_loop, assert_same, brute, module_loop, read, spans
from tiers import slow_unless
from tiny_families import FLOAT32_INSIDE, OTHERS, ROWS, TARGETS, family, ids, lora
from where import DEVICE

from adapter_probe.errors import ModelError
from adapter_probe.replay.replay import Replay

QUICK = ["llama", "bert", "t5 (labels)", "mamba", "deberta-v2", "mixtral"]
NUMBERED = {"zamba2"}  # whose modules differ only in numbers, which the loop takes for those of experts
REFUSED = {"xlm": "layer by layer.*EncoderDecoderCache"}
NAMES = [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in (*ROWS, *OTHERS)]


@pytest.mark.parametrize("name", NAMES)
def test_every_span_and_random_masks_equal_the_loop(name):
    base, x = family(name)
    model = lora(base, target_modules=TARGETS.get(name, "all-linear")).to(DEVICE)
    x = {key: own.to(DEVICE) if isinstance(own, torch.Tensor) else own for key, own in x.items()}
    if name in REFUSED:
        with pytest.raises(ModelError, match=REFUSED[name]):
            Replay(model, x, read=read)
        return
    replay = Replay(model, x, read=read)
    n = len(replay.layers)
    masks = np.concatenate([spans(n), np.random.default_rng(0).random((4, n)) < 0.5])
    assert_equal_to_loop(replay, x, masks, 1e-6 if name in FLOAT32_INSIDE else 1e-10)


@pytest.mark.parametrize(
    "name",
    slow_unless(
        {"bert", "mixtral"}.__contains__,
        [name for name in (*ROWS, *OTHERS) if name not in {*REFUSED, *NUMBERED}],
    ),
)
def test_every_module_of_every_layer_equals_the_loop(name):
    base, x = family(name)
    replay = Replay(lora(base, target_modules=TARGETS.get(name, "all-linear")), x, read=read, by="module")
    modules = [layer.module for layer in replay.layers]
    n, k = len(modules), len(replay.layers[0].sites)
    cells = ~np.eye(n * k, dtype=bool)
    kinds = np.tile(~np.eye(k, dtype=bool), n)
    generator = np.random.default_rng(0)
    masks = np.concatenate(
        [np.ones((1, n * k), bool), cells[:: -(-n * k // 24)], kinds, generator.random((4, n * k)) < 0.5]
    )
    ours = replay.outputs(x, masks, rows=200, read=read)
    if len(set(modules)) < n:  # one module is several layers: switched when it is called
        own = torch.stack([replay.own(x, mask, read) for mask in masks])
    else:
        own = module_loop(replay, x, masks)
    assert_same(ours, own, 1e-6 if name in FLOAT32_INSIDE else 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("pad", ["left", "right", None])
@pytest.mark.parametrize("name", ["llama", "bert", "t5 (labels)", "xlnet"])
def test_prepared_once_for_other_batches(name, pad):
    base, x = family(name)
    model, target = lora(base), {k: v for k, v in x.items() if k == "labels"}
    replay = Replay(model, target | ids(pad=None), read=read)
    masks = np.random.default_rng(0).random((6, len(replay.layers))) < 0.5
    masks[0] = True
    for n, s in ((3, 12), (2, 9), (1, 7), (3, 3)):
        batch = ids(n=n, s=s, pad=pad if s > 5 else None) | {k: v[:n] for k, v in target.items()}
        assert_equal_to_loop(replay, batch, masks)


@pytest.mark.parametrize("name", ["llama", pytest.param("t5 (labels)", marks=pytest.mark.slow), "bert"])
def test_pairs_of_an_example_and_a_mask_equal_the_loop(name):
    base, x = family(name)
    replay = Replay(lora(base), x, read=read)
    n, generator = len(replay.layers), np.random.default_rng(0)
    masks, examples = generator.random((9, n)) < 0.5, generator.integers(0, 3, 9)
    pairs = replay.outputs_of_pairs(x, examples, masks.repeat(2, axis=1), rows=40)
    own = brute(replay.model, [layer.module for layer in replay.layers], x, masks)
    for pair, example, whole in zip(pairs, examples, own):
        assert abs(pair - whole[example]).max() < 1e-10
