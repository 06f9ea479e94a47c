"""Activations in place are the transformers library's own, and leave alone what a gradient needs."""

from __future__ import annotations

import pytest
import torch
from transformers.activations import ACT2FN

from adapter_probe.models.adapters.in_place import activated

ALL = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish", "tanh", "gelu_fast")


@pytest.mark.parametrize("name", ALL)
def test_the_same_values(name):
    states = torch.linspace(-6, 6, 1001)
    with torch.no_grad():
        found = activated(ACT2FN[name], states.clone())
    torch.testing.assert_close(found, ACT2FN[name](states), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ALL[:6])
def test_no_second_tensor_without_gradients(name):
    states = torch.randn(10)
    with torch.inference_mode():
        assert activated(ACT2FN[name], states).data_ptr() == states.data_ptr()


@pytest.mark.parametrize("name", ALL)
def test_gradients_are_those_of_the_library(name):
    states = torch.linspace(-3, 3, 50, dtype=torch.float64, requires_grad=True)
    twin = states.detach().clone().requires_grad_()
    activated(ACT2FN[name], states * 1).sum().backward()
    ACT2FN[name](twin).sum().backward()
    torch.testing.assert_close(states.grad, twin.grad)
