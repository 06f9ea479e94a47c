"""The prefix tree on every architecture of adapter, and on heads that read all positions.

The brute force is transformers' own model, one example and variant at a time; each sublayer's output
module is computed anew by a hook, from the tensors and a mask, and nothing of the engine is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from refusals import naming
from torch.nn import functional as F
from transformers import AutoModelForQuestionAnswering, AutoModelForSequenceClassification

from adapter_probe.data.encoding import Encoded
from adapter_probe.data.packing import pack
from adapter_probe.errors import ModelError
from adapter_probe.models.adapted import AdaptedModel
from adapter_probe.models.methods import (
    Adapters,
    FullFineTuning,
    HeadOnly,
    LayerNormOnly,
    Method,
    TopLayers,
)
from adapter_probe.probe.pairs import forward_pairs
from adapter_probe.probe.plan import count_work
from adapter_probe.probe.tree import forward_variants
from adapter_probe.spans import span_variants

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


class Pair:
    """A model with adapters, all moved away from where they started, and its brute force."""

    def __init__(self, folder, method: Method, spans: bool):
        kind = AutoModelForQuestionAnswering if spans else AutoModelForSequenceClassification
        self.spans = spans
        self.plain = kind.from_pretrained(folder, num_labels=2 if spans else 3).double().eval()
        generator = torch.Generator().manual_seed(0)
        base = kind.from_pretrained(folder, num_labels=2 if spans else 3)
        model = AdaptedModel(base)
        model.install(method, generator)
        with torch.no_grad():
            for name, tensor in base.state_dict().items():
                if "running_var" in name:
                    tensor.uniform_(0.5, 2, generator=generator)
                elif not name.startswith(base.base_model_prefix) or "adapter" in name or "LayerNorm" in name:
                    tensor += 0.3 * torch.randn(tensor.shape, generator=generator)
        self.model = model.double().eval()
        self.state = self.model.base.state_dict()
        # What is pretrained stays as it is in the plain model; LayerNorms are taken from the state by hooks.
        heads = {n: t for n, t in self.state.items() if not n.startswith(base.base_model_prefix)}
        self.plain.load_state_dict(heads, strict=False)
        embedding_norm = next(n for n, _ in self.plain.named_modules() if n.endswith("embeddings.LayerNorm"))
        for kind in ("weight", "bias"):
            own = self.plain.get_parameter(f"{embedding_norm}.{kind}")
            own.data.copy_(self.state[f"{embedding_norm}.{kind}"])
        self.mask, self.norms = [True] * 4, "trained"
        for site in range(4):
            name = f"{base.base_model_prefix}.encoder.layer.{site // 2}."
            name += "output" if site % 2 else "attention.output"
            self.plain.get_submodule(name).register_forward_hook(self._hook(site, name))

    def _hook(self, site: int, name: str) -> Callable:
        def output(module, inputs: tuple[torch.Tensor, torch.Tensor], _output) -> torch.Tensor:
            adapter = {
                n.removeprefix(f"{name}.adapter."): t
                for n, t in self.state.items()
                if n.startswith(f"{name}.adapter.")
            }
            weights = [self.state[f"{name}.LayerNorm.{kind}"] for kind in ("weight", "bias")]
            inner, h = inputs
            x, norm = F.linear(inner, module.dense.weight, module.dense.bias), module.LayerNorm
            if adapter and not self.mask[site]:
                weights = [norm.weight, norm.bias] if self.norms == "pretrained" else weights
            elif adapter:
                x = adapt(self.model.method, adapter, x, h)
            return F.layer_norm(x + h, x.shape[-1:], *weights, norm.eps)

        return output

    def one_by_one(self, encoded: Encoded, order: Sequence[int], mask: np.ndarray) -> torch.Tensor:
        """``[examples, labels]``, or ``[tokens, 2]`` for spans, examples in the order given."""
        self.mask, rows = mask.tolist(), []
        for example in order:
            ids = torch.from_numpy(encoded.input_ids[example])[None]
            types = encoded.token_type_ids and torch.from_numpy(encoded.token_type_ids[example])[None]
            with torch.no_grad():
                out = self.plain(ids, token_type_ids=types)
            rows.append(
                torch.stack([out.start_logits[0], out.end_logits[0]], 1) if self.spans else out.logits
            )
        return torch.cat(rows)

    def every_mask(self, encoded: Encoded, order: Sequence[int], norms: str) -> torch.Tensor:
        self.norms = norms
        return torch.stack([self.one_by_one(encoded, order, mask) for mask in EVERY_MASK])


def adapt(method: Adapters, w: dict, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
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
    return x * (1 + change) if method.interaction == "multiply" else x + change


@pytest.fixture(scope="module")
def pair(tiny_base: Callable) -> Callable[..., Pair]:
    """``pair(family, settings, spans=False)`` with two layers of width 16."""
    made: dict[tuple, Pair] = {}

    def make(family: str, settings: dict, spans: bool = False) -> Pair:
        key = (family, *settings.items(), spans)
        if key not in made:
            method = Adapters(5, 0.3, **settings)
            made[key] = Pair(tiny_base(family, layers=2, hidden=16), method, spans)
        return made[key]

    return make


@pytest.fixture(scope="module")
def known(pair: Callable, tiny_examples: Callable) -> Callable[..., tuple]:
    """``known(number, spans, norms)``: the model, a batch, and the logits of every mask by brute force."""
    made: dict[tuple, torch.Tensor] = {}

    def make(number: int, spans: bool, norms: str) -> tuple:
        family = ("bert", "roberta", "electra")[(number + spans) % 3]
        both, encoded = pair(family, SETTINGS[number], spans), tiny_examples(family, LENGTHS)
        batch = pack(encoded, range(4))
        if (number, spans, norms) not in made:
            made[number, spans, norms] = both.every_mask(encoded, batch.index, norms)
        return both.model, batch, made[number, spans, norms]

    return make


@pytest.mark.parametrize(
    ("number", "spans"),
    [
        pytest.param(
            n,
            spans,
            marks=pytest.mark.slow if (spans and n % 3) or n in (1, 2, 8) else (),
            id=f"{chosen}-{spans}",
        )
        for n, chosen in enumerate(SETTINGS)
        for spans in SPANS
    ],
)
def test_every_mask_equals_a_run_of_its_own(
    number: int, spans: bool, known: Callable, monkeypatch: pytest.MonkeyPatch
):
    for norms in ("trained", "pretrained"):
        model, batch, expected = known(number, spans, norms)
        # Sites without an adapter make no difference; every other bit makes one.
        assert len({round(row.sum().item(), 6) for row in expected}) == 2 ** model.has_adapter.sum()
        for tokens_per_pass, added in ((1, 0), (40, 5), (10**9, 0)):  # rows that belong to no example, too
            monkeypatch.setattr(AdaptedModel, "_rows_added", lambda *_, n=added: n)
            logits = forward_variants(model, batch, EVERY_MASK, tokens_per_pass=tokens_per_pass, norms=norms)
            assert logits.shape == ((16, 18, 2) if spans else (16, 4, 3))
            torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)
            if added and not spans:
                rows, places = np.indices((16, 4)).reshape(2, -1)
                pairs = forward_pairs(
                    model, batch, places, EVERY_MASK[rows], tokens_per_pass=tokens_per_pass, norms=norms
                )
                torch.testing.assert_close(pairs, expected[rows, places], rtol=0, atol=1e-10)


@given(
    number=st.integers(0, len(SETTINGS) - 1),
    masks=arrays(bool, st.tuples(st.integers(1, 12), st.just(4))),
    tokens_per_pass=st.integers(1, 200),
    norms=st.sampled_from(["trained", "pretrained"]),
    spans=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_any_masks_equal_runs_of_their_own(known: Callable, number, masks, tokens_per_pass, norms, spans):
    model, batch, expected = known(number, spans, norms)
    logits = forward_variants(model, batch, masks, tokens_per_pass=tokens_per_pass, norms=norms)
    torch.testing.assert_close(logits, expected[masks @ (1 << np.arange(4))], rtol=0, atol=1e-10)


@pytest.mark.parametrize("spans", SPANS)
@pytest.mark.parametrize("chosen", SETTINGS[:4], ids=str)
def test_nothing_is_computed_twice(chosen: dict, spans: bool, tiny_base: Callable, tiny_examples: Callable):
    """Sublayers run once for every state that differs, adapters once for every state that they change."""
    model = Pair(tiny_base("bert", layers=3, hidden=16), Adapters(5, 0.3, **chosen), spans).model
    batch = pack(tiny_examples("bert", [3, 2, 3]), range(3))
    rows: Counter = Counter()
    for site, place in enumerate(model.sites):
        layer = model.layers[site // 2].parts
        watched = {"sublayer": layer.ffn_in if site % 2 else layer.query}
        if place.adapter is not None:
            watched["adapter"] = place.adapter.down
        for what, module in watched.items():
            module.register_forward_hook(
                lambda _m, inputs, _o, key=(what, site): rows.update({key: inputs[0][..., 0].numel()})
            )
    masks = span_variants(3).masks
    forward_variants(model, batch, masks, tokens_per_pass=10**9)
    here = np.flatnonzero(model.has_adapter)
    passes = [0, 0]
    for site in range(6):
        per_pass = 3 if site >= 4 and not spans else 8
        earlier = {tuple(mask[here[here < site]]) for mask in masks}
        assert rows["sublayer", site] == len(earlier) * per_pass
        passes[site % 2] += len(earlier)
        if site in here:
            on = {tuple(mask[here[here <= site]]) for mask in masks if mask[site]}
            assert rows["adapter", site] == len(on) * per_pass
    work = count_work(masks | ~model.has_adapter, np.array([3, 2, 3]))
    assert work.layer_evaluations == tuple(passes)


@pytest.mark.parametrize("method", [TopLayers(1), LayerNormOnly(), FullFineTuning(), HeadOnly()], ids=str)
def test_a_model_without_adapters_has_nothing_to_switch_off(
    method: Method, tiny_base: Callable, tiny_examples: Callable
):
    base = AutoModelForSequenceClassification.from_pretrained(tiny_base("bert"))
    model = AdaptedModel(base).eval()
    model.install(method, torch.Generator())
    assert not model.has_adapter.any()
    with pytest.raises(ModelError, match=naming("no", "adapters")):
        forward_variants(model, pack(tiny_examples("bert", [3]), [0]), np.ones((1, 6)), tokens_per_pass=9)
