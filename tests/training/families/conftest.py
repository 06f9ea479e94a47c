"""Small random models of the families beyond the BERT-like ones, and runs of them without the engine.

A test that asks for `family` runs for each of them, one that asks for `encoder` (with norms after the
sublayers), `span_family` or `tag_family` for these, and one that asks for `kind` for one of those that are
alike. The quick tests are those of `QUICK`; of a test marked ``quick(name)``, that of this one alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest
import torch
from exact import Float64
from tiers import slow_unless
from torch import nn
from torch.nn import functional as F
from training_models import in_memory, with_method
from transformers import (
    MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PretrainedConfig,
)

from adapter_probe.data.encoding import Encoded
from adapter_probe.models.methods import Adapters, Method
from adapter_probe.training.model import TrainingModel

LAYERS, WORDS = 3, 35


@dataclass(frozen=True)
class Family:
    """One model to try.

    Attributes:
        model_type: of transformers.
        layer: name of layer {} within the classification model.
        ends: name, within the layer, of the module whose output each sublayer's adapter changes.
        holders: name, within the layer, of the modules that hold the adapters.
        norms: name, within the layer, of each sublayer's LayerNorm.
        outer_norms: LayerNorms outside the layers, by full name.
        pre_norm: LayerNorms stand before the sublayers.
        modules: which layer module serves each layer.
        dropouts: configuration fields with dropout probabilities.
        config: what else is configured.
    """

    model_type: str
    layer: str
    ends: tuple[str, str]
    holders: tuple[str, str]
    norms: tuple[str, str]
    outer_norms: tuple[str, ...]
    config: dict = field(default_factory=dict)
    pre_norm: bool = False
    modules: tuple[int, ...] = tuple(range(LAYERS))
    dropouts: tuple[str, ...] = ("hidden_dropout_prob", "attention_probs_dropout_prob")


def _deberta(model_type: str, *norms: str, **config: object) -> Family:
    return Family(
        model_type,
        "deberta.encoder.layer.{}",
        ("attention.output.dropout", "output.dropout"),
        ("attention.output", "output"),
        ("attention.output.LayerNorm", "output.LayerNorm"),
        ("deberta.embeddings.LayerNorm", *norms),
        {"type_vocab_size": 2, **config},
        dropouts=("hidden_dropout_prob", "attention_probs_dropout_prob", "pooler_dropout"),
    )


def _albert(groups: int, modules: tuple[int, ...]) -> Family:
    return Family(
        "albert",
        "albert.encoder.albert_layer_groups.{}.albert_layers.0",
        ("attention.output_dropout", "ffn_output"),
        ("attention", ""),
        ("attention.LayerNorm", "full_layer_layer_norm"),
        ("albert.embeddings.LayerNorm",),
        {"embedding_size": 24, "num_hidden_groups": groups},
        modules=modules,
        dropouts=("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob"),
    )


_TWO_WAYS = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False}
FAMILIES: dict[str, Family] = {
    "distilbert": Family(
        "distilbert",
        "distilbert.transformer.layer.{}",
        ("attention.out_lin", "ffn.dropout"),
        ("attention", "ffn"),
        ("sa_layer_norm", "output_layer_norm"),
        ("distilbert.embeddings.LayerNorm",),
        {"hidden_dim": 64},
        dropouts=("dropout", "attention_dropout", "seq_classif_dropout", "qa_dropout"),
    ),
    "mpnet": Family(
        "mpnet",
        "mpnet.encoder.layer.{}",
        ("attention.dropout", "output.dropout"),
        ("attention", "output"),
        ("attention.LayerNorm", "output.LayerNorm"),
        ("mpnet.embeddings.LayerNorm",),
        {"pad_token_id": 1, "max_position_embeddings": 42},
    ),
    "albert": _albert(1, (0, 0, 0)),
    "albert, two groups": _albert(2, (0, 0, 1)),
    "deberta-v3": _deberta("deberta-v2", "deberta.encoder.LayerNorm", share_att_key=True, position_buckets=8,
                           norm_rel_ebd="layer_norm", **_TWO_WAYS),
    "deberta-v2": _deberta("deberta-v2", relative_attention=True, pos_att_type=["p2c", "c2p"],
                           share_att_key=False, max_relative_positions=9, embedding_size=24),
    "deberta-v2, no distances": _deberta("deberta-v2"),
    "deberta-v2, convolution": _deberta("deberta-v2", conv_kernel_size=3, relative_attention=True,
                                        pos_att_type=["p2c", "c2p"], max_relative_positions=9),
    "deberta": _deberta("deberta", max_relative_positions=-1, **_TWO_WAYS),
    "deberta, talking heads": _deberta("deberta", max_relative_positions=-1, talking_head=True, **_TWO_WAYS),
    "deberta, one way": _deberta("deberta", max_relative_positions=9, relative_attention=True,
                                 pos_att_type=["c2p"]),
    "modernbert": Family(
        "modernbert",
        "model.layers.{}",
        ("attn.out_drop", "mlp.Wo"),
        ("attn", "mlp"),
        ("attn_norm", "mlp_norm"),
        ("model.embeddings.norm", "model.final_norm"),
        {"local_attention": 8, "norm_bias": True, "global_attn_every_n_layers": 2, "cls_token_id": 1,
         "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2},
        pre_norm=True,
        dropouts=("attention_dropout", "embedding_dropout", "mlp_dropout", "classifier_dropout"),
    ),
}  # fmt: skip


def _config(name: str, dropout: float = 0.0, **changes: object) -> PretrainedConfig:
    family = FAMILIES[name]
    config = {
        "vocab_size": WORDS,
        "num_hidden_layers": LAYERS,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 40,
        "pad_token_id": 0,
        **family.config,
        **dict.fromkeys(family.dropouts, dropout),
        **changes,
    }
    return AutoConfig.for_model(family.model_type, **config)


def plain_model(
    name: str, *, spans: bool = False, tags: bool = False, dropout: float = 0.0, **changes: object
) -> nn.Module:
    """A model of transformers, random everywhere and in evaluation mode, in float64."""
    made = _config(name, dropout, **changes)
    made.num_labels = 2 if spans else 3
    kind = AutoModelForQuestionAnswering if spans else AutoModelForSequenceClassification
    kind = AutoModelForTokenClassification if tags else kind
    model = kind.from_config(made).double().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for part, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            if parameter.dim() > 1:
                parameter.copy_(noise * 1.2 / parameter.shape[-1] ** 0.5)
            else:
                parameter.copy_(noise * 0.2 + float(part.endswith("weight")))
    return model


def trained_model(name: str, method: Method | None = None, **changes: object) -> TrainingModel:
    """The same under a method; adapters far from the identity, LayerNorms moved from where they were."""
    kind = "extractive" if changes.get("spans") else "tokens" if changes.get("tags") else "classification"
    own = method or Adapters(5, 0.3, activation="tanh")
    model = with_method(in_memory(plain_model(name, **changes)), own, seed=1, kind=kind)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for group, _, parameter in model.named_roles():
            if group in {"adapters", "layernorms"}:
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model.double().eval()


def random_examples(lengths: Sequence[int], seed: int = 0) -> Encoded:
    """Tokens of no special meaning."""
    draw = np.random.default_rng(seed)
    return Encoded(tuple(draw.integers(5, WORDS, length) for length in lengths), None, "")


def own_logits(base: nn.Module, encoded: Encoded, *, padded: bool) -> torch.Tensor:
    """Logits ``[examples, labels]`` of the transformers model, in one padded batch or one by one."""
    if not padded:
        return torch.cat([base(input_ids=torch.from_numpy(ids)[None]).logits for ids in encoded.input_ids])
    ids = torch.full((len(encoded), max(encoded.lengths)), base.config.pad_token_id)
    mask = torch.zeros_like(ids)
    for row, example in enumerate(encoded.input_ids):
        ids[row, : len(example)] = torch.from_numpy(example)
        mask[row, : len(example)] = 1
    return base(input_ids=ids, attention_mask=mask).logits


class Separate:
    """A plain transformers model with the weights of another, adapters applied by hooks of its own.

    Args:
        name: of the family.
        config: of the model.
        own: its parameters and those of its adapters, by their names in a checkpoint; the adapters have the
            activation tanh.
        pretrained: a state dict whose LayerNorms serve after sites that are off; None for the model's own.
    """

    def __init__(
        self,
        name: str,
        config: PretrainedConfig,
        own: dict[str, torch.Tensor],
        pretrained: dict | None = None,
    ):
        self._family = FAMILIES[name]
        self.adapters = {n: t.clone() for n, t in own.items() if ".adapter." in n}
        self._pretrained = pretrained
        self.plain = AutoModelForSequenceClassification.from_config(config).eval()
        self.plain.to(next(iter(own.values())).dtype)
        for parameter_name, parameter in self.plain.named_parameters():
            parameter.data.copy_(own[parameter_name])
        self._on: list[bool] = []
        self._calls: dict[tuple[int, int], int] = {}
        for module in set(self._family.modules) if self.adapters else ():
            for kind in (0, 1):
                self._hook(module, kind)

    def _hook(self, module: int, kind: int) -> None:
        family, layer = self._family, self._family.layer.format(module)
        layers = [number for number, used in enumerate(family.modules) if used == module]
        holder = f"{layer}.{family.holders[kind]}".rstrip(".")

        def adapt(_module: nn.Module, _inputs: tuple, x: torch.Tensor) -> torch.Tensor:
            self._calls[module, kind] = turn = self._calls.get((module, kind), -1) + 1
            number = layers[turn]
            if not self._on[2 * number + kind]:
                return x
            shared = f"{number}." if len(set(family.modules)) < LAYERS else ""
            w = {n: self.adapters[f"{holder}.adapter.{shared}{n}"]
                 for n in ("down.weight", "down.bias", "up.weight", "up.bias")}  # fmt: skip
            inner = torch.tanh(F.linear(x, w["down.weight"], w["down.bias"]))
            return x + F.linear(inner, w["up.weight"], w["up.bias"])

        def renorm(norm: nn.Module, inputs: tuple, output: torch.Tensor) -> torch.Tensor:
            number = layers[self._calls[module, kind]]
            if self._pretrained is None or self._on[2 * number + kind]:
                return output
            own = {n: tensor.clone() for n, tensor in norm.state_dict().items()}
            norm.load_state_dict(
                {n: self._pretrained[f"{layer}.{family.norms[kind]}.{n}"] for n in ("weight", "bias")}
            )
            output = norm.forward(*inputs)
            norm.load_state_dict(own)
            return output

        self.plain.get_submodule(f"{layer}.{family.ends[kind]}").register_forward_hook(adapt)
        if not family.pre_norm:
            self.plain.get_submodule(f"{layer}.{family.norms[kind]}").register_forward_hook(renorm)

    @torch.no_grad()
    def run(self, encoded: Encoded, mask: Sequence[bool], *, padded: bool = False) -> torch.Tensor:
        """Logits ``[examples, labels]`` with only the sites in `mask` on."""
        return self.run_with_gradient(encoded, mask, padded=padded)

    def run_with_gradient(
        self, encoded: Encoded, mask: Sequence[bool] = (True,) * 2 * LAYERS, *, padded: bool = False
    ) -> torch.Tensor:
        """The same with gradients of `plain` and of `adapters`."""
        self._on = [bool(bit) for bit in mask]
        begin = self.plain.base_model.register_forward_pre_hook(lambda *_: self._calls.clear())
        logits = own_logits(self.plain, encoded, padded=padded)
        begin.remove()
        return logits


QUICK = ("albert, two groups", "deberta-v3")
"""Kinds of layers, for the quick tests: norms after the sublayers with weights shared by layers, and
disentangled attention."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "quick(name): the only family whose test is among the quick ones")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker("quick")
    quick = mark.args if mark else QUICK
    for argument, names in _asked().items():
        if argument in metafunc.fixturenames:
            metafunc.parametrize(argument, slow_unless(quick.__contains__, names))


