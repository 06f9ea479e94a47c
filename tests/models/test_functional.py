"""PyTorch's attention and dropout are replaced in bfloat16 on a CPU, and compute the same."""

import pytest
import torch
from torch.nn import functional as F

from adapter_probe.models.functional import FasterFunctions

GENERATOR = torch.Generator().manual_seed(0)
SEEN = torch.arange(7) < torch.tensor([3, 7, 5])[:, None]  # keys of three examples that are no padding


def states(heads: tuple[int, int, int], tokens: tuple[int, int]) -> list[torch.Tensor]:
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
        ((2, 2, 2), (7, 7), {}),
        ((2, 2, 2), (7, 7), {"attn_mask": SEEN[:, None, None]}),
        ((2, 2, 2), (7, 7), {"attn_mask": SEEN[0] & torch.ones(7, 7, dtype=torch.bool).tril()}),
        ((2, 2, 2), (7, 7), {"attn_mask": torch.randn(1, 2, 7, 7, generator=GENERATOR), "scale": 1.0}),
        ((2, 2, 2), (7, 7), {"is_causal": True, "scale": 0.2}),
        ((2, 2, 2), (4, 7), {"attn_mask": SEEN[:, None, None]}),
        ((4, 2, 2), (7, 7), {"is_causal": True, "enable_gqa": True}),
    ],
    ids=["plain", "padding", "window", "bias", "causal", "cross", "grouped"],
)
def test_attention_and_its_gradients_are_those_of_float32(heads, tokens, given):
    rows = [own.bfloat16().float() for own in states(heads, tokens)]
    expected = attended(rows, torch.float32, **given)
    with FasterFunctions():
        found = attended(rows, torch.bfloat16, **given)
        traced = F.scaled_dot_product_attention(*(r.bfloat16().requires_grad_() for r in rows), **given)
    assert "ScaledDotProduct" not in str(traced.grad_fn)
    for own, other in zip(found, expected):
        assert (own - other).norm() < 0.02 * other.norm()


def test_a_query_without_keys_gets_no_nan():
    rows = states((2, 2, 2), (7, 7))
    with FasterFunctions():
        found = attended(rows, torch.bfloat16, attn_mask=torch.zeros(7, 7, dtype=torch.bool))
    assert all(own.isfinite().all() for own in found)


def test_what_is_not_faster_is_pytorchs_to_the_bit():
    rows = states((2, 2, 2), (7, 7))
    expected = attended(rows, torch.float32)
    with FasterFunctions():
        assert all(map(torch.equal, attended(rows, torch.float32), expected))
    quick = [own.bfloat16() for own in rows]
    with pytest.raises(KeyError), FasterFunctions():
        raise KeyError
    with torch.no_grad():
        again = F.scaled_dot_product_attention(*quick)
        assert torch.equal(again, F.scaled_dot_product_attention(*quick))


@pytest.mark.parametrize("length", [5, 12, 20, 40])
@pytest.mark.parametrize("masked", [False, True])
def test_evaluation_is_that_of_float32(length, masked):
    rows = [torch.randn(8, 12, length, 16, generator=GENERATOR).bfloat16() for _ in range(3)]
    mask = (torch.arange(length) < torch.arange(1, 9)[:, None] + 1)[:, None, None] if masked else None
    with torch.no_grad(), FasterFunctions():
        found = F.scaled_dot_product_attention(*rows, attn_mask=mask).float()
    expected = F.scaled_dot_product_attention(*(own.float() for own in rows), attn_mask=mask)
    assert (found - expected).norm() < 0.02 * expected.norm()


def test_dropout_of_modules_keeps_the_mean_and_follows_the_seed():
    ones, layer = torch.ones(200, 300, dtype=torch.bfloat16), torch.nn.Dropout(0.25)
    with FasterFunctions():
        torch.manual_seed(1)
        dropped = layer(ones)
        torch.manual_seed(1)
        assert torch.equal(layer(ones), dropped)
        assert torch.equal(layer.eval()(ones), ones)
    assert sorted(set(dropped.flatten().tolist())) == [0.0, torch.tensor(4 / 3).bfloat16().item()]
    assert (dropped == 0).float().mean() == pytest.approx(0.25, abs=0.01)


def test_attention_weights_are_dropped():
    torch.manual_seed(0)
    rows = [torch.ones(8, 4, 32, 8, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    with FasterFunctions():
        out = F.scaled_dot_product_attention(*rows, dropout_p=0.5).detach()
    assert out.float().mean() == pytest.approx(1, abs=0.02)
    assert out.float().std() > 0.1  # of equal values, without dropout, the mean is 1 everywhere
