"""Fine-tuned models between their tensors and their base's, against state dicts mixed by hand, in float64."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from mask_loop import output, read, spans
from refusals import naming
from tiers import slow_unless
from tiny_families import FLOAT32_INSIDE, OTHERS, ROWS, family
from torch import nn

from adapter_probe.errors import ModelError
from adapter_probe.replay.replay import Replay
from adapter_probe.replay.switches import Switches
from adapter_probe.replay.two_states import TwoStates, finished, hold_both, put_back

QUICK = ("llama", "bert", "vit")
SHARED = ("albert", "zamba2")  # whose layers share tensors, so that no state dict has some of them off
ROUTED = ("switch", "switch(small capacity)")  # in float32
REFUSED = ("xlm",)
NAMES = [n for n in (*ROWS, *OTHERS) if n not in REFUSED]


def tuned(base: nn.Module, size: float = 0.1, only: str = "") -> nn.Module:
    """A copy whose parameters have moved."""
    model, generator = copy.deepcopy(base), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if only in name:
                parameter.add_(size * torch.randn(parameter.shape, generator=generator).to(parameter))
    return model


def mixed(model: nn.Module, base: nn.Module, off: list[str], strength: float, stay: set[str]) -> nn.Module:
    """The model with the base's tensors, or those between, under some names, by its state dict."""
    plain, others, done = copy.deepcopy(model), base.state_dict(), set()
    with torch.no_grad():
        for name, tensor in plain.state_dict().items():
            tied = tensor.data_ptr() in done
            done.add(tensor.data_ptr())
            if not tied and name not in stay and name.startswith(tuple(f"{one}." for one in off)):
                tensor.copy_(others[name] + strength * (tensor - others[name]))
    return plain


@pytest.mark.parametrize("name", slow_unless(lambda name: name in QUICK, NAMES))
def test_every_span_equals_a_state_dict_mixed_by_hand(name):
    single = name in FLOAT32_INSIDE
    base, x = family(name, torch.float32 if single else None)
    model = tuned(base)
    held = copy.deepcopy(model)
    difference = hold_both(held, base)
    for strength in (0.0, 0.5):
        replay = Replay(held, x, read=read, switches=Switches(strength))
        names = [layer.name for layer in replay.layers]
        masks = spans(len(names))[:: max(1, len(names) // 2)]
        masks = np.concatenate([masks, np.random.default_rng(0).random((2, len(names))) < 0.5])
        masks = masks if name not in SHARED else spans(len(names))[[0, len(names)]]
        ours = replay.outputs(x, masks.repeat(2, axis=1), rows=200, read=read)
        for mask, found in zip(masks, ours):
            off = [one for one, on in zip(names, mask) if not on]
            with torch.no_grad():
                own = output(mixed(model, base, off, strength, set(difference.outside))(**x))
            finite, exact = own.isfinite(), 1e-4 if single else 1e-6 if name in ROUTED else 1e-10
            assert (found - own)[finite].abs().max() < exact * max(1, float(own[finite].abs().max()))
        assert (ours - ours[0]).nan_to_num(0, 0, 0).abs().max() > 1e-3


def test_attention_and_feed_forward_network_are_sites_where_names_say_it():
    base, x = family("bert")
    model = tuned(base)
    held = copy.deepcopy(model)
    hold_both(held, base)
    replay = Replay(held, x, read=read)
    assert not any(layer.unclear for layer in replay.layers)
    mask = np.ones((1, 2 * len(replay.layers)), dtype=bool)
    mask[0, 3] = False
    off = ["bert.encoder.layer.1.intermediate", "bert.encoder.layer.1.output"]
    with torch.no_grad():
        own = output(mixed(model, base, off, 0.0, set())(**x))
    assert abs(replay.outputs(x, mask, read=read)[0] - own).max() < 1e-10


def test_tensors_that_are_equal_are_held_once_and_the_model_can_be_had_back():
    base, x = family("llama")
    model = tuned(base, only="self_attn")
    held = copy.deepcopy(model)
    difference = hold_both(held, base)
    assert {name.split(".")[3] for name in difference.inside} == {"self_attn"}
    assert not difference.outside
    both = [name for name, module in held.named_modules() if isinstance(module, TwoStates)]
    assert sorted(f"{name}.weight" for name in both) == sorted(difference.inside)
    own = {id(p): p.numel() for p in held.parameters()}
    added = sum(p.numel() for name, p in base.named_parameters() if "self_attn" in name)
    assert sum(own.values()) == sum(p.numel() for p in model.parameters()) + added
    plain = finished(held)
    assert [type(m) for m in plain.modules()] == [type(m) for m in model.modules()]
    assert plain.state_dict().keys() == model.state_dict().keys()
    with torch.no_grad():
        assert torch.equal(plain(**x).logits, model(**x).logits)


def test_tensors_outside_the_layers_are_named_and_can_be_put_back():
    base, x = family("gpt2")
    model = tuned(base)
    held = copy.deepcopy(model)
    difference = hold_both(held, base)
    assert "transformer.ln_f.weight" in difference.outside
    assert {"transformer.wte.weight", "lm_head.weight"} <= set(difference.outside)  # which are tied
    put_back(held, {name: base.state_dict()[name] for name in difference.outside})
    replay = Replay(held, x, read=read)
    off = np.zeros((1, 2 * len(replay.layers)), dtype=bool)
    with torch.no_grad():
        assert abs(replay.outputs(x, off, read=read)[0] - output(base(**x))).max() < 1e-10


def test_models_without_a_difference_of_single_tensors_are_refused():
    """More of them are in checkpoints/test_finetuned."""
    base, _ = family("gpt2")
    untied = tuned(base)
    untied.lm_head.weight = nn.Parameter(untied.lm_head.weight.detach().clone())
    with pytest.raises(ModelError, match=naming("lm_head.weight", "transformer.wte.weight", "its base")):
        hold_both(untied, base)
    other, _ = family("llama")
    with pytest.raises(ModelError, match=naming("lacks", "transformer.")):
        hold_both(copy.deepcopy(base), other)
