"""What computes in bfloat16 on a processor by other ways than torch's own, against float64."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiers import slow_unless
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.activations import ACT2FN

from adapter_probe.ablation_settings import AblationSettings
from adapter_probe.models import functional
from adapter_probe.models.functional import (
    FasterFunctions,
    PackedMap,
    activated_in_place,
    can_pack_weight,
    dropout_mask,
    few_numbers,
)
from adapter_probe.probe import runners as general
from adapter_probe.probe.ablation_arguments import AblationArguments
from adapter_probe.probe.request import AblationRequest, prepare_ablation
from adapter_probe.probe.runners import model_runners

FIXTURES = Path(__file__).parents[1] / "checkpoints" / "fixtures"
ROUNDING = 2.0**-8  # of bfloat16, relative
GENERATOR = torch.Generator().manual_seed(0)
SEEN = torch.arange(7) < torch.tensor([3, 7, 5])[:, None]  # keys of three examples that are no padding
NO_BFLOAT16 = "oneDNN does not multiply bfloat16 on this processor"


def attend(*states: Tensor, **given: object) -> Tensor:
    """PyTorch's attention, replaced."""
    with FasterFunctions():
        return F.scaled_dot_product_attention(*states, **given)


def dropped_out(x: Tensor, rate: float, training: bool = True) -> Tensor:
    with FasterFunctions():
        return F.dropout(x, rate, training)


def off(found: Tensor, exact: Tensor) -> float:
    """Largest error relative to the largest number."""
    error = (found.double() - exact).abs().max()
    return (error / exact.abs().max()).item() if error else 0.0  # all of ReLU's outputs may be zero


@pytest.mark.skipif(not can_pack_weight(torch.ones(1, dtype=torch.bfloat16)), reason=NO_BFLOAT16)
@given(st.integers(1, 70), st.integers(1, 40), st.integers(1, 40), st.booleans())
def test_a_packed_map_is_the_map(rows: int, inputs: int, outputs: int, bias: bool):
    torch.manual_seed(rows)
    linear = nn.Linear(inputs, outputs, bias=bias).to(torch.bfloat16).requires_grad_(False)
    x = torch.randn(2, rows, inputs).to(torch.bfloat16)
    exact = F.linear(x.double(), linear.weight.double(), linear.bias.double() if bias else None)
    linear.forward = PackedMap(linear)
    linear.weight = nn.Parameter(linear.weight.new_empty(0), requires_grad=False)
    with torch.inference_mode():
        assert off(linear(x), exact) < ROUNDING
        assert off(deepcopy(linear)(x), exact) < ROUNDING


def test_products_have_few_numbers_of_rows():
    found = [few_numbers(n) for n in range(1, 4097)]
    assert all(n <= rows < n + max(16, n / 16) for n, rows in enumerate(found, 1))
    assert found == [few_numbers(rows) for rows in found]
    assert len(set(found)) == 16 * 5  # 16 up to 256, and 16 in each of four doublings


@pytest.mark.parametrize("length", [1, 2, 7, 10, 11, 12, 15, 16, 17, 20, 26, 27, 31, 33, 38, 70])
@pytest.mark.parametrize("rows", [3, 48])  # from 96 products on, short texts take another way
@pytest.mark.parametrize("scale", [None, 0.5])
@pytest.mark.parametrize("added", ["nothing", "a mask", "a mask of each row", "a bias"])
def test_attention_in_bfloat16_at_every_length(length: int, rows: int, scale: float | None, added: str):
    torch.manual_seed(length)
    query, key, value = (torch.randn(rows, 2, length, 8).to(torch.bfloat16) for _ in range(3))
    bias = {
        "nothing": None,
        "a mask": torch.ones(length, length).tril().bool()[None, None],
        "a mask of each row": (torch.arange(length) <= torch.arange(rows)[:, None])[:, None, None],
        "a bias": torch.randn(1, 2, length, length).to(torch.bfloat16),
    }[added]
    products = query.double() @ key.double().transpose(-1, -2) * (8**-0.5 if scale is None else scale)
    if added.startswith("a mask"):
        products = products.masked_fill(~bias, -torch.inf)
    elif bias is not None:
        products = products + bias.double()
    exact = products.softmax(-1) @ value.double()
    with torch.inference_mode():
        assert off(attend(query, key, value, bias, scale=scale), exact) < 3 * ROUNDING
    if bias is None:
        one = attend(query[:, :, -1:], key, value, scale=scale)  # gradients are on
        assert off(one, exact[:, :, -1:]) < 3 * ROUNDING


