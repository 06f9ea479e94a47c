"""The last layer computed for the one position that the head reads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_families import family, ids, lora

from adapter_probe.replay.replay import Replay


@pytest.mark.parametrize(
    ("name", "position", "spared"),
    [
        ("bert", 0, {"attention.self.query", "attention.output", "intermediate", "output"}),
        ("llama seq-cls", -1, {"self_attn.q_proj", "self_attn.o_proj", "mlp", "post_attention_layernorm"}),
    ],
)
def test_what_no_head_reads_is_not_computed_and_changes_nothing(name, position, spared):
    base, _ = family(name)
    x = ids(n=2, s=7, pad=None)
    model = lora(base)
    whole, last = Replay(model, x), Replay(model, x, one_position=True)
    assert last._last[0] == position
    assert set(last._last[1]) >= spared
    masks = np.random.default_rng(0).random((9, len(whole.has_adapter))) < 0.5
    masks[0] = True
    other = ids(n=3, s=9, pad=None, seed=3)
    for one in (last, last.twin()):
        assert abs(one.outputs(other, masks) - whole.outputs(other, masks)).max() < 1e-12
    padded = ids(n=3, s=9, pad="right")  # where the last position is not the one that is read
    assert abs(last.outputs(padded, masks) - whole.outputs(padded, masks)).max() < 1e-12


def test_a_head_that_averages_reads_every_position():
    base, _ = family("bert")
    base.bert.pooler.forward = lambda hidden: torch.tanh(hidden.mean(1))
    assert Replay(lora(base), ids(n=2, pad=None), one_position=True)._last is None
