"""The prefix tree on every architecture of adapter, and on heads that read all positions.

The brute force is transformers' own model, one example and variant at a time; each sublayer's output
module is computed anew by a hook, from the tensors and a mask, and nothing of the engine is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from placed_models import Placed, Variants, placed_on
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForQuestionAnswering, AutoModelForSequenceClassification

from adapter_probe.data.encoding import Encoded
from adapter_probe.models.methods import Adapters

LENGTHS = (4, 9, 4, 1)
EVERY_MASK = (np.arange(16)[:, None] >> np.arange(4)) % 2 == 1
SETTINGS = (
    {},
    {"sites": "attention"},
    {"sites": "ffn"},
    {"placement": "parallel"},
    {"interaction": "multiply"},
    {"placement": "parallel", "interaction": "multiply"},
    {"norm": "layernorm"},
    {"norm": "batchnorm"},
    {"hidden_layers": 2},
    {"hidden_layers": 3, "norm": "batchnorm", "placement": "parallel", "sites": "attention"},
    {"hidden_layers": 2, "norm": "layernorm", "interaction": "multiply", "sites": "ffn"},
)
SPANS = (False, True)


class BruteForce:
    """A plain model with the weights of one with adapters, whose sublayers end as a hook computes.

    Args:
        placed: the model with adapters.
        strength: what the change of adapters that are off is multiplied by; LayerNorms are interpolated.
    """

    def __init__(self, placed: Placed, strength: float = 0.0):
        self.spans, self.placed, self.strength = hasattr(placed.base, "qa_outputs"), placed, strength
        kind = AutoModelForQuestionAnswering if self.spans else AutoModelForSequenceClassification
        self.plain = kind.from_config(placed.base.config).double().eval()
        self.plain.load_state_dict(placed.without_adapters)
        self.mask, self.norms = [True] * 4, "trained"
        for site in range(4):
            name = f"{self.plain.base_model_prefix}.encoder.layer.{site // 2}."
            name += "output" if site % 2 else "attention.output"
            self.plain.get_submodule(name).register_forward_hook(self._hook(site, name))

    def _hook(self, site: int, name: str) -> Callable:
        adapter, before = self.placed.of(name), self.placed.before

        def output(module, inputs: tuple[Tensor, Tensor], _output) -> Tensor:
            inner, h = inputs
            x, norm = F.linear(inner, module.dense.weight, module.dense.bias), module.LayerNorm
            weights, strength = [norm.weight, norm.bias], 1.0 if self.mask[site] else self.strength
            if adapter:
                x = x + strength * change(self.placed.method, adapter, x, h)
                if self.norms == "pretrained":
                    bases = (before[f"{name}.LayerNorm.{kind}"] for kind in ("weight", "bias"))
                    weights = [base + strength * (own - base) for base, own in zip(bases, weights)]
            return F.layer_norm(x + h, x.shape[-1:], *weights, norm.eps)

        return output

    def one_by_one(self, encoded: Encoded, mask: np.ndarray) -> Tensor:
        """``[examples, labels]``, or ``[tokens, 2]`` for spans."""
        self.mask, rows = mask.tolist(), []
        for example, ids in enumerate(encoded.input_ids):
            types = encoded.token_type_ids and torch.from_numpy(encoded.token_type_ids[example])[None]
            with torch.no_grad():
                out = self.plain(torch.from_numpy(ids)[None], token_type_ids=types)
            rows.append(
                torch.stack([out.start_logits[0], out.end_logits[0]], 1) if self.spans else out.logits
            )
        return torch.cat(rows)

    def every_mask(self, encoded: Encoded, norms: str) -> Tensor:
        self.norms = norms
        return torch.stack([self.one_by_one(encoded, mask) for mask in EVERY_MASK])


def change(method: Adapters, w: Mapping[str, Tensor], x: Tensor, h: Tensor) -> Tensor:
    z = F.linear(h if method.placement == "parallel" else x, w["down.weight"], w["down.bias"])
    if method.norm == "layernorm":
        z = (z - z.mean(-1, keepdim=True)) / (z.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    elif method.norm == "batchnorm":
        z = (z - w["norm.running_mean"]) / (w["norm.running_var"] + 1e-5).sqrt()
    if method.norm != "none":
        z = z * w["norm.weight"] + w["norm.bias"]
    z = F.gelu(z)
    for number in range(method.hidden_layers - 1):
        z = F.gelu(F.linear(z, w[f"inner.{number}.weight"], w[f"inner.{number}.bias"]))
    change = F.linear(z, w["up.weight"], w["up.bias"])
    return x * change if method.interaction == "multiply" else change


@pytest.fixture(scope="module")
def known(tiny_base: Callable, tiny_examples: Callable) -> Callable[..., tuple[Variants, Tensor]]:
    """``known(number, spans, norms, strength=0.0)``: what runs masks, and the logits of every mask.

    The models have two layers of width 16.
    """
    made: dict[tuple, tuple[Variants, Tensor]] = {}

    def make(number: int, spans: bool, norms: str, strength: float = 0.0) -> tuple[Variants, Tensor]:
        key = (number, spans, norms, strength)
        if key not in made:
            family = ("bert", "roberta", "electra")[(number + spans) % 3]
            folder, encoded = tiny_base(family, layers=2, hidden=16), tiny_examples(family, LENGTHS)
            placed = placed_on(folder, Adapters(5, **SETTINGS[number]), spans=spans)
            expected = BruteForce(placed, strength).every_mask(encoded, norms)
            made[key] = Variants(placed, encoded, norms, strength), expected
        return made[key]

    return make


def bits_of(number: int) -> np.ndarray:
    """Bool ``[columns]``: which hold an adapter."""
    sites = SETTINGS[number].get("sites", "both")
    return np.array([sites != "ffn", sites != "attention"] * 2)


@pytest.mark.parametrize(
    ("number", "spans"),
    [
        pytest.param(
            n,
            spans,
            marks=() if (n, spans) == (3, True) else pytest.mark.slow,
            id=f"{chosen}-{spans}",
        )
        for n, chosen in enumerate(SETTINGS)
        for spans in SPANS
    ],
)
def test_every_mask_equals_a_run_of_its_own(number: int, spans: bool, known: Callable):
    for norms in ("trained", "pretrained"):
        variants, expected = known(number, spans, norms)
        # Sites without an adapter make no difference; every other bit makes one.
        assert len({round(row.sum().item(), 6) for row in expected}) == 2 ** bits_of(number).sum()
        assert variants.replay.has_adapter.tolist() == bits_of(number).tolist()
        for tokens_per_pass in (1, 40, 10**9):
            logits = variants(EVERY_MASK, tokens_per_pass)
            assert logits.shape == ((16, 18, 2) if spans else (16, 4, 3))
            torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)
        if not spans:
            rows, places = np.indices((16, 4)).reshape(2, -1)
            pairs = variants.pairs(places, EVERY_MASK[rows], 40)
            torch.testing.assert_close(pairs, expected[rows, places], rtol=0, atol=1e-10)


@given(
    number=st.integers(0, len(SETTINGS) - 1),
    masks=arrays(bool, st.tuples(st.integers(1, 12), st.just(4))),
    tokens_per_pass=st.integers(1, 200),
    norms=st.sampled_from(["trained", "pretrained"]),
    spans=st.booleans(),
)
@pytest.mark.slow
def test_any_masks_equal_runs_of_their_own(known: Callable, number, masks, tokens_per_pass, norms, spans):
    variants, expected = known(number, spans, norms)
    logits = variants(masks, tokens_per_pass)
    torch.testing.assert_close(logits, expected[masks @ (1 << np.arange(4))], rtol=0, atol=1e-10)


SCALED = ((3, 0.5, "pretrained"), (5, 0.5, "trained"), (5, -1.5, "pretrained"))


@pytest.mark.parametrize(
    ("number", "strength", "norms"),
    [
        pytest.param(*case, marks=() if case in SCALED else pytest.mark.slow)
        for case in product(range(len(SETTINGS)), [0.5, -1.5], ["trained", "pretrained"])
    ],
)
def test_scaled_adapters_equal_runs_of_their_own(number: int, strength: float, norms: str, known: Callable):
    variants, expected = known(number, False, norms, strength)
    torch.testing.assert_close(variants(EVERY_MASK, 100), expected, rtol=0, atol=1e-10)
    rows, places = np.indices((16, 4)).reshape(2, -1)
    pairs = variants.pairs(places, EVERY_MASK[rows])
    torch.testing.assert_close(pairs, expected[rows, places], rtol=0, atol=1e-10)
    assert (expected[0] - expected[-1]).abs().max() > 1e-3