@pytest.mark.parametrize("length", [1, 7, 16, 33, 70])
@pytest.mark.parametrize("added", ["nothing", "a mask", "a bias of each row", "a bias of all rows"])
@pytest.mark.parametrize("rate", [0.0, 0.25])
def test_trained_attention_and_its_gradients(length: int, added: str, rate: float, monkeypatch):
    torch.manual_seed(length)
    monkeypatch.setattr(functional, "_WEIGHTS_AT_ONCE", 2 * 2 * length**2)  # two rows at a time
    monkeypatch.setattr(functional, "_LONGEST_KEPT", 16)  # longer examples: weights computed again
    masks = []

    def mask(weights: Tensor, p: float) -> Tensor:
        masks.append(dropout_mask(weights, p))
        return masks[-1]

    monkeypatch.setattr(functional, "dropout_mask", mask)
    read = [torch.randn(5, 2, length, 8).to(torch.bfloat16).requires_grad_() for _ in range(3)]
    bias = {
        "nothing": None,
        "a mask": torch.ones(length, length).tril().bool()[None, None],
        "a bias of each row": torch.randn(5, 1, length, length).to(torch.bfloat16),
        "a bias of all rows": torch.randn(1, 2, length, length).to(torch.bfloat16),
    }[added]
    above = torch.randn(5, 2, length, 8).to(torch.bfloat16)
    found = attend(*read, bias, dropout_p=rate, scale=0.5)
    gradients = torch.autograd.grad(found, read, above)
    assert len(masks) == (3 if rate else 0)

    exact = [states.detach().double().requires_grad_() for states in read]
    products = exact[0] @ exact[1].transpose(-1, -2) * 0.5
    if added == "a mask":
        products = products.masked_fill(~bias, -torch.inf)
    elif bias is not None:
        products = products + bias.double()
    weights = products.softmax(-1)
    if rate:
        weights = weights * torch.cat(masks).double().view_as(weights)
    expected = weights @ exact[2]
    assert off(found, expected) < 4 * ROUNDING
    for gradient, wanted in zip(gradients, torch.autograd.grad(expected, exact, above.double())):
        assert off(gradient, wanted) < 6 * ROUNDING or length == 1  # of one token: nearly zero


def drawn(heads: tuple[int, int, int], tokens: tuple[int, int]) -> list[torch.Tensor]:
    """Queries, keys and values of three examples."""
    lengths = (tokens[0], tokens[1], tokens[1])
    return [torch.randn(3, h, n, 8, generator=GENERATOR) for h, n in zip(heads, lengths)]


def attended(rows, dtype, **given) -> list[torch.Tensor]:
    """The output and the gradients of queries, keys and values, in float32."""
    rows = [own.clone().to(dtype).requires_grad_() for own in rows]
    out = F.scaled_dot_product_attention(*rows, **given)
    out.float().square().sum().backward()
    return [out.detach().float(), *(own.grad.float() for own in rows)]


@pytest.mark.parametrize(
    ("heads", "tokens", "given"),
    [
        ((2, 2, 2), (7, 7), {"attn_mask": SEEN[:, None, None]}),
        ((2, 2, 2), (7, 7), {"attn_mask": SEEN[0] & torch.ones(7, 7, dtype=torch.bool).tril()}),
        ((2, 2, 2), (7, 7), {"is_causal": True, "scale": 0.2}),
        ((2, 2, 2), (4, 7), {"attn_mask": SEEN[:, None, None]}),
        ((4, 2, 2), (7, 7), {"is_causal": True, "enable_gqa": True}),
    ],
    ids=["padding", "window", "causal", "cross", "grouped"],
)
def test_attention_and_its_gradients_are_those_of_float32(heads, tokens, given):
    rows = [own.bfloat16().float() for own in drawn(heads, tokens)]
    expected = attended(rows, torch.float32, **given)
    with FasterFunctions():
        found = attended(rows, torch.bfloat16, **given)
        traced = F.scaled_dot_product_attention(*(r.bfloat16().requires_grad_() for r in rows), **given)
    assert "ScaledDotProduct" not in str(traced.grad_fn)
    for own, other in zip(found, expected):
        assert (own - other).norm() < 0.02 * other.norm()


def test_a_query_without_keys_gets_no_nan():
    rows = drawn((2, 2, 2), (7, 7))
    with FasterFunctions():
        found = attended(rows, torch.bfloat16, attn_mask=torch.zeros(7, 7, dtype=torch.bool))
    assert all(own.isfinite().all() for own in found)


