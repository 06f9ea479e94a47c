"""What the variants of a layer share: which rows its modules get, against the prefixes of the masks."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from mask_loop import assert_equal_to_loop, spans
from tiny_families import family, lora
from torch import nn

from adapter_probe.replay import variants
from adapter_probe.replay.replay import Replay, logits
from adapter_probe.replay.variants import Rows


def rows_of_calls(model: nn.Module, names: tuple[str, ...], per_row: int) -> Counter[str]:
    """Counts the rows that modules get, by the ends of their names, in copies of a batch."""
    seen: Counter[str] = Counter()

    def count(name: str):
        return lambda _module, args, kwargs: seen.update(
            {name: len(next(iter((*args, *kwargs.values())))) // per_row}
        )

    for name in names:
        for full, module in model.named_modules():
            if full.endswith(name):
                module.register_forward_pre_hook(count(name), with_kwargs=True)
    return seen


def distinct(masks: np.ndarray, columns: int) -> int:
    return len(np.unique(masks[:, :columns], axis=0)) if columns else 1


def test_modules_before_a_switch_get_one_row_for_all_variants_that_it_tells_apart(monkeypatch):
    monkeypatch.setattr(variants, "_COST_OF_COPIES", -1.0)
    base, x = family("llama")
    model = lora(base, target_modules=["gate_proj", "down_proj"])
    replay = Replay(model, x)
    masks = spans(len(replay.layers)).repeat(2, axis=1)
    seen = rows_of_calls(model, ("self_attn.q_proj", "up_proj", "gate_proj.base_layer"), len(x["input_ids"]))
    replay.outputs(x, masks, rows=10**6)
    n = len(replay.layers)
    states = [distinct(masks, 2 * k) for k in range(n)]  # before each layer
    children = [distinct(masks, 2 * k + 2) for k in range(n)]
    # The forward that records the batch runs each module once more.
    assert seen["self_attn.q_proj"] == sum(states) + n
    assert seen["up_proj"] == seen["gate_proj.base_layer"] == sum(children) + n
    assert sum(states) < sum(children)


def test_copies_are_made_only_where_they_save_more(monkeypatch):
    base, x = family("llama")
    replay = Replay(lora(base), x)  # all maps, so that hardly anything comes before the first switch
    plan = replay.plan(0)
    same, apart = np.zeros(3, dtype=int), np.array([[True, True], [False, False], [True, False]])
    assert plan.parts
    assert not plan.for_rows(Rows(np.arange(3), apart, {})).parts
    monkeypatch.setattr(variants, "_COST_OF_COPIES", -1.0)
    assert plan.for_rows(Rows(same, apart, {})).parts == plan.parts


@pytest.mark.parametrize("name", ["llama", "mixtral", pytest.param("t5 (labels)", marks=pytest.mark.slow)])
def test_layers_that_are_called_for_each_kind_give_the_same(name, monkeypatch):
    base, x = family(name)
    replay = Replay(lora(base), x)
    masks = spans(len(replay.layers)).repeat(2, axis=1)
    whole = replay.outputs(x, masks, rows=100, read=logits)
    monkeypatch.setattr(variants, "_COST_OF_COPIES", -1.0)
    together = replay.outputs(x, masks, rows=100, read=logits)
    assert torch.allclose(whole, together, rtol=0, atol=1e-10)
    replay._forget_plans()
    assert torch.allclose(whole, replay.outputs(x, masks, rows=100, read=logits), rtol=0, atol=1e-10)
    if name == "llama":
        assert_equal_to_loop(replay, x, spans(len(replay.layers)))


def test_a_module_with_experts_is_not_told_apart_by_rows_inside():
    base, x = family("mixtral")
    replay = Replay(lora(base, target_modules=["q_proj", "v_proj"]), x)
    for part in replay.plan(0).parts:
        assert ".experts." not in part.name


def test_what_the_example_does_not_show_is_computed_whole():
    base, x = family("llama")
    replay = Replay(lora(base, target_modules=["down_proj"]), x)
    layer, layers = replay.layers[0].module, spans(len(replay.layers))
    own = layer.mlp.forward
    layer.mlp.forward = lambda x, more=None: own(x)
    inner = layer.forward

    def with_more(*args, **kwargs):
        mlp = layer.mlp.forward
        layer.mlp.forward = lambda x: mlp(x, torch.ones(len(x)))  # a tensor that it was not given before
        try:
            return inner(*args, **kwargs)
        finally:
            layer.mlp.forward = mlp

    layer.forward = with_more
    assert_equal_to_loop(replay, x, layers)
