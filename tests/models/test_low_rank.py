"""What stands inside a sublayer, against the merged weights that it stands for."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.pytorch_utils import Conv1D

from adapter_probe.errors import ModelError
from adapter_probe.models.adapters.imported import InnerSpec
from adapter_probe.models.adapters.low_rank import Inner, make_inner

INPUTS, OUTPUTS, RANK = 5, 4, 2


def attached(module: nn.Module, spec: InnerSpec) -> Inner:
    inner = make_inner(module, spec)
    inner.attach(module, "adapter")
    with torch.no_grad():
        for number, parameter in enumerate(inner.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    return inner


def linear(kind: type) -> nn.Module:
    torch.manual_seed(0)
    module = nn.Linear(INPUTS, OUTPUTS) if kind is nn.Linear else Conv1D(OUTPUTS, INPUTS)
    nn.init.normal_(module.bias)
    return module


@pytest.mark.parametrize("kind", [nn.Linear, Conv1D])
@pytest.mark.parametrize("bias", [False, True])
def test_low_rank_is_a_change_of_the_matrix(kind: type, bias: bool):
    module, x = linear(kind), torch.randn(2, 3, INPUTS)
    plain = deepcopy(module)
    inner = attached(module, InnerSpec("m", "low_rank", rank=RANK, scale=1.5, bias=bias))
    change = 1.5 * inner.up.weight @ inner.down.weight
    merged = deepcopy(plain)
    with torch.no_grad():
        merged.weight += change if kind is nn.Linear else change.T
        merged.bias += 1.5 * inner.up.bias if bias else 0
    torch.testing.assert_close(module(x), merged(x))
    inner.on = False
    assert module(x).equal(plain(x))


def test_factors_scale_columns_or_rows():
    x = torch.randn(2, 3, INPUTS)
    for kind, size in (("scale_input", INPUTS), ("scale_output", OUTPUTS)):
        module = linear(nn.Linear)
        plain = deepcopy(module)
        inner = attached(module, InnerSpec("m", kind, scale=2.0))
        factor = 2 * inner.factor
        assert len(factor) == size
        weight = plain.weight * (factor if kind == "scale_input" else factor[:, None])
        bias = plain.bias if kind == "scale_input" else plain.bias * factor
        torch.testing.assert_close(module(x), nn.functional.linear(x, weight, bias))
        inner.on = False
        assert module(x).equal(plain(x))


@pytest.mark.parametrize(("norm", "bias"), [(nn.LayerNorm(INPUTS), True), (LlamaRMSNorm(INPUTS), False)])
def test_a_norm_of_its_own(norm: nn.Module, bias: bool):
    plain, x = deepcopy(norm), torch.randn(2, 3, INPUTS)
    inner = attached(norm, InnerSpec("m", "norm", bias=bias))
    other = deepcopy(plain)
    other.load_state_dict(inner.state_dict())
    torch.testing.assert_close(norm(x), other(x))
    inner.on = False
    assert norm(x).equal(plain(x))


def test_a_copy_is_switched_on_its_own():
    module = linear(nn.Linear)
    attached(module, InnerSpec("m", "low_rank", rank=RANK))
    copy, x = deepcopy(module), torch.randn(1, INPUTS)
    before = module(x)
    copy.adapter.on = False
    assert module(x).equal(before)
    assert not copy(x).equal(before)


def test_other_modules_are_refused():
    with pytest.raises(ModelError, match="m is a Embedding"):
        make_inner(nn.Embedding(3, 2), InnerSpec("m", "low_rank", rank=1))
    with pytest.raises(ModelError, match="m is a Linear, not a supported normalisation"):
        make_inner(nn.Linear(3, 2), InnerSpec("m", "norm"))
