"""The architecture variants of an adapter, one by one and inside a model."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiers import slow_unless
from transformers import BertConfig, BertForSequenceClassification

from adapter_probe.data.encoding import Encoded
from adapter_probe.data.packing import pack
from adapter_probe.models.adapted import AdaptedModel
from adapter_probe.models.adapters.bottleneck import Bottleneck
from adapter_probe.models.methods import Adapters
from adapter_probe.probe.pairs import forward_pairs
from adapter_probe.probe.tree import forward_variants

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

FAMILIES = ("bert", *(pytest.param(name, marks=pytest.mark.slow) for name in ("roberta", "electra")))


def label(method: Adapters) -> str:
    record = method.to_json()
    plain = Adapters(size=method.size, init_std=method.init_std).to_json()
    return "-".join(str(v) for k, v in record.items() if plain.get(k) != v) or "plain"


every_variant = pytest.mark.parametrize("method", SMALL, ids=label)


def padded(model: AdaptedModel, encoded: Encoded) -> torch.Tensor:
    """Logits of the transformers model's own forward on one padded batch."""
    longest = max(encoded.lengths)
    ids = torch.full((len(encoded), longest), model.base.config.pad_token_id)
    attention, types = torch.zeros_like(ids), torch.zeros_like(ids)
    for row, example in enumerate(encoded.input_ids):
        ids[row, : len(example)] = torch.from_numpy(example)
        attention[row, : len(example)] = 1
        if encoded.token_type_ids is not None:
            types[row, : len(example)] = torch.from_numpy(encoded.token_type_ids[row])
    return model.base(input_ids=ids, attention_mask=attention, token_type_ids=types).logits


def packed(model: AdaptedModel, encoded: Encoded) -> torch.Tensor:
    batch = pack(encoded, range(len(encoded)))
    return model(batch)[torch.from_numpy(batch.index).argsort()]


@pytest.mark.parametrize("family", FAMILIES)
@every_variant
def test_the_models_own_forward_agrees(
    family: str, method: Adapters, make_model: Callable, tiny_examples: Callable
):
    model, encoded = make_model(family, method), tiny_examples(family, LENGTHS)
    plain = make_model(family, replace(SMALL[0], sites=method.sites))
    with torch.no_grad():
        own = padded(model, encoded)
        torch.testing.assert_close(packed(model, encoded), own, rtol=0, atol=1e-10)
        if method != plain.method:  # and the variant is another model than the plain adapter
            assert (own - padded(plain, encoded)).abs().max() > 1e-2


@pytest.mark.parametrize("family", FAMILIES)
@every_variant
def test_with_its_output_weights_at_zero_it_is_the_base(
    family: str, method: Adapters, make_model: Callable, tiny_examples: Callable
):
    encoded = tiny_examples(family, LENGTHS)
    base = make_model(family, None, moved=False)
    model = make_model(family, method, moved=False)
    with torch.no_grad():
        expected = padded(base, encoded)
        assert (packed(model, encoded) - expected).abs().max() > 1e-4
        for site in model.sites:
            if site.adapter is not None:
                site.adapter.up.weight.zero_()
        assert torch.equal(padded(model, encoded), expected)
        torch.testing.assert_close(packed(model, encoded), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("norm", ["none", "layernorm", "batchnorm"])
@pytest.mark.parametrize("hidden_layers", [1, 2, 3])
@pytest.mark.parametrize(("d", "m"), [(768, 64), (7, 3)])
def test_it_holds_the_parameters_that_are_promised(d: int, m: int, hidden_layers: int, norm: str):
    adapter = Bottleneck(d, m, "gelu", norm=norm, hidden_layers=hidden_layers)
    expected = 2 * m * d + d + m + (hidden_layers - 1) * (m * m + m) + (0 if norm == "none" else 2 * m)
    assert sum(p.numel() for p in adapter.parameters()) == expected
    assert sum(b.numel() for b in adapter.buffers()) == (2 * m if norm == "batchnorm" else 0)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (Adapters(), 2_379_264),
        (Adapters(sites="attention"), 1_189_632),
        (Adapters(sites="ffn", placement="parallel", interaction="multiply"), 1_189_632),
        (Adapters(norm="layernorm"), 2_379_264 + 24 * 128),
        (Adapters(hidden_layers=2), 2_379_264 + 24 * (64 * 64 + 64)),
    ],
    ids=lambda value: label(value) if isinstance(value, Adapters) else None,
)
def test_counts_in_bert_base(method: Adapters, expected: int):
    with torch.device("meta"):
        model = AdaptedModel(BertForSequenceClassification(BertConfig(num_labels=2)))
    model.install(method, torch.Generator().manual_seed(0))
    assert {p.device.type for p in model.parameters()} == {"meta"}
    counts = model.parameter_counts()
    assert (counts["adapters"], counts["layernorms"]) == (expected, 38_400)


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


