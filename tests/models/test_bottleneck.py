from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pytest
import torch
from scipy import special, stats

from adapter_probe.models.adapters.bottleneck import Bottleneck
from adapter_probe.models.methods import Activation, Adapters

CLOSED_FORMS = {
    "gelu": lambda z: z * special.ndtr(z),
    "gelu_tanh": lambda z: z / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))),
    "relu": lambda z: np.where(z > 0, z, 0),
    "swish": lambda z: z / (1 + np.exp(-z)),
    "tanh": np.tanh,
}


def initialised(hidden: int, size: int, std: float, seed: int = 0) -> Bottleneck:
    adapter = Bottleneck(hidden, Adapters(size))
    adapter.initialise(std, torch.Generator().manual_seed(seed))
    return adapter


@pytest.mark.parametrize("activation", get_args(Activation))
def test_output_has_the_closed_form(activation: str):
    adapter = Bottleneck(7, Adapters(3, activation=activation)).double()
    draw = np.random.default_rng(0)
    x = draw.normal(size=(2, 4, 7))
    down, up, down_bias, up_bias = (draw.normal(size=s) for s in ((3, 7), (7, 3), 3, 7))
    with torch.no_grad():
        adapter.down.weight.copy_(torch.from_numpy(down))
        adapter.down.bias.copy_(torch.from_numpy(down_bias))
        adapter.up.weight.copy_(torch.from_numpy(up))
        adapter.up.bias.copy_(torch.from_numpy(up_bias))
        out, change = adapter(torch.from_numpy(x)).numpy(), adapter.change(torch.from_numpy(x)).numpy()
    expected = CLOSED_FORMS[activation](x @ down.T + down_bias) @ up.T + up_bias
    np.testing.assert_allclose(change, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(out, x + expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("std", [1.0, 1e-2, 1e-7])
def test_weights_follow_the_normal_truncated_at_two_std(std: float):
    adapter = initialised(400, 50, std)
    truncated = stats.truncnorm(-2, 2)
    assert truncated.std() == pytest.approx(0.88, abs=0.001)
    for linear in (adapter.down, adapter.up):
        weights = linear.weight.detach().double().numpy().ravel() / std
        assert np.abs(weights).max() <= 2 * (1 + 1e-6)
        assert np.abs(weights).max() > 1.99
        assert weights.std() == pytest.approx(truncated.std(), rel=0.02)
        assert stats.kstest(weights, truncated.cdf).pvalue > 0.01


def test_the_two_matrices_are_drawn_independently():
    adapter = initialised(40, 40, 1.0)
    down, up = (w.detach().numpy().ravel() for w in (adapter.down.weight, adapter.up.weight))
    assert abs(stats.pearsonr(down, up).statistic) < 0.1
    assert abs(stats.pearsonr(down, up.reshape(40, 40).T.ravel()).statistic) < 0.1


def test_weights_follow_from_the_generator_alone_and_biases_start_at_zero():
    torch.manual_seed(1)
    one = initialised(6, 4, 1.0, seed=3).state_dict()
    torch.manual_seed(2)
    same, other = initialised(6, 4, 1.0, seed=3).state_dict(), initialised(6, 4, 1.0, seed=4).state_dict()
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["down.weight"], other["down.weight"])
    assert not one["down.bias"].any()
    assert not one["up.bias"].any()


def test_a_second_draw_goes_on_in_the_generator():
    generator = torch.Generator().manual_seed(0)
    adapter = Bottleneck(6, Adapters(4))
    adapter.initialise(1.0, generator)
    first = adapter.down.weight.clone()
    adapter.initialise(1.0, generator)
    assert not torch.equal(first, adapter.down.weight)


def test_it_is_near_the_identity_when_its_weights_are_near_zero():
    x = torch.randn(16, 32, generator=torch.Generator().manual_seed(0))
    changes = [initialised(32, 8, std).change(x).abs().max().item() for std in (1e-1, 1e-2, 1e-4, 1e-7)]
    # Both matrices shrink with std, so the change shrinks with its square.
    for std, change in zip((1e-2, 1e-4, 1e-7), changes[1:]):
        assert 0 < change < 100 * std**2
    assert changes[0] > 1e-3
    torch.testing.assert_close(initialised(32, 8, 1e-7)(x), x, rtol=0, atol=1e-7)


@pytest.mark.parametrize("placement", ["sequential", "parallel"])
def test_with_autocast_evaluation_keeps_the_precision_of_training(placement: str):
    """The sum of a product in bfloat16 and states in float32 is in float32, in place or not."""
    adapter = Bottleneck(16, Adapters(4, placement=placement))
    adapter.initialise(0.3, torch.Generator().manual_seed(0))
    draw = torch.Generator().manual_seed(1)
    x, residual = torch.randn(2, 1, 5, 16, generator=draw)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        trained = adapter(x, residual)
        with torch.no_grad():
            evaluated = adapter(x, residual)
    assert trained.dtype == evaluated.dtype == torch.float32
    assert torch.equal(trained, evaluated)
