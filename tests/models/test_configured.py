"""Bottlenecks and heads of other libraries against their formulas, written out with plain tensors."""

from __future__ import annotations

import itertools

import pytest
import torch
from refusals import refuses
from torch import nn
from torch.nn import functional as F
from transformers.activations import ACT2FN

from adapter_probe.errors import ModelError
from adapter_probe.models.adapters.bottleneck import ConfiguredBottleneck, StackedHead, activation_named
from adapter_probe.models.adapters.imported import BottleneckSpec, HeadSpec

D, M = 6, 3


def filled(module: nn.Module, seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return module.double()


def states(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_hand(adapter: ConfiguredBottleneck, x, h, norm, strength: float = 1.0) -> torch.Tensor:
    """One example ``[tokens, d]``; the order of the library's own steps.

    With a strength: the sublayer's output, or without a norm after it the states, between those without and
    with the adapter.
    """
    spec, p = adapter.spec, dict(adapter.named_parameters())
    read, skip = x, x
    if spec.parallel:
        read, skip = h, torch.zeros_like(h)
    elif spec.norm_before:
        read = norm(x + h)
        skip = {"output": x, "sum": x + h, "normed": read}[spec.skip]
    z = read
    if spec.ln_before:
        z = F.layer_norm(z, (D,), p["ln_before.weight"], p["ln_before.bias"])
    up = torch.tanh(z @ p["down.weight"].T + p["down.bias"]) @ p["up.weight"].T + p["up.bias"]
    up = up * spec.scale * p.get("factor", 1.0)
    if spec.gate:
        up = up * torch.sigmoid(read @ p["gate.weight"].T + p["gate.bias"]).mean()
    out = up + skip if spec.ln_after_skip else up
    if spec.ln_after:
        out = F.layer_norm(out, (D,), p["ln_after.weight"], p["ln_after.bias"])
    if not spec.ln_after_skip:
        out = out + skip
    if spec.parallel:
        out = out + x
    off = x if spec.norm_after else norm(x + h)
    out = (1 - strength) * off + strength * out
    return norm(out + h) if spec.norm_after else out


SPECS = [
    BottleneckSpec(0, "ffn", M, "tanh", norm_before=before, norm_after=after, skip=skip, **more)
    for before, after, skip, more in itertools.product(
        (False, True),
        (False, True),
        ("output", "sum", "normed"),
        (
            {},
            {"ln_before": True, "scale": 2.0, "learned_scale": "one"},
            {"ln_after": True, "learned_scale": "channel", "gate": True},
            {"ln_after": True, "ln_after_skip": True, "gate": True},
        ),
    )
    if before or skip == "output"
] + [
    BottleneckSpec(0, "ffn", M, "tanh", parallel=True, scale=4.0),
    BottleneckSpec(0, "ffn", M, "tanh", parallel=True, ln_before=True, ln_after=True, gate=True),
]


@pytest.mark.parametrize("strength", [1.0, 0.5, -2.0])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_every_setting(spec: BottleneckSpec, strength: float):
    adapter, norm = filled(ConfiguredBottleneck(D, spec)), filled(nn.LayerNorm(D), seed=5)
    x, h = states(3, 4), states(3, 4, seed=2)
    with torch.no_grad():
        if spec.norm_after:
            out = norm(adapter.adapt(x, h, norm, strength) + h)
        else:
            out = adapter.finish(x, h, norm, strength)
        for example in range(3):
            expected = by_hand(adapter, x[example], h[example], norm, strength)
            torch.testing.assert_close(out[example], expected)


@pytest.mark.parametrize("name", sorted({*ACT2FN} - {"prelu", "xielu"}))
def test_every_activation_of_the_library(name: str):
    x = states(4)
    assert activation_named(name.upper())(x).equal(ACT2FN[name](x))


def test_leakyrelu_and_unknown_names():
    x = states(4)
    assert activation_named("leakyrelu")(x).equal(F.leaky_relu(x))
    refuses(ModelError, ("'sinc'", "gelu"), activation_named, "sinc")


@pytest.mark.parametrize("reads_sequence", [False, True])
def test_heads(reads_sequence: bool):
    head = filled(StackedHead(D, 4, HeadSpec(3, "relu", pooled=False, bias=False), reads_sequence))
    p = dict(head.named_parameters())
    x = states(5, 2)
    wanted = x[:, 0]
    for layer in range(2):
        wanted = (wanted @ p[f"{layer}.weight"].T + p[f"{layer}.bias"]).relu()
    out = head(x if reads_sequence else x[:, 0])
    torch.testing.assert_close(out, wanted @ p["2.weight"].T)
    assert "2.bias" not in p
