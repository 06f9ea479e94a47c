"""Activations in place are the transformers library's own."""

from __future__ import annotations

import pytest
import torch
from transformers.activations import ACT2FN

from adapter_probe.models.adapters.in_place import activated_in_place


@pytest.mark.parametrize("name", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish"])
def test_the_same_values_in_the_same_memory(name):
    states = torch.linspace(-6, 6, 1001)
    given = states.clone()
    found = activated_in_place(ACT2FN[name])(given)
    torch.testing.assert_close(found, ACT2FN[name](states), rtol=1e-6, atol=1e-6)
    assert found.data_ptr() == given.data_ptr()


def test_others_are_left_alone():
    assert activated_in_place(ACT2FN["tanh"]) is None
