"""Installing adapters, counting parameters, and what trains."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from refusals import naming
from scipy import stats
from torch.nn import functional as F
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    BertLMHeadModel,
)

from adapter_probe.checkpoints.base import load_base
from adapter_probe.data.packing import pack
from adapter_probe.errors import ModelError
from adapter_probe.models.adapted import AdaptedModel
from adapter_probe.models.adapters.imported import BottleneckSpec, ImportedMethod
from adapter_probe.models.methods import Adapters

ROBERTAS = ("xlm-roberta", "camembert", "data2vec-text")  # of the same row in the table
FAMILIES = ("bert", "roberta", "electra", *(pytest.param(n, marks=pytest.mark.slow) for n in ROBERTAS))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def fresh(tiny_base: Callable) -> Callable[..., AdaptedModel]:
    """``fresh(family, method=None, seed=0)``: a tiny base with a head for three labels, and adapters."""

    def make(family: str = "bert", method: Adapters | None = None, seed: int = 0) -> AdaptedModel:
        model = AdaptedModel(load_base(str(tiny_base(family)), 3).model).eval()
        if method is not None:
            model.install(method, generator(seed))
        return model

    return make


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_lie_at_both_sites_of_every_layer(family: str, fresh: Callable):
    model = fresh(family)
    before = set(model.base.state_dict())
    model.install(Adapters(size=4), generator())
    prefix = f"{model.base.base_model_prefix}.encoder.layer"
    assert set(model.base.state_dict()) - before == {
        f"{prefix}.{layer}.{site}.adapter.{matrix}.{kind}"
        for layer in range(3)
        for site in ("attention.output", "output")
        for matrix in ("down", "up")
        for kind in ("weight", "bias")
    }
    assert [site.adapter for site in model.sites] == [
        model.base.get_submodule(f"{prefix}.{layer}.{site}.adapter")
        for layer in range(3)
        for site in ("attention.output", "output")
    ]


def test_every_site_draws_weights_of_its_own(fresh: Callable):
    model = fresh(method=Adapters(size=16, init_std=0.5))
    for matrix in ("down", "up"):
        weights = [getattr(s.adapter, matrix).weight.detach().numpy().ravel() for s in model.sites]
        for one, other in itertools.combinations(weights, 2):
            assert abs(stats.pearsonr(one, other).statistic) < 0.2
        drawn = np.concatenate(weights)
        assert stats.kstest(drawn / 0.5, stats.truncnorm(-2, 2).cdf).pvalue > 0.01
    assert all(not s.adapter.down.bias.any() and not s.adapter.up.bias.any() for s in model.sites)


def test_the_same_seed_gives_the_same_adapters(fresh: Callable):
    states = [fresh(method=Adapters(size=4), seed=seed).base.state_dict() for seed in (5, 5, 6)]
    adapters = [name for name in states[0] if "adapter" in name]
    assert all(torch.equal(states[0][name], states[1][name]) for name in adapters)
    assert not any(torch.equal(states[0][n], states[2][n]) for n in adapters if n.endswith("weight"))


def test_adapters_are_installed_once(fresh: Callable):
    model = fresh(method=Adapters(size=4))
    with pytest.raises(ModelError, match="already"):
        model.install(Adapters(size=4), generator())


@pytest.mark.parametrize(("std", "changed"), [(1e-7, 1e-6), (1e-2, 0.1)])
def test_small_adapters_leave_the_base_nearly_as_it_was(
    std: float, changed: float, tiny_base: Callable, tiny_examples: Callable, fresh: Callable
):
    batch = pack(tiny_examples("bert", [9] * 6), range(6))
    plain, model = fresh().double(), fresh(method=Adapters(size=8, init_std=std)).double()
    with torch.no_grad():
        ids, types = batch.input_ids.view(6, 9), batch.token_type_ids.view(6, 9)
        own = plain.base(ids, token_type_ids=types).logits
        difference = (model(batch) - own).abs().max()
    assert 0 < difference < changed * own.std()


def test_bert_base_has_the_papers_numbers_of_parameters():
    with torch.device("meta"):
        base = BertForSequenceClassification(BertConfig(num_labels=2))
    own = sum(p.numel() for p in base.parameters())
    model = AdaptedModel(base)
    model.install(Adapters(size=64), generator())
    counts = model.parameter_counts()
    assert counts == {
        "adapters": 2_379_264,  # 24 (2 m d + d + m)
        "layernorms": 38_400,  # 25 x 2 d
        "pooler": 768 * 768 + 768,
        "head": 2 * 768 + 2,
        "base": own - 38_400 - (768 * 768 + 768) - (2 * 768 + 2),
    }
    assert own == 109_483_778


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_belongs_to_one_group(family: str, fresh: Callable):
    model = fresh(family, Adapters(size=4))
    names = [name for _, name, _ in model.named_roles()]
    assert sorted(names) == sorted(name for name, _ in model.base.named_parameters())
    assert sum(model.parameter_counts().values()) == sum(p.numel() for p in model.base.parameters())


def expected_to_train(model: AdaptedModel, also: tuple[str, ...] = ()) -> set[str]:
    """By the names of transformers' own modules, without the engine's grouping."""
    encoder = f"{model.base.base_model_prefix}."
    return {
        name
        for name, _ in model.base.named_parameters()
        if ".adapter." in name or "LayerNorm" in name or not name.startswith(encoder) or name.startswith(also)
    }


def one_step(model: AdaptedModel, trained: dict, encoded) -> set[str]:
    """The names of the tensors that one step of Adam changed."""
    before = {name: p.detach().clone() for name, p in model.base.named_parameters()}
    optimizer = torch.optim.Adam(trained.values(), lr=1e-2)
    batch = pack(encoded, range(len(encoded)))
    torch.manual_seed(0)
    F.cross_entropy(model.train()(batch), torch.arange(len(encoded)) % 3).backward()
    optimizer.step()
    return {name for name, p in model.base.named_parameters() if not torch.equal(p, before[name])}


@pytest.mark.parametrize("train_pooler", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_exactly_these_train(family: str, train_pooler: bool, fresh: Callable, tiny_examples: Callable):
    model = fresh(family, Adapters(size=4, init_std=0.1, train_pooler=train_pooler))
    trained = model.choose_trained(frozenset())
    expected = expected_to_train(model, ("bert.pooler",) if train_pooler else ())
    assert any("embeddings.LayerNorm" in name for name in expected)
    assert set(trained) == expected
    assert {name for name, p in model.base.named_parameters() if p.requires_grad} == expected
    assert one_step(model, trained, tiny_examples(family, [7, 4, 7, 12, 5, 9])) == expected


def test_a_pooler_that_the_base_lacks_trains_without_being_asked(
    tiny_base: Callable, tiny_examples: Callable
):
    loaded = load_base(str(tiny_base("bert", pooler=False)), 3)
    model = AdaptedModel(loaded.model)
    model.install(Adapters(size=4, init_std=0.1), generator())
    trained = model.choose_trained(loaded.missing)
    assert set(trained) == expected_to_train(model, ("bert.pooler",))
    assert one_step(model, trained, tiny_examples("bert", [7, 4, 7])) == set(trained)


def test_what_is_missing_trains_wherever_it_lies(fresh: Callable):
    model = fresh(method=Adapters(size=4))
    missing = "bert.encoder.layer.1.output.dense.bias"
    assert set(model.choose_trained(frozenset({missing}))) == expected_to_train(model, (missing,))
    assert missing not in model.choose_trained(frozenset())


def test_training_leaves_the_pretrained_norms_alone(tiny_base: Callable, fresh: Callable, tiny_examples):
    own = AutoModelForSequenceClassification.from_pretrained(tiny_base("bert"), num_labels=3).state_dict()
    model = fresh(method=Adapters(size=4, init_std=0.1))
    one_step(model, model.choose_trained(frozenset()), tiny_examples("bert", [5, 6, 7]))
    names = [f"{layer}.{site}" for layer in range(3) for site in ("attention.output", "output")]
    for name, site in zip(names, model.sites):
        for kind in ("weight", "bias"):
            pretrained = own[f"bert.encoder.layer.{name}.LayerNorm.{kind}"]
            assert torch.equal(getattr(site.pretrained_norm, kind), pretrained)
            assert not torch.equal(getattr(site.norm, kind), pretrained)


def test_casting_takes_everything_along(fresh: Callable):
    model = fresh(method=Adapters(size=4)).to(torch.bfloat16)
    tensors = [p for s in model.sites for m in (s.adapter, s.norm, s.pretrained_norm) for p in m.parameters()]
    assert {t.dtype for t in tensors} == {torch.bfloat16}
    assert model.device == torch.device("cpu")


def test_two_adapters_in_one_place_are_refused(fresh: Callable):
    bottleneck = BottleneckSpec(1, "ffn", 4, "relu")
    twice = ImportedMethod("adapters", ("seq_bn",), (bottleneck, replace(bottleneck, size=2)))
    model = fresh()
    before = set(model.base.state_dict())
    with pytest.raises(ModelError, match=naming("2", "ffn")):
        model.install(twice, None)
    assert set(model.base.state_dict()) == before


def test_a_language_model_is_refused():
    encoder = BertLMHeadModel(BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1))
    with pytest.raises(ModelError, match=naming("BertLMHeadModel")):
        AdaptedModel(encoder)


def test_any_other_module_is_refused():
    with pytest.raises(ModelError, match=naming("Linear")):
        AdaptedModel(torch.nn.Linear(2, 2))
