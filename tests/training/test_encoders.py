"""What trains under each method, and what is frozen below it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from refusals import naming, refuses
from tiers import slow_unless
from torch.nn import functional as F
from training_models import expected_to_train, in_memory, loss, one_step, trained
from transformers import AutoConfig, AutoModelForSequenceClassification

from adapter_probe.data.packing import PackedBatch, pack
from adapter_probe.errors import ModelError
from adapter_probe.models.methods import Adapters, FullFineTuning, HeadOnly, LayerNormOnly, Method, TopLayers
from adapter_probe.training.model import TrainingModel
from adapter_probe.training.request import TrainingRequest, build_model
from adapter_probe.training.settings import TrainingSettings

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
QUICK = (METHODS[2], TopLayers(1), LayerNormOnly(), FullFineTuning(), HeadOnly())
KEPT_BELOW = ((TopLayers(0), 3), (TopLayers(1), 2), (TopLayers(2), 1), (HeadOnly(), 3))
FROZEN_BELOW = (*KEPT_BELOW, (TopLayers(3), 0))  # the embeddings alone
every_method = pytest.mark.parametrize("method", METHODS, ids=str)

FAMILIES = ("bert", *(pytest.param(name, marks=pytest.mark.slow) for name in ("roberta", "electra")))


def layers_of(model: TrainingModel) -> list[str]:
    return [f"{model.base.base_model_prefix}.encoder.layer.{number}" for number in range(3)]


def plain_twin(model: TrainingModel) -> torch.nn.Module:
    """Transformers' own model with these weights, without adapters."""
    twin = type(model.base)(model.base.config).double().eval()
    twin.load_state_dict({name: parameter for _, name, parameter in model.named_roles()}, strict=False)
    return twin


@pytest.mark.parametrize("family", FAMILIES)
@every_method
def test_what_changes_in_a_step_is_what_trains(family, method, make_model, tiny_examples):
    model = make_model(family, method, dtype="float32")
    expected = expected_to_train(model, method, layers_of(model))
    assert set(model.named_delta()) == expected
    encoded = tiny_examples(family, [7, 4, 7, 12, 5, 9] * 2)
    assert one_step(model, encoded) == expected
    assert all((p.grad is not None) == p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("method", slow_unless(QUICK.__contains__, METHODS), ids=str)
def test_the_delta_on_the_base_is_the_model(method: Method, make_model: Callable, tiny_examples: Callable):
    encoded = tiny_examples("bert", [7, 4, 7, 12])
    model = make_model("bert", method)
    one_step(model, encoded)
    delta = {name: tensor.detach().clone() for name, tensor in model.named_delta().items()}
    again = make_model("bert", method)
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
    pooler = {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    model = make_model("bert", method, pooler=False, missing=pooler)
    assert set(model.named_delta()) == expected_to_train(model, method, layers_of(model)) | pooler
    assert model.lowest_trained_layer == lowest
    low = "bert.encoder.layer.0.output.dense.bias"
    model = make_model("bert", method, missing={low})
    assert low in model.named_delta()
    assert model.lowest_trained_layer == 0
    model = make_model("bert", method, missing={"bert.embeddings.word_embeddings.weight"})
    assert model.lowest_trained_layer == -1


@pytest.mark.parametrize(("layers", "k"), [(3, 4), (1, 12)])
def test_a_k_above_the_depth_is_refused(layers: int, k: int, make_model: Callable):
    refuses(ModelError, (f"k {k}", str(layers)), make_model, "roberta", TopLayers(k), layers=layers)
    make_model("roberta", TopLayers(layers), layers=layers)


@pytest.mark.parametrize("method", [*METHODS[:4], LayerNormOnly(), FullFineTuning()], ids=str)
def test_where_the_embeddings_train_nothing_is_frozen(method: Method, make_model: Callable):
    model = make_model("bert", method)
    assert model.lowest_trained_layer == -1
    assert all(module.training for module in model.train().modules())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("method", "lowest"), FROZEN_BELOW, ids=str)
def test_dropout_acts_above_the_lowest_trained_layer_alone(family, method, lowest, make_model, tiny_examples):
    model = make_model(family, method, dropout=0.0)
    batch = pack(tiny_examples(family, [5, 9, 5, 1]), range(4))
    model.train()
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
def test_gradients_equal_those_of_the_whole_graph(family, method, make_model, tiny_examples):
    """The transformers model's own forward, one example at a time, with nothing frozen."""
    model, encoded = make_model(family, method, dropout=0.0), tiny_examples(family, [6, 4, 6, 11])
    wanted, plain = trained(model.train()), plain_twin(model)
    ours = torch.autograd.grad(loss(model, encoded), list(wanted.values()))
    logits = []
    for example, ids in enumerate(encoded.input_ids):
        types = encoded.token_type_ids and torch.from_numpy(encoded.token_type_ids[example])[None]
        logits.append(plain(torch.from_numpy(ids)[None], token_type_ids=types).logits[0])
    own = torch.autograd.grad(
        F.cross_entropy(torch.stack(logits), torch.arange(4) % 3), [plain.get_parameter(n) for n in wanted]
    )
    for name, one, other in zip(wanted, ours, own):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10, msg=name)


@pytest.mark.parametrize("method", [Adapters(4, 0.1), TopLayers(1)], ids=str)
def test_computing_states_again_gives_the_same_gradients(method, make_model, tiny_examples):
    model, encoded = make_model("bert", method, dropout=0.0), tiny_examples("bert", [6, 4, 6, 11])
    wanted = list(trained(model.train()).values())
    kept = torch.autograd.grad(loss(model, encoded), wanted)
    model.save_memory()
    for one, other in zip(kept, torch.autograd.grad(loss(model, encoded), wanted)):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_a_first_deberta_whose_attention_trains_is_refused_in_bfloat16():
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = AutoConfig.for_model("deberta", vocab_size=35, **shape)
    base = in_memory(AutoModelForSequenceClassification.from_config(config))
    settings, task = TrainingSettings(dtype="bfloat16"), SimpleNamespace(kind="classification", name="t")
    request = TrainingRequest("b", task, FullFineTuning(), settings)
    with pytest.raises(ModelError, match=naming("--dtype bfloat16", "full", "DeBERTa")):
        build_model(request, base, torch.device("cpu"))


def test_rows_below_are_not_computed_with_gradient(make_model: Callable, tiny_examples: Callable):
    model = make_model("bert", TopLayers(1))
    seen: dict[int, bool] = {}
    for number, layer in enumerate(model.layers):
        layer.output.dense.register_forward_hook(
            lambda _m, _i, out, number=number: seen.update({number: out.requires_grad})
        )
    batch: PackedBatch = pack(tiny_examples("bert", [3, 4]), [0, 1])
    model.train()(batch)
    assert seen == {0: False, 1: False, 2: True}