@cache
def _asked() -> dict[str, list[str]]:
    """The families that a test's argument goes through."""
    return {
        "span_family": [
            name for name in FAMILIES if type(_config(name)) in MODEL_FOR_QUESTION_ANSWERING_MAPPING
        ],
        "tag_family": [
            name for name in FAMILIES if type(_config(name)) in MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING
        ],
        "family": list(FAMILIES),
        "encoder": [name for name, family in FAMILIES.items() if not family.pre_norm],
        "kind": [
            "distilbert",
            "mpnet",
            "albert, two groups",
            "deberta-v3",
            "deberta",
            "modernbert",
        ],
    }


@pytest.fixture
def in_float64() -> Iterator[None]:
    """Whatever the test computes is in float64, also what a model's own code does in float32."""
    with Float64():
        yield


@pytest.fixture(scope="session", name="families")
def _families() -> dict[str, Family]:
    return FAMILIES


@pytest.fixture(scope="session", name="plain_model")
def _plain_model() -> Callable[..., nn.Module]:
    return plain_model


@pytest.fixture(scope="session", name="trained_model")
def _trained_model() -> Callable[..., TrainingModel]:
    return trained_model


@pytest.fixture(scope="session", name="random_examples")
def _random_examples() -> Callable[..., Encoded]:
    return random_examples


@pytest.fixture(scope="session", name="own_logits")
def _own_logits() -> Callable[..., torch.Tensor]:
    return own_logits


@pytest.fixture(scope="session", name="separate")
def _separate() -> Callable[..., Separate]:
    """``separate(name, model).run(encoded, mask)``; of a model, or of its configuration and tensors."""

    def make(name: str, model: TrainingModel | PretrainedConfig, *tensors: dict) -> Separate:
        if isinstance(model, PretrainedConfig):
            return Separate(name, model, *tensors)
        return Separate(name, model.base.config, {n: t.detach() for _, n, t in model.named_roles()})

    return make
