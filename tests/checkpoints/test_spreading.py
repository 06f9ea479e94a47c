"""Which part of a model goes where, of models without weights."""

from __future__ import annotations

import pytest
import torch
from refusals import naming
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from adapter_probe.checkpoints.spreading import memory_by_place, places_of, quantised_bytes, stored_bytes
from adapter_probe.errors import ModelError

GB = 10**9
LLAMA_70B = {
    "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip


def on_meta(kind: str, **sizes: int) -> nn.Module:
    auto = AutoModelForSeq2SeqLM if kind == "t5" else AutoModelForCausalLM
    with torch.device("meta"):
        return auto.from_config(AutoConfig.for_model(kind, **sizes), dtype=torch.bfloat16)


def test_70_billion_parameters_in_4_bits_are_planned_on_two_cards_without_memory():
    model = on_meta("llama", **LLAMA_70B)
    size = quantised_bytes({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, torch.bfloat16)
    free = {"cuda:0": 23 * GB, "cuda:1": 23 * GB}
    places = places_of(model, free, size)
    layers = [places[f"model.layers.{k}"] for k in range(80)]
    assert layers == sorted(layers)
    assert set(layers) == {"cuda:0", "cuda:1"}
    assert {places["lm_head"], places["model.embed_tokens"], places["model.norm"]} == {"cuda:0"}
    used = memory_by_place(model, places, size)
    assert all(used[place] <= room for place, room in free.items())
    in_layers = 80 * (2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 28672)
    ends = 2 * 2 * 128256 * 8192
    assert in_layers // 2 + ends < sum(used.values()) < in_layers * 0.6 + ends
    with pytest.raises(ModelError, match=naming("model.layers.", "fits nowhere", "cuda:0 23.0 GB")):
        places_of(model, free, stored_bytes)  # 141 GB in bfloat16


@pytest.mark.parametrize("kind", ["llama", "t5", "gpt2"])
def test_every_parameter_has_one_place_and_layers_are_whole_and_in_order(kind):
    names = {"t5": ("num_layers", "d_model", "num_heads"), "gpt2": ("n_layer", "n_embd", "n_head")}
    usual = ("num_hidden_layers", "hidden_size", "num_attention_heads")
    model = on_meta(kind, **dict(zip(names.get(kind, usual), (4, 24, 4))))
    named = [(name.split("."), m) for name, m in model.named_modules() if isinstance(m, nn.ModuleList)]
    stacks = [stack for parts, stack in named if not any(map(str.isdigit, parts))]
    layer = max(stored_bytes(one) for stack in stacks for one in stack)
    ends = stored_bytes(model) - sum(map(stored_bytes, stacks))
    free = {"pretend:0": ends + 2 * layer, "pretend:1": layer, "cpu": layer, "disk": 8 * layer}
    places = places_of(model, free)
    for name, _ in model.named_parameters():
        assert sum(name == own or name.startswith(f"{own}.") for own in places) == 1
    used = memory_by_place(model, places)
    assert all(used[place] <= free[place] for place in used)
    assert sum(used.values()) == stored_bytes(model)
    order = [list(free).index(place) for name, place in places.items() if name.rpartition(".")[2].isdigit()]
    assert order == sorted(order)
    assert len(order) == {"t5": 8}.get(kind, 4)
