"""What trains under each method, and what is frozen below it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from refusals import naming
from torch.nn import functional as F

from adapter_probe.data.encoding import Encoded
from adapter_probe.data.packing import PackedBatch, pack
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

METHODS: tuple[Method, ...] = (
    Adapters(4, 0.1),
    Adapters(4, 0.1, train_pooler=True, sites="attention"),
    Adapters(4, 0.1, norm="batchnorm", placement="parallel"),
    Adapters(4, 0.1, norm="layernorm", hidden_layers=2, interaction="multiply"),
    *(TopLayers(k) for k in range(4)),
    LayerNormOnly(),
    FullFineTuning(),
    HeadOnly(),
)
FROZEN_BELOW = ((TopLayers(0), 3), (TopLayers(1), 2), (TopLayers(2), 1), (TopLayers(3), 0), (HeadOnly(), 3))
every_method = pytest.mark.parametrize("method", METHODS, ids=str)

FAMILIES = ("bert", *(pytest.param(name, marks=pytest.mark.slow) for name in ("roberta", "electra")))


def expected_to_train(model: AdaptedModel) -> set[str]:
    """By the names of transformers' own modules, without the engine's grouping."""
    method, encoder = model.method, f"{model.base.base_model_prefix}."

    def trains(name: str) -> bool:
        layer = re.search(r"\.encoder\.layer\.(\d)\.", name)
        head, pooler = not name.startswith(encoder), ".pooler." in name
        match method:
            case Adapters():
                pooler &= method.train_pooler
                return head or pooler or "LayerNorm" in name or ".adapter." in name
            case TopLayers():
                return head or pooler or (layer is not None and int(layer[1]) >= 3 - method.k)
            case LayerNormOnly():
                return head or "LayerNorm" in name
            case FullFineTuning():
                return True
        return head

    return {name for name in model.base.state_dict() if trains(name)}


def loss(model: AdaptedModel, encoded: Encoded) -> torch.Tensor:
    batch = pack(encoded, range(len(encoded)))
    return F.cross_entropy(model(batch), torch.from_numpy(batch.index) % 3)


def one_step(model: AdaptedModel, trained: dict, encoded: Encoded) -> set[str]:
    """The names of all tensors, buffers too, that one step of Adam changed."""
    before = {name: tensor.clone() for name, tensor in model.base.state_dict().items()}
    optimizer = torch.optim.Adam(trained.values(), lr=1e-2)
    torch.manual_seed(0)
    loss(model.train(), encoded).backward()
    optimizer.step()
    return {n for n, tensor in model.base.state_dict().items() if not torch.equal(tensor, before[n])}


@pytest.mark.parametrize("family", FAMILIES)
@every_method
def test_what_changes_in_a_step_is_what_trains(
    family: str, method: Method, make_model: Callable, tiny_examples: Callable
):
    model = make_model(family, method, dtype="float32")
    trained = model.choose_trained(frozenset())
    expected = expected_to_train(model)
    assert set(model.named_delta()) == expected
    assert set(trained) == {name for name, _ in model.base.named_parameters()} & expected
    assert {name for name, p in model.named_parameters() if p.requires_grad} == {f"base.{n}" for n in trained}
    encoded = tiny_examples(family, [7, 4, 7, 12, 5, 9] * 2)
    assert one_step(model, trained, encoded) == expected
    assert all(p.grad is not None for p in trained.values())
    assert all(p.grad is None for name, p in model.base.named_parameters() if name not in trained)


@every_method
def test_the_delta_on_the_base_is_the_model(method: Method, make_model: Callable, tiny_examples: Callable):
    encoded = tiny_examples("bert", [7, 4, 7, 12])
    model = make_model("bert", method)
    one_step(model, model.choose_trained(frozenset()), encoded)
    delta = {name: tensor.detach().clone() for name, tensor in model.named_delta().items()}
    again = make_model("bert", method)
    again.choose_trained(frozenset())
    batch = pack(encoded, range(4))
    with torch.no_grad():
        expected = model.eval()(batch)
        assert not torch.allclose(again(batch), expected, atol=1e-6)
        for name, tensor in again.named_delta().items():
            tensor.copy_(delta.pop(name))
        assert torch.equal(again(batch), expected)
    assert not delta


@pytest.mark.parametrize(("method", "lowest"), FROZEN_BELOW, ids=str)
def test_what_the_base_lacks_always_trains(method: Method, lowest: int, make_model: Callable):
    model = make_model("bert", method, pooler=False)
    pooler = {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    assert set(model.choose_trained(frozenset(pooler))) == expected_to_train(model) | pooler
    assert model.lowest_trained_layer == lowest
    low = "bert.encoder.layer.0.output.dense.bias"
    assert low in model.choose_trained(frozenset({low}))
    assert model.lowest_trained_layer == 0
    word = "bert.embeddings.word_embeddings.weight"
    model.choose_trained(frozenset({word}))
    assert model.lowest_trained_layer == -1


def test_nothing_trains_before_a_method_is_installed(make_model: Callable):
    with pytest.raises(ModelError, match=naming("method", "install")):
        make_model("bert", None).choose_trained(frozenset())


@every_method
def test_a_method_is_installed_once(method: Method, make_model: Callable):
    model = make_model("bert", method)
    with pytest.raises(ModelError, match=naming(method.name)):
        model.install(HeadOnly(), torch.Generator())


@pytest.mark.parametrize(("layers", "k"), [(3, 4), (1, 12)])
def test_a_k_above_the_depth_is_refused(layers: int, k: int, make_model: Callable):
    model = make_model("roberta", None, layers=layers)
    with pytest.raises(ModelError, match=naming(f"k {k}", str(layers))):
        model.install(TopLayers(k), torch.Generator())
    model.install(TopLayers(layers), torch.Generator())


@pytest.mark.parametrize("method", [m for m in METHODS if not isinstance(m, Adapters)], ids=str)
def test_only_adapters_add_anything(method: Method, make_model: Callable):
    model = make_model("bert", method)
    assert model.base.state_dict().keys() == make_model("bert", None).base.state_dict().keys()
    assert not model.has_adapter.any()
    assert model.parameter_counts()["adapters"] == 0


@pytest.mark.parametrize("spans", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("method", "lowest"), FROZEN_BELOW, ids=str)
def test_frozen_features_are_the_models_own_hidden_states(
    family: str, method: Method, lowest: int, spans: bool, make_model: Callable, tiny_examples: Callable
):
    model, encoded = make_model(family, method, spans=spans), tiny_examples(family, [5, 9, 5, 1])
    model.choose_trained(frozenset())
    assert model.lowest_trained_layer == lowest
    batch = pack(encoded, range(4))
    features = model.train().frozen_features(batch)
    assert not features.requires_grad
    only_first = lowest == 3 and not spans
    expected = []
    for example in batch.index:
        ids = torch.from_numpy(encoded.input_ids[example])[None]
        types = encoded.token_type_ids and torch.from_numpy(encoded.token_type_ids[example])[None]
        with torch.no_grad():
            out = model.base.eval()(ids, token_type_ids=types, output_hidden_states=True)
        expected.append(out.hidden_states[lowest][0, : 1 if only_first else None])
    torch.testing.assert_close(features, torch.cat(expected), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("method", "lowest"), FROZEN_BELOW, ids=str)
def test_the_two_halves_are_the_whole(
    method: Method, lowest: int, make_model: Callable, tiny_examples: Callable
):
    model, encoded = make_model("bert", method), tiny_examples("bert", [5, 9, 5, 1])
    trained = model.choose_trained(frozenset())
    batch = pack(encoded, range(4))
    for mode in (False, True):
        model.train(mode)
        features = model.frozen_features(batch)
        torch.manual_seed(0)
        whole = model(batch)
        torch.manual_seed(0)
        assert torch.equal(model.forward_from(features, batch), whole)
        gradients = torch.autograd.grad(whole.square().sum(), list(trained.values()))
        assert all(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("method", [*METHODS[:4], LayerNormOnly(), FullFineTuning()], ids=str)
def test_where_the_embeddings_train_nothing_is_frozen(
    method: Method, make_model: Callable, tiny_examples: Callable
):
    model = make_model("bert", method)
    model.choose_trained(frozenset())
    assert model.lowest_trained_layer == -1
    with pytest.raises(ValueError, match="embeddings train"):
        model.frozen_features(pack(tiny_examples("bert", [3]), [0]))
    assert all(module.training for module in model.train().modules())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("method", "lowest"), FROZEN_BELOW, ids=str)
def test_dropout_acts_above_the_lowest_trained_layer_alone(
    family: str, method: Method, lowest: int, make_model: Callable, tiny_examples: Callable
):
    model = make_model(family, method, dropout=0.0)
    batch = pack(tiny_examples(family, [5, 9, 5, 1]), range(4))
    model.train()
    model.choose_trained(frozenset())  # also after the mode was set
    with torch.no_grad():
        still = model(batch)
        encoder = model.base.base_model
        below = [encoder.embeddings, *encoder.encoder.layer[:lowest]]
        set_dropout(below, 0.5)
        assert torch.equal(model(batch), still)
        assert torch.equal(model.train()(batch), still)
        set_dropout(below, 0.0)
        for module in (*encoder.encoder.layer[lowest:], model.base):
            set_dropout([module], 0.5)
            assert not torch.allclose(model(batch), still, atol=1e-3)
            assert torch.equal(model.eval()(batch), still)
            set_dropout([module], 0.0)
            model.train()


def set_dropout(modules: list, probability: float) -> None:
    for module in modules:
        for part in module.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = probability


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "method", [TopLayers(0), TopLayers(2), HeadOnly(), LayerNormOnly(), FullFineTuning()], ids=str
)
def test_gradients_equal_those_of_the_whole_graph(
    family: str, method: Method, make_model: Callable, tiny_examples: Callable
):
    """The transformers model's own forward, one example at a time, with nothing frozen."""
    model, encoded = make_model(family, method, dropout=0.0), tiny_examples(family, [6, 4, 6, 11])
    trained = model.train().choose_trained(frozenset())
    ours = torch.autograd.grad(loss(model, encoded), list(trained.values()))
    model.base.requires_grad_(True)
    logits = []
    for example, ids in enumerate(encoded.input_ids):
        types = encoded.token_type_ids and torch.from_numpy(encoded.token_type_ids[example])[None]
        logits.append(model.base(torch.from_numpy(ids)[None], token_type_ids=types).logits[0])
    own = torch.autograd.grad(
        F.cross_entropy(torch.stack(logits), torch.arange(4) % 3), list(trained.values())
    )
    for name, one, other in zip(trained, ours, own):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10, msg=name)


def test_rows_below_are_not_computed_with_gradient(make_model: Callable, tiny_examples: Callable):
    model = make_model("bert", TopLayers(1))
    model.choose_trained(frozenset())
    seen: dict[int, bool] = {}
    for number, layer in enumerate(model.layers):
        layer.parts.ffn_out.register_forward_hook(
            lambda _m, _i, out, number=number: seen.update({number: out.requires_grad})
        )
    batch: PackedBatch = pack(tiny_examples("bert", [3, 4]), [0, 1])
    model.train()(batch)
    assert seen == {0: False, 1: False, 2: True}
