"""PyTorch's attention is replaced in bfloat16 on a CPU, and computes the same.

Without a mask, with biases, with dropout, and at every length it is compared in test_bfloat16.
"""

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
        ((2, 2, 2), (7, 7), {"attn_mask": SEEN[:, None, None]}),
        ((2, 2, 2), (7, 7), {"attn_mask": SEEN[0] & torch.ones(7, 7, dtype=torch.bool).tril()}),
        ((2, 2, 2), (7, 7), {"is_causal": True, "scale": 0.2}),
        ((2, 2, 2), (4, 7), {"attn_mask": SEEN[:, None, None]}),
        ((4, 2, 2), (7, 7), {"is_causal": True, "enable_gqa": True}),
    ],
    ids=["padding", "window", "causal", "cross", "grouped"],
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
