"""What computes in bfloat16 on a processor by other ways than torch's own, against float64."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.activations import ACT2FN

from adapter_probe.models.adapters.in_place import PackedMap, mapped
from adapter_probe.models.bases.fused import attend
from adapter_probe.models.packed import can_pack, pack_maps
from adapter_probe.probe.arguments import AblationArguments, AblationSettings
from adapter_probe.probe.lanes import twin
from adapter_probe.probe.request import AblationRequest, prepare_ablation
from adapter_probe.probe.tree import forward_variants

FIXTURES = Path(__file__).parents[1] / "checkpoints" / "fixtures"
ROUNDING = 2.0**-8  # of bfloat16, relative


def off(found: Tensor, exact: Tensor) -> float:
    """Largest error relative to the largest number."""
    error = (found.double() - exact).abs().max()
    return float(error / exact.abs().max()) if error else 0.0  # all of ReLU's outputs may be zero


@settings(deadline=None, max_examples=25)
@given(
    st.integers(1, 70),
    st.integers(1, 40),
    st.integers(1, 40),
    st.booleans(),
    st.sampled_from(["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "tanh"]),
)
def test_a_packed_map_is_the_map(rows: int, inputs: int, outputs: int, bias: bool, name: str):
    torch.manual_seed(rows)
    linear = nn.Linear(inputs, outputs, bias=bias).to(torch.bfloat16).requires_grad_(False)
    x = torch.randn(2, rows, inputs).to(torch.bfloat16)
    exact = F.linear(x.double(), linear.weight.double(), linear.bias.double() if bias else None)
    linear.forward = PackedMap(linear)
    linear.weight = nn.Parameter(linear.weight.new_empty(0), requires_grad=False)
    with torch.inference_mode():
        assert off(linear(x), exact) < ROUNDING
        assert off(deepcopy(linear)(x), exact) < ROUNDING
        assert off(mapped(linear, ACT2FN[name], x), ACT2FN[name](exact)) < 2 * ROUNDING
        linear.register_forward_hook(lambda module, read, out: 2 * out)
        assert off(mapped(linear, ACT2FN[name], x), ACT2FN[name](2 * exact)) < 2 * ROUNDING


@pytest.mark.parametrize("length", [1, 2, 7, 10, 11, 12, 15, 16, 17, 20, 27, 31, 33])
@pytest.mark.parametrize("scale", [None, 0.5])
def test_attention_in_bfloat16_at_every_length(length: int, scale: float | None):
    torch.manual_seed(length)
    query, key, value = (torch.randn(3, 2, length, 8).to(torch.bfloat16) for _ in range(3))
    with torch.inference_mode():
        found = attend(query, key, value, None, dropout_p=0.0, scale=scale)
    products = query.double() @ key.double().transpose(-1, -2) * (8**-0.5 if scale is None else scale)
    assert off(found, products.softmax(-1) @ value.double()) < 3 * ROUNDING
    one = attend(query[:, :, -1:], key, value, None, dropout_p=0.0, scale=scale)  # gradients are on
    assert off(one, products[:, :, -1:].softmax(-1) @ value.double()) < 3 * ROUNDING


def prepared(case: str, family: str, tmp_path: Path) -> AblationRequest:
    path = tmp_path / "d.jsonl"
    path.write_text("".join(f'{{"text": "w{n} w{n + 1} w{2 * n}", "label": {n % 3}}}\n' for n in range(12)))
    base = str(FIXTURES / "bases" / family)
    arguments = AblationArguments(
        str(FIXTURES / case), AblationSettings(precision="mixed"), base, (str(path),)
    )
    return prepare_ablation(arguments, torch.device("cpu"))


@pytest.mark.parametrize("case", ["adapterhub/houlsby", "peft/lora", "peft/lora-patterns", "peft/norms"])
def test_a_packed_model_is_the_model_in_bfloat16(case: str, tmp_path: Path):
    from adapter_probe.data.packing import pack

    request = prepared(case, "bert", tmp_path)
    exact = request.checkpoint.model.eval()
    plain, packed = (twin(exact, torch.bfloat16) for _ in range(2))
    if not can_pack(packed):
        pytest.skip("this processor does not multiply bfloat16")
    assert not can_pack(exact)
    pack_maps(packed, drop=True)
    maps = [m for m in packed.modules() if isinstance(vars(m).get("forward"), PackedMap)]
    assert len(maps) >= 6 * len(packed.layers) - 2
    batch = pack(request.encoded, np.arange(12))
    masks = request.variants.masks
    logits = [
        forward_variants(model, batch, masks, tokens_per_pass=64).double()
        for model in (exact, plain, packed, twin(packed))
    ]
    rounding = (logits[1] - logits[0]).abs().max()
    assert (logits[2] - logits[0]).abs().max() < 2 * rounding
    assert torch.equal(logits[3], logits[2])
    assert next(exact.parameters()).dtype == torch.float32
    assert all(p.numel() for p in exact.parameters())
