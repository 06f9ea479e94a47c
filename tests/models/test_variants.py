"""The architecture variants of an adapter, one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from placed_models import placed_on
from transformers import AutoModelForSequenceClassification

from adapter_probe.models.adapters.bottleneck import Bottleneck, TokenBatchNorm
from adapter_probe.models.methods import Adapters

VARIANTS = (
    Adapters(),
    Adapters(sites="attention"),
    Adapters(sites="ffn"),
    Adapters(placement="parallel"),
    Adapters(interaction="multiply"),
    Adapters(placement="parallel", interaction="multiply"),
    Adapters(norm="layernorm"),
    Adapters(norm="batchnorm"),
    Adapters(hidden_layers=2),
    Adapters(hidden_layers=3, activation="tanh", norm="batchnorm", placement="parallel", sites="attention"),
    Adapters(hidden_layers=2, norm="layernorm", interaction="multiply", activation="swish", sites="ffn"),
)


def label(method: Adapters) -> str:
    record = method.to_json()
    plain = Adapters(size=method.size, init_std=method.init_std).to_json()
    return "-".join(str(v) for k, v in record.items() if plain.get(k) != v) or "plain"


every_variant = pytest.mark.parametrize("method", [replace(m, size=5) for m in VARIANTS], ids=label)


@every_variant
def test_with_its_output_weights_at_zero_it_is_the_base(method: Adapters, tiny_base: Callable):
    model = placed_on(tiny_base("bert"), method)
    plain = AutoModelForSequenceClassification.from_config(model.base.config).double().eval()
    plain.load_state_dict(model.without_adapters)
    ids = torch.arange(5, 29).view(2, 12)
    with torch.no_grad():
        expected = plain(ids).logits
        assert (model.base(ids).logits - expected).abs().max() > 1e-2
        for module in model.base.modules():
            if isinstance(module, Bottleneck):
                module.up.weight.zero_()
                module.up.bias.zero_()
        assert torch.equal(model.base(ids).logits, expected)


@pytest.mark.parametrize("norm", ["none", "layernorm", "batchnorm"])
@pytest.mark.parametrize("hidden_layers", [1, 2, 3])
@pytest.mark.parametrize(("d", "m"), [(768, 64), (7, 3)])
def test_it_holds_the_parameters_that_are_promised(d: int, m: int, hidden_layers: int, norm: str):
    adapter = Bottleneck(d, m, "gelu", norm=norm, hidden_layers=hidden_layers)
    expected = 2 * m * d + d + m + (hidden_layers - 1) * (m * m + m) + (0 if norm == "none" else 2 * m)
    assert sum(p.numel() for p in adapter.parameters()) == expected
    assert sum(b.numel() for b in adapter.buffers()) == (2 * m if norm == "batchnorm" else 0)


@pytest.mark.parametrize("interaction", ["add", "multiply"])
@pytest.mark.parametrize("placement", ["sequential", "parallel"])
@pytest.mark.parametrize("norm", ["none", "layernorm", "batchnorm"])
def test_its_output_has_the_closed_form(norm: str, placement: str, interaction: str):
    adapter = Bottleneck(
        7, 3, "tanh", norm=norm, hidden_layers=2, placement=placement, interaction=interaction
    ).double()
    draw = np.random.default_rng(0)
    with torch.no_grad():
        for tensor in adapter.state_dict().values():
            tensor.copy_(torch.from_numpy(draw.uniform(0.2, 1, tuple(tensor.shape))))
    x, h = draw.normal(size=(2, 2, 4, 7))
    w = {name: tensor.numpy() for name, tensor in adapter.state_dict().items()}
    z = (h if placement == "parallel" else x) @ w["down.weight"].T + w["down.bias"]
    if norm == "layernorm":
        z = (z - z.mean(-1, keepdims=True)) / np.sqrt(z.var(-1, keepdims=True) + 1e-5)
    elif norm == "batchnorm":
        z = (z - w["norm.running_mean"]) / np.sqrt(w["norm.running_var"] + 1e-5)
    if norm != "none":
        z = z * w["norm.weight"] + w["norm.bias"]
    z = np.tanh(np.tanh(z) @ w["inner.0.weight"].T + w["inner.0.bias"])
    change = z @ w["up.weight"].T + w["up.bias"]
    expected = x * (1 + change) if interaction == "multiply" else x + change
    with torch.no_grad():
        out = adapter.eval()(torch.from_numpy(x), torch.from_numpy(h))
        rows = adapter.change(torch.from_numpy(x), torch.from_numpy(h), rows=torch.tensor([1, 1, 0]))
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-10)
    np.testing.assert_allclose(rows.numpy(), (expected - x)[[1, 1, 0]], rtol=1e-9)


def test_batch_normalisation_is_over_the_tokens_that_count():
    draw, norm = np.random.default_rng(0), TokenBatchNorm(4).double().train()
    x, counted = draw.normal(size=(3, 5, 4)), np.arange(15) % 4 != 0
    norm.counted = torch.from_numpy(counted)
    out = norm(torch.from_numpy(x)).detach().numpy().reshape(15, 4)[counted]
    rows = x.reshape(15, 4)[counted]
    np.testing.assert_allclose(out, (rows - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-5), atol=1e-12)
    np.testing.assert_allclose(norm.running_mean, 0.1 * rows.mean(0), atol=1e-12)
    np.testing.assert_allclose(norm.running_var, 0.9 + 0.1 * rows.var(0, ddof=1), atol=1e-12)


def test_a_single_token_is_normalised_by_the_running_averages():
    """As in the last layer with a batch of one example."""
    norm, x = TokenBatchNorm(4).double(), torch.randn(1, 1, 4, dtype=torch.float64)
    norm.running_mean.normal_(), norm.running_var.uniform_(0.5, 2)
    before = {name: buffer.clone() for name, buffer in norm.named_buffers()}
    wanted = (x - before["running_mean"]) / (before["running_var"] + 1e-5).sqrt()
    torch.testing.assert_close(norm.train()(x), wanted, rtol=0, atol=1e-12)
    assert all(torch.equal(before[name], buffer) for name, buffer in norm.named_buffers())


@every_variant
def test_weights_are_drawn_and_biases_zero(method: Adapters):
    before = torch.random.get_rng_state()
    adapter = Bottleneck.of(64, replace(method, size=16))
    adapter.initialise(0.5, torch.Generator().manual_seed(0))
    assert torch.equal(torch.random.get_rng_state(), before)  # the global generator
    maps = (adapter.down, *adapter.inner, adapter.up)
    assert all(
        m.weight.abs().max() <= 1 and m.weight.std().item() == pytest.approx(0.44, abs=0.05) for m in maps
    )
    assert len({m.weight.sum().item() for m in maps}) == len(maps)
    assert not any(m.bias.any() for m in maps)
    if method.norm != "none":
        assert (adapter.norm.weight == 1).all()
        assert not adapter.norm.bias.any()