def test_batch_normalisation_is_over_the_tokens_of_the_batch(make_model: Callable, tiny_examples: Callable):
    model = make_model("bert", Adapters(4, 0.3, norm="batchnorm"), dropout=0.0)
    batch = pack(tiny_examples("bert", LENGTHS), range(6))
    seen: dict[int, np.ndarray] = {}
    for number, site in enumerate(model.sites):
        site.adapter.down.register_forward_hook(
            lambda _m, _i, out, number=number: seen.update({number: out.detach().numpy().reshape(-1, 4)})
        )
    before = [(s.adapter.norm.running_mean.numpy().copy(), s.adapter.norm.running_var.numpy().copy())
              for s in model.sites]  # fmt: skip
    model.train()(batch)
    # In the last layer only the six first tokens go on; before it all 38.
    assert [len(seen[number]) for number in range(6)] == [38, 38, 38, 38, 6, 6]
    for number, (mean, var) in enumerate(before):
        norm = model.sites[number].adapter.norm
        np.testing.assert_allclose(norm.running_mean, 0.9 * mean + 0.1 * seen[number].mean(0), atol=1e-12)
        np.testing.assert_allclose(
            norm.running_var, 0.9 * var + 0.1 * seen[number].var(0, ddof=1), atol=1e-12
        )


def test_a_single_token_is_normalised_by_the_running_averages(make_model: Callable, tiny_examples: Callable):
    """The last layer sees one token of a batch of one example."""
    model = make_model("roberta", Adapters(4, 0.3, norm="batchnorm"), dropout=0.0, layers=1)
    batch = pack(tiny_examples("roberta", [1]), [0])
    with torch.no_grad():
        expected = model(batch)
        before = {name: buffer.clone() for name, buffer in model.base.named_buffers()}
        torch.testing.assert_close(model.train()(batch), expected, rtol=0, atol=1e-12)
    assert all(torch.equal(before[name], buffer) for name, buffer in model.base.named_buffers())


@every_variant
def test_nothing_is_drawn_from_the_global_generator(method: Adapters, make_model: Callable):
    model = make_model("bert", None)
    before = torch.random.get_rng_state()
    model.install(method, torch.Generator().manual_seed(0))
    assert torch.equal(torch.random.get_rng_state(), before)


@every_variant
def test_weights_are_drawn_and_biases_zero(method: Adapters, make_model: Callable):
    model = make_model("bert", replace(method, size=16, init_std=0.5), moved=False)
    adapters = [site.adapter for site in model.sites if site.adapter is not None]
    assert len(adapters) == (6 if method.sites == "both" else 3)
    drawn = [m.weight.detach() for a in adapters for m in (a.down, *a.inner, a.up)]
    assert all(w.abs().max() <= 1 and w.std() == pytest.approx(0.44, abs=0.05) for w in drawn)
    assert len({w.sum().item() for w in drawn}) == len(drawn)
    assert not any(m.bias.any() for a in adapters for m in (a.down, *a.inner, a.up))
    norms = [a.norm for a in adapters if method.norm != "none"]
    assert all((n.weight == 1).all() and not n.bias.any() for n in norms)


@pytest.mark.parametrize("sites", ["attention", "ffn"])
def test_adapters_lie_where_they_are_wanted(sites: str, make_model: Callable):
    model = make_model("electra", Adapters(3, sites=sites))
    names = {name.partition(".adapter.")[0] for name in model.base.state_dict() if ".adapter." in name}
    kind = "attention.output" if sites == "attention" else "output"
    assert names == {f"electra.encoder.layer.{layer}.{kind}" for layer in range(3)}
    assert model.has_adapter.tolist() == [sites == "attention", sites == "ffn"] * 3


