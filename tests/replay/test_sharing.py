"""Copies that share tensors, against `copy.deepcopy`."""

from __future__ import annotations

import copy
from itertools import chain

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from adapter_probe.replay.sharing import sharing


@pytest.fixture
def tuned():
    config = BertConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8
    )
    return get_peft_model(
        BertForSequenceClassification(config),
        LoraConfig(target_modules="all-linear", modules_to_save=["classifier"]),
    ).eval()


def described(model: nn.Module) -> list:
    """Every attribute of every module, with modules and tensors by the place where they are first seen."""
    seen: dict[int, str] = {}

    def told(value: object) -> object:
        if isinstance(value, nn.Module | torch.Tensor):
            return seen.setdefault(id(value), f"{type(value).__name__} {len(seen)}")
        if isinstance(value, dict):
            return type(value), [(key, told(item)) for key, item in value.items()]
        if isinstance(value, list | tuple):
            return [told(item) for item in value]
        return value if isinstance(value, bool | int | float | str | set) else type(value)

    return [(name, type(module), told(vars(module))) for name, module in model.named_modules()]


def test_a_copy_is_that_of_deepcopy_with_the_same_tensors(tuned):
    found = sharing(tuned)
    assert described(found) == described(tuned) == described(copy.deepcopy(tuned))
    mine, theirs = (list(chain(model.parameters(), model.buffers())) for model in (found, tuned))
    assert list(map(id, mine)) == list(map(id, theirs))
    assert not {id(m) for m in found.modules()} & {id(m) for m in tuned.modules()}


def test_switches_are_of_its_own(tuned):
    x = torch.arange(6)[None] % 9
    for module in tuned.modules():
        if hasattr(module, "lora_B"):
            nn.init.normal_(module.lora_B["default"].weight)
    found = sharing(tuned)
    with torch.no_grad(), found.disable_adapter():
        off, on = found(x).logits, tuned(x).logits
        assert not torch.allclose(off, on)
    with torch.no_grad():
        assert torch.equal(found(x).logits, on)


class Pointing(nn.Module):
    """Refers to modules beside its own, to one dictionary from two places, and holds a method."""

    def __init__(self, other: nn.Module, held: dict):
        super().__init__()
        self.others, self.held, self.call = [other], held, other.forward


class Counted(nn.Linear):
    """Copies itself in its own way."""

    def __deepcopy__(self, memo):
        other = memo[id(self)] = Counted(2, 2)
        other.copied = True
        return other


def test_references_stay_within_the_copy():
    held: dict = {}
    inner = nn.Linear(2, 2)
    found = sharing(nn.Sequential(inner, Pointing(inner, held), Pointing(inner, held), Counted(2, 2)))
    first, second = found[1], found[2]
    assert first.others[0] is second.call.__self__ is found[0]
    assert first.held is second.held is not held
    assert found[3].copied
