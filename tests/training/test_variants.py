"""The architecture variants of an adapter, one by one and inside a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiers import slow_unless
from training_models import in_memory, load_plain, with_method
from transformers import BertConfig, BertForSequenceClassification

from adapter_probe.data.encoding import Encoded
from adapter_probe.data.packing import pack
from adapter_probe.models.adapters.bottleneck import Bottleneck
from adapter_probe.models.methods import Adapters, HeadOnly
from adapter_probe.training.model import TrainingModel

LENGTHS = (5, 12, 1, 5, 12, 3)
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
SMALL = tuple(replace(method, size=5, init_std=0.3) for method in VARIANTS)
QUICK = (SMALL[0], SMALL[5], *SMALL[-2:])
"""For the quick tests: every site, placement, interaction, norm and depth."""

FAMILIES = ("bert", *(pytest.param(name, marks=pytest.mark.slow) for name in ("roberta", "electra")))


def label(method: Adapters) -> str:
    record = method.to_json()
    plain = Adapters(size=method.size, init_std=method.init_std).to_json()
    return "-".join(str(v) for k, v in record.items() if plain.get(k) != v) or "plain"


every_variant = pytest.mark.parametrize("method", SMALL, ids=label)
few_variants_quick = pytest.mark.parametrize("method", slow_unless(QUICK.__contains__, SMALL), ids=label)


def outputs(model: TrainingModel, encoded: Encoded) -> torch.Tensor:
    batch = pack(encoded, range(len(encoded)))
    return model(batch)[torch.from_numpy(batch.index).argsort()]


def alone(model: TrainingModel, encoded: Encoded) -> torch.Tensor:
    """Logits of every text by itself, by the forward of the model with the adapters."""
    types = encoded.token_type_ids or [None] * len(encoded)
    given = [(torch.from_numpy(i)[None], None if t is None else torch.from_numpy(t)[None])
             for i, t in zip(encoded.input_ids, types)]  # fmt: skip
    return torch.cat([model.base(ids, token_type_ids=own).logits for ids, own in given])


def adapters_of(model: TrainingModel) -> list[Bottleneck]:
    return [module for module in model.base.modules() if isinstance(module, Bottleneck)]


@pytest.mark.parametrize("family", FAMILIES)
@few_variants_quick
def test_padding_and_the_last_layer_change_nothing(family, method, make_model, tiny_examples):
    model, encoded = make_model(family, method), tiny_examples(family, LENGTHS)
    plain = make_model(family, replace(SMALL[0], sites=method.sites))
    with torch.no_grad():
        own = alone(model, encoded)
        torch.testing.assert_close(outputs(model, encoded), own, rtol=0, atol=1e-10)
        if method != replace(SMALL[0], sites=method.sites):  # the variant is another model than the plain one
            assert (own - alone(plain, encoded)).abs().max() > 1e-2


@pytest.mark.parametrize("family", FAMILIES)
@few_variants_quick
def test_with_its_output_weights_at_zero_it_is_the_base(family, method, make_model, tiny_examples):
    encoded = tiny_examples(family, LENGTHS)
    base, model = (make_model(family, one, moved=False) for one in (HeadOnly(), method))
    with torch.no_grad():
        expected = alone(base, encoded)
        assert (outputs(model, encoded) - expected).abs().max() > 1e-4
        for adapter in adapters_of(model):
            adapter.up.weight.zero_()
        assert torch.equal(alone(model, encoded), expected)
        torch.testing.assert_close(outputs(model, encoded), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("norm", ["none", "layernorm", "batchnorm"])
@pytest.mark.parametrize("hidden_layers", [1, 2, 3])
@pytest.mark.parametrize(("d", "m"), [(768, 64), (7, 3), (5, 9)])
def test_it_holds_the_parameters_that_are_promised(d: int, m: int, hidden_layers: int, norm: str):
    adapter = Bottleneck(d, Adapters(m, norm=norm, hidden_layers=hidden_layers))
    expected = 2 * m * d + d + m + (hidden_layers - 1) * (m * m + m) + (0 if norm == "none" else 2 * m)
    assert sum(p.numel() for p in adapter.parameters()) == expected
    assert sum(b.numel() for b in adapter.buffers()) == (2 * m if norm == "batchnorm" else 0)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (Adapters(), 2_379_264),
        (Adapters(sites="ffn", placement="parallel", interaction="multiply"), 1_189_632),
        pytest.param(Adapters(sites="attention"), 1_189_632, marks=pytest.mark.slow),
        pytest.param(Adapters(norm="layernorm"), 2_379_264 + 24 * 128, marks=pytest.mark.slow),
        pytest.param(Adapters(hidden_layers=2), 2_379_264 + 24 * (64 * 64 + 64), marks=pytest.mark.slow),
    ],
    ids=lambda value: label(value) if isinstance(value, Adapters) else None,
)
def test_counts_in_bert_base(method: Adapters, expected: int):
    """Houlsby et al.: 24 (2 m d + d + m) in adapters, 25 LayerNorms of 2 d, and the rest as it was."""
    with torch.device("meta"):
        base = BertForSequenceClassification(BertConfig(num_labels=2))
        own = sum(p.numel() for p in base.parameters())
        model = with_method(in_memory(base), method)
    counts = Counter()
    for role, _, parameter in model.named_roles():
        counts[role] += parameter.numel()
    pooler, head = 768 * 768 + 768, 2 * 768 + 2
    others = {"layernorms": 38_400, "pooler": pooler, "head": head, "base": own - 38_400 - pooler - head}
    assert counts == {"adapters": expected, **others}
    assert own == 109_483_778


@pytest.mark.parametrize("interaction", ["add", "multiply"])
@pytest.mark.parametrize("placement", ["sequential", "parallel"])
@pytest.mark.parametrize("norm", ["none", "layernorm", "batchnorm"])
def test_its_output_has_the_closed_form(norm: str, placement: str, interaction: str):
    adapter = Bottleneck(
        7,
        Adapters(
            3, activation="tanh", norm=norm, hidden_layers=2, placement=placement, interaction=interaction
        ),
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
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-10)


@pytest.mark.parametrize("placement", ["sequential", "parallel"])
def test_batch_normalisation_is_over_the_tokens_of_the_batch(placement, make_model, tiny_examples):
    model = make_model("bert", Adapters(4, 0.3, norm="batchnorm", placement=placement), dropout=0.0)
    batch = pack(tiny_examples("bert", LENGTHS), range(6))
    places = np.arange(max(LENGTHS)) < np.array(sorted(LENGTHS))[:, None]
    seen: dict[int, np.ndarray] = {}
    adapters = adapters_of(model)
    for number, adapter in enumerate(adapters):
        adapter.down.register_forward_hook(
            lambda _m, _i, out, number=number: seen.update({number: out.detach().numpy().reshape(-1, 4)})
        )
    before = [(a.norm.running_mean.numpy().copy(), a.norm.running_var.numpy().copy()) for a in adapters]
    model.train()(batch)
    # In the last layer only the six first tokens go on; before it all 38, and padding, which does not count.
    assert [len(seen[number]) for number in range(6)] == [72, 72, 72, 72, 6, 6]
    assert places.sum() == 38
    for number, (mean, var) in enumerate(before):
        norm, own = adapters[number].norm, seen[number][places.ravel() if number < 4 else slice(None)]
        np.testing.assert_allclose(norm.running_mean, 0.9 * mean + 0.1 * own.mean(0), atol=1e-12)
        np.testing.assert_allclose(norm.running_var, 0.9 * var + 0.1 * own.var(0, ddof=1), atol=1e-12)


def test_a_single_token_is_normalised_by_the_running_averages(make_model: Callable, tiny_examples: Callable):
    """The last layer sees one token of a batch of one example."""
    model = make_model("roberta", Adapters(4, 0.3, norm="batchnorm"), dropout=0.0, layers=1)
    batch = pack(tiny_examples("roberta", [1]), [0])
    with torch.no_grad():
        expected = model(batch)
        before = {name: buffer.clone() for name, buffer in model.base.named_buffers()}
        torch.testing.assert_close(model.train()(batch), expected, rtol=0, atol=1e-12)
    assert all(torch.equal(before[name], buffer) for name, buffer in model.base.named_buffers())


@few_variants_quick
def test_weights_are_drawn_by_the_seed_and_biases_zero(method: Adapters, tiny_base: Callable):
    before = torch.random.get_rng_state()
    many = replace(method, size=16, init_std=0.5)
    loaded = [load_plain(tiny_base("bert")) for _ in range(3)]
    models = [with_method(one, many, seed) for one, seed in zip(loaded, (5, 5, 6))]
    assert torch.equal(torch.random.get_rng_state(), before)
    drawn = [
        [m.weight.detach() for a in adapters_of(model) for m in (a.down, *a.inner, a.up)] for model in models
    ]
    assert all(torch.equal(*pair) for pair in zip(drawn[0], drawn[1]))
    assert not any(torch.equal(*pair) for pair in zip(drawn[0], drawn[2]))
    adapters = adapters_of(models[0])
    assert len(adapters) == (6 if method.sites == "both" else 3)
    assert all(w.abs().max() <= 1 and w.std() == pytest.approx(0.44, abs=0.05) for w in drawn[0])
    assert len({w.sum().item() for w in drawn[0]}) == len(drawn[0])
    assert not any(m.bias.any() for a in adapters for m in (a.down, *a.inner, a.up))
    norms = [a.norm for a in adapters if method.norm != "none"]
    assert all((n.weight == 1).all() and not n.bias.any() for n in norms)


@pytest.mark.parametrize("sites", ["attention", "ffn"])
def test_adapters_lie_where_they_are_wanted(sites: str, make_model: Callable):
    model = make_model("electra", Adapters(3, sites=sites))
    names = {name.partition(".adapter.")[0] for name in model.named_delta() if ".adapter." in name}
    kind = "attention.output" if sites == "attention" else "output"
    assert names == {f"electra.encoder.layer.{layer}.{kind}" for layer in range(3)}


@every_variant
def test_bfloat16_and_autocast_are_near(method: Adapters, make_model: Callable, tiny_examples: Callable):
    encoded = tiny_examples("bert", LENGTHS)
    model = make_model("bert", method)
    with torch.no_grad():
        expected = outputs(model, encoded)
        model.float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cast = outputs(model, encoded)
        low = outputs(model.to(torch.bfloat16), encoded)
    for logits in (cast, low):
        assert 0 < (logits.double() - expected).abs().max() < 0.3 * expected.std()