@pytest.mark.parametrize("length", [10, 17, 25, 40])
def test_nan_in_one_query_of_padded_texts_reaches_no_other(length: int):
    """The last layer leaves out the queries that are not read."""
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 8, 12, length, 64).bfloat16()
    query[:, :, 1:] = torch.nan
    bias = torch.ones(8, 1, length, length, dtype=torch.bool)
    bias[::2, :, :, -3:] = False
    with torch.no_grad():
        assert attend(query, key, value, bias)[:, :, 0].isfinite().all()


def test_what_is_not_faster_is_pytorchs_to_the_bit():
    rows = drawn((2, 2, 2), (7, 7))
    expected = attended(rows, torch.float32)
    with FasterFunctions():
        assert all(map(torch.equal, attended(rows, torch.float32), expected))
    quick = [own.bfloat16() for own in rows]
    with pytest.raises(KeyError), FasterFunctions():
        raise KeyError
    with torch.no_grad():
        again = F.scaled_dot_product_attention(*quick)
        assert torch.equal(again, F.scaled_dot_product_attention(*quick))


def test_dropout_in_bfloat16():
    x = torch.ones(300, 400, dtype=torch.bfloat16, requires_grad=True)
    torch.manual_seed(3)
    dropped, other = dropped_out(x, 0.2), dropped_out(x, 0.2)
    torch.manual_seed(3)
    assert torch.equal(dropped_out(x, 0.2), dropped)
    assert not torch.equal(other, dropped)
    zero = (dropped == 0).double()
    assert zero.mean().item() == pytest.approx(0.2, abs=5 * (0.2 * 0.8 / 120_000) ** 0.5)
    for axis, n in ((0, 300), (1, 400)):  # rows and columns alike
        assert zero.mean(axis).std().item() == pytest.approx((0.2 * 0.8 / n) ** 0.5, rel=0.2)
    assert set(dropped.flatten().tolist()) == {0.0, 1.25}
    (gradient,) = torch.autograd.grad(dropped.sum(), x)
    assert torch.equal(gradient, dropped)
    assert dropped_out(x, 0.2, False) is x
    for rate in (1 - 1e-9, 1.0):
        assert not dropped_out(x, rate).any()


def prepared(case: str, family: str, tmp_path: Path) -> AblationRequest:
    path = tmp_path / "d.jsonl"
    path.write_text("".join(f'{{"text": "w{n} w{n + 1} w{2 * n}", "label": {n % 3}}}\n' for n in range(12)))
    base = str(FIXTURES / "bases" / family)
    arguments = AblationArguments(
        str(FIXTURES / case), AblationSettings(precision="mixed"), data=(str(path),), base=base
    )
    return prepare_ablation(arguments, torch.device("cpu"))


@pytest.mark.skipif(not can_pack_weight(torch.ones(1, dtype=torch.bfloat16)), reason=NO_BFLOAT16)
@pytest.mark.parametrize(
    "case", slow_unless(lambda case: "houlsby" in case, ["adapterhub/houlsby", "adapterhub/pfeiffer"])
)
def test_a_packed_model_is_the_model_in_bfloat16(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    request, items = prepared(case, "bert", tmp_path), np.arange(12)

    def logits(dtype: torch.dtype) -> tuple[int, np.ndarray]:
        runner = next(model_runners(request, dtype, 1))
        maps = [m for m in runner._replay.model.modules() if isinstance(vars(m).get("forward"), PackedMap)]
        found = runner.outputs(items, request.variants.masks, 64, lambda: None)["logits"]
        twin = runner.twin().outputs(items, request.variants.masks, 64, lambda: None)["logits"]
        assert np.array_equal(found, twin)
        return len(maps), found

    (none, exact), (packed, fast) = logits(torch.float32), logits(torch.bfloat16)
    monkeypatch.setattr(general, "can_pack_weight", lambda _: False)
    also_none, plain = logits(torch.bfloat16)
    assert none == also_none == 0
    assert packed >= 3 * 6
    rounding = np.abs(plain - exact).max()
    assert 0 < np.abs(fast - exact).max() < 2 * rounding
    assert next(request.checkpoint.model.parameters()).dtype == torch.float32


@pytest.mark.parametrize("name", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish"])
def test_the_same_values_in_the_same_memory(name):
    states = torch.linspace(-6, 6, 1001)
    given = states.clone()
    found = activated_in_place(ACT2FN[name])(given)
    torch.testing.assert_close(found, ACT2FN[name](states), rtol=1e-6, atol=1e-6)
    assert found.data_ptr() == given.data_ptr()


def test_others_are_left_alone():
    assert activated_in_place(ACT2FN["tanh"]) is None