@every_variant
def test_bfloat16_and_autocast_are_near(method: Adapters, make_model: Callable, tiny_examples: Callable):
    encoded = tiny_examples("bert", LENGTHS)
    model = make_model("bert", method)
    with torch.no_grad():
        expected = packed(model, encoded)
        model.float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cast = packed(model, encoded)
        low = packed(model.to(torch.bfloat16), encoded)
    for logits in (cast, low):
        assert 0 < (logits.double() - expected).abs().max() < 0.3 * expected.std()


@pytest.mark.parametrize("norm", ["none", "batchnorm"])
def test_added_rows_change_nothing_but_rounding(
    norm: str, make_model: Callable, tiny_examples: Callable, monkeypatch
):
    """A batch's rows in bfloat16 are raised to a multiple of 32; batch normalisation would see them."""
    encoded = tiny_examples("bert", LENGTHS)
    model = make_model("bert", Adapters(4, 0.5, norm=norm)).float()
    model.choose_trained(frozenset())
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    batch, seen, found = pack(encoded, range(len(encoded))), [], []
    query = model.layers[0].parts.query
    hook = query.register_forward_hook(lambda _m, read, _out: seen.append(read[0].shape[1]))
    for added in (True, False):
        if not added:
            monkeypatch.setattr(AdaptedModel, "_rows_added", lambda *_: 0)
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
            logits = model.train()(batch).float()
        model.zero_grad()
        logits.square().sum().backward()
        down = model.layers[1].sites[0].adapter.down
        found.append((logits.detach(), down.weight.grad, down.bias.grad))
    hook.remove()
    n = batch.n_tokens
    assert n % 32, "the batch has to be raised"
    assert seen == [n if norm == "batchnorm" else -(-n // 32) * 32, n]
    for raised, plain in zip(*found):
        assert (raised - plain).abs().max() < 2.0**-6 * plain.abs().max()


def scaled_weights(model: AdaptedModel, mask: np.ndarray, strength: float, norms: str) -> AdaptedModel:
    """A copy whose weights are what scaling the adapters that are off comes to."""
    scaled = deepcopy(model)
    for site, own, on in zip(scaled.sites, model.sites, mask):
        if on or site.adapter is None:
            continue
        for parameter in site.adapter.up.parameters():
            parameter.mul_(strength)
        for name, parameter in site.norm.named_parameters() if norms == "pretrained" else ():
            base = own.pretrained_norm.get_parameter(name)
            parameter.copy_(base + strength * (own.norm.get_parameter(name) - base))
    return scaled


@pytest.mark.parametrize("norms", ["trained", "pretrained"])
@pytest.mark.parametrize("strength", [0.5, -1.5])
@pytest.mark.parametrize("method", slow_unless(lambda method: method in SMALL[:2], SMALL), ids=label)
def test_scaled_adapters_are_those_with_scaled_weights(
    method: Adapters, strength: float, norms: str, make_model: Callable, tiny_examples: Callable
):
    model, encoded = make_model("bert", method), tiny_examples("bert", LENGTHS)
    batch, n = pack(encoded, range(len(encoded))), len(LENGTHS)
    masks = np.ones((4, 6), dtype=bool)
    masks[1], masks[2, :2], masks[3, 3:5] = False, False, False
    with torch.no_grad():
        wanted = torch.stack([scaled_weights(model, mask, strength, norms)(batch) for mask in masks])
        model.scale_off(strength)
        tree = forward_variants(model, batch, masks, tokens_per_pass=100, norms=norms)
        examples = np.tile(np.arange(n), 4)
        pairs = forward_pairs(
            model, batch, examples, masks.repeat(n, axis=0), tokens_per_pass=100, norms=norms
        )
        torch.testing.assert_close(tree, wanted, rtol=0, atol=1e-10)
        torch.testing.assert_close(pairs.reshape(wanted.shape), wanted, rtol=0, atol=1e-10)
        assert (wanted[1] - wanted[0]).abs().max() > 1e-3
        if norms == "trained":
            with model.switched_off(masks[2]):
                torch.testing.assert_close(model(batch), wanted[2], rtol=0, atol=1e-10)
