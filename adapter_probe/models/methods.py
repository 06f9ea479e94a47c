"""Training methods: what is added to a base and what trains, in a form that checkpoints record.

A method decides for every parameter of a model whether it `trains`. Parameters that the base lacks (the
task's head, perhaps a pooler) are random, so they train under every method.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, get_args, runtime_checkable

from adapter_probe.errors import AdapterProbeError, ModelError, must_be
from adapter_probe.records import RecordError, from_record, to_record
from adapter_probe.settings import Settings, SiteChoice, setting

Activation = Literal["gelu", "gelu_tanh", "relu", "swish", "tanh"]
Placement = Literal["sequential", "parallel"]
Interaction = Literal["add", "multiply"]
InnerNorm = Literal["none", "layernorm", "batchnorm"]
ParameterRole = Literal["adapters", "layernorms", "pooler", "head", "base"]

LARGEST_SIZE = 16_384  # the widest feed-forward layer among released models of the supported families
MOST_HIDDEN_LAYERS = 16
# Below this range, an adapter's change vanishes in float32 and its gradients in Adam's epsilon; above, the
# initial output is noise.
STD_RANGE = (1e-12, 100.0)


class _Recorded:
    name: ClassVar[str]
    trained_roles: ClassVar[tuple[ParameterRole, ...]] = ()

    def trains(self, role: ParameterRole, layer: int, n_layers: int, is_bias: bool = False) -> bool:
        """Whether a parameter trains; `layer` is -1 in the embeddings, `n_layers` in pooler and head."""
        return role in self.trained_roles

    def to_json(self) -> dict[str, Any]:
        """A plain dict, with the method's name under ``name``."""
        return {"name": self.name, **to_record(self)}


@dataclass(frozen=True, kw_only=True)
class AdapterVariant(Settings):
    """Variants of the paper's adapters; see `Adapters`."""

    panel = "Adapters"
    error: ClassVar[type[AdapterProbeError]] = ModelError

    activation: Activation = setting("gelu", "activation function of the adapters.")
    train_pooler: bool = setting(
        False, "whether to also train the pooler of the base model (the authors' code keeps it frozen)."
    )
    sites: SiteChoice = setting("both", "sublayers to insert adapters after.")
    placement: Placement = setting(
        "sequential", "whether an adapter reads the output of its sublayer or, in parallel to it, the input."
    )
    interaction: Interaction = setting(
        "add", "whether the adapter's output c is added to the sublayer's output x or scales it, x (1 + c)."
    )
    norm: InnerNorm = setting(
        "none", "normalisation inside the adapter, after the down-projection and before its activation."
    )
    hidden_layers: int = setting(1, "number of hidden layers inside the adapter, each with its activation.")


@dataclass(frozen=True)
class Adapters(AdapterVariant, _Recorded):
    """Bottleneck adapters in every layer; adapters, LayerNorms and head train.

    The fields that every record names are the paper's setting; the paper found the other variants no better.
    Source: Houlsby et al. 2019 (arXiv 1902.00751), sections 2.1 and 3.6, and Figure 2.

    Attributes:
        size: the bottleneck's width m, at least 1.
        init_std: std of the normal distribution that weights are drawn from, before truncation at two std;
            the realised std is about 0.88 of it. Must be positive, because two zero matrices have no
            gradient.
        skip_layers: layers, from 0, without adapters; their LayerNorms still train.
    """

    name: ClassVar[str] = "adapters"
    recorded_always = frozenset(("size", "init_std", "activation", "train_pooler"))

    size: int = 64
    init_std: float = 1e-2
    skip_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_whole("adapter size", self.size, 1, LARGEST_SIZE)
        _check_whole("hidden_layers", self.hidden_layers, 1, MOST_HIDDEN_LAYERS)
        layers = list(self.skip_layers) if isinstance(self.skip_layers, list | tuple) else self.skip_layers
        whole = isinstance(layers, list) and all(isinstance(n, int) and n >= 0 for n in layers)
        if not whole or layers != sorted(set(layers)):
            words = "distinct layers from 0, in ascending order"
            raise ModelError(must_be("skip_layers", words, layers))
        if self.init_std == 0:
            words = "positive (at 0 both matrices are zero and neither gets a gradient)"
            raise ModelError(must_be("init_std", words, self.init_std))
        real = isinstance(self.init_std, int | float)
        if not (real and STD_RANGE[0] <= self.init_std <= STD_RANGE[1]):
            words = f"a number from {STD_RANGE[0]:g} to {STD_RANGE[1]:g}"
            raise ModelError(must_be("init_std", words, self.init_std))
        if self.norm == "layernorm" and self.size == 1:
            raise ModelError(
                "adapter size 1 is not allowed with norm 'layernorm', which maps any single number to zero; "
                "give a size of at least 2"
            )

    def trains(self, role: ParameterRole, layer: int, n_layers: int, is_bias: bool = False) -> bool:
        """Whether a parameter trains; `layer` is -1 in the embeddings, `n_layers` in pooler and head."""
        return role in {"adapters", "layernorms", "head"} or (role == "pooler" and self.train_pooler)

    def to_json(self) -> dict[str, Any]:
        """A plain dict, with the method's name under ``name``; see `Settings.to_json`."""
        first = {"name": self.name, "size": self.size, "init_std": self.init_std}
        return {**first, **Settings.to_json(self)}


@dataclass(frozen=True)
class TopLayers(_Recorded):
    """Fine-tuning of the top `k` layers, including LayerNorms, the pooler and the head.

    With k = 0 only pooler and head train; with k equal to the base's depth every layer, but never the
    embeddings. Layers below the lowest trained one run without dropout, as in evaluation.
    Source: "variable fine-tuning" in Houlsby et al. 2019 (arXiv 1902.00751), section 3.3.

    Attributes:
        k: number of layers to train, from the top.
    """

    name: ClassVar[str] = "top_layers"

    k: int

    def __post_init__(self) -> None:
        _check_whole("k", self.k, 0)

    def trains(self, role: ParameterRole, layer: int, n_layers: int, is_bias: bool = False) -> bool:
        """Whether a parameter trains; `layer` is -1 in the embeddings, `n_layers` in pooler and head."""
        return layer >= n_layers - self.k


@dataclass(frozen=True)
class LayerNormOnly(_Recorded):
    """Only LayerNorms, including that of the embeddings, and the head train."""

    name: ClassVar[str] = "layernorm_only"
    trained_roles = ("layernorms", "head")


@dataclass(frozen=True)
class Biases(_Recorded):
    """Only the biases of the base, those of its LayerNorms included, and the head train.

    Source: BitFit, Ben Zaken et al. 2022 (arXiv 2106.10199).
    """

    name: ClassVar[str] = "bitfit"

    def trains(self, role: ParameterRole, layer: int, n_layers: int, is_bias: bool = False) -> bool:
        """Whether a parameter trains; `layer` is -1 in the embeddings, `n_layers` in pooler and head."""
        return is_bias or role == "head"


@dataclass(frozen=True)
class FullFineTuning(_Recorded):
    """Full fine-tuning: all parameters train."""

    name: ClassVar[str] = "full"
    trained_roles = get_args(ParameterRole)


@dataclass(frozen=True)
class HeadOnly(_Recorded):
    """Feature-based transfer: a new head on the frozen encoder, which runs without dropout.

    A pretrained pooler is part of the frozen encoder; `TopLayers(0)` trains it too.
    """

    name: ClassVar[str] = "head_only"
    trained_roles = ("head",)


@runtime_checkable
class PeftConfig(Protocol):
    """A configuration of PEFT, whose import takes seconds."""

    peft_type: Any

    def to_dict(self) -> dict[str, Any]:
        """Its fields."""


SIZES = ("r", "rank", "num_virtual_tokens", "n_frequency", "boft_block_size", "oft_block_size")
"""Names of the fields that a family's line is drawn over."""

LISTS = (
    "target_modules",
    "exclude_modules",
    "modules_to_save",
    "layers_to_transform",
    "feedforward_modules",
)
"""Fields whose values may be written in short, joined by +."""

VARIANTS_OF_LORA = {"use_dora": "dora", "use_rslora": "rslora"}
"""Fields of LoRA with which it has another name."""


@dataclass(frozen=True)
class PeftMethod:
    """A tuner of PEFT; the tuner, the head, and what its configuration names besides, train.

    Attributes:
        config: PEFT's configuration as JSON with sorted keys: its type, its size, and the fields that differ
            from PEFT's defaults.
        init_std: standard deviation of a LoRA's matrix A, while B is zero; None for PEFT's initialisation.
    """

    name: ClassVar[str] = "peft"

    config: str
    init_std: float | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """The configuration's fields."""
        return dict(json.loads(self.config))

    @property
    def size(self) -> int | None:
        """The size that a line is drawn over, such as the rank; None for a type without one."""
        return next((self.fields[name] for name in SIZES if self.fields.get(name)), None)

    @property
    def family(self) -> str:
        """The type in short, with all settings but the size: ``lora``, ``lora:target_modules=key+query``."""
        fields = self.fields
        name = str(fields.pop("peft_type")).lower()
        for flag, variant in VARIANTS_OF_LORA.items():
            if name == "lora" and fields.get(flag):
                name = variant
                del fields[flag]
        sized = next((field for field in SIZES if fields.get(field)), None)
        texts = {
            k: "+".join(map(str, v)) if isinstance(v, list) else v for k, v in fields.items() if k != sized
        }
        return name + ":" * bool(texts) + ",".join(f"{k}={v}" for k, v in texts.items())

    @property
    def text(self) -> str:
        """All of it, as a user may give it: ``lora:r=8,target_modules=key+query``, or ``peft:`` and JSON."""
        if not all(_is_short(name, value) for name, value in self.fields.items()):
            std = {} if self.init_std is None else {"init_std": self.init_std}
            return f"peft:{json.dumps({**self.fields, **std})}"
        name, _, others = self.family.partition(":")
        given = [f"{field}={self.fields[field]}" for field in SIZES if self.fields.get(field)][:1]
        given += [others] * bool(others)
        given += [] if self.init_std is None else [f"init_std={self.init_std:g}"]
        return name + ":" * bool(given) + ",".join(given)

    def trains(self, role: ParameterRole, layer: int, n_layers: int, is_bias: bool = False) -> bool:
        """Whether a parameter trains; see `TopLayers.trains`."""
        return role in ("adapters", "head") or role in (self.fields.get("modules_to_save") or ())

    def to_json(self) -> dict[str, Any]:
        """A plain dict, with the family and the size for tables; see `method_from_json`."""
        std = {} if self.init_std is None else {"init_std": self.init_std}
        return {"name": self.name, "family": self.family, "size": self.size, "config": self.fields, **std}

    @staticmethod
    def from_json(record: Mapping[str, Any], where: str) -> PeftMethod:
        """The inverse of `to_json`; family and size follow from the configuration."""
        config, std = record.get("config"), record.get("init_std")
        if not isinstance(config, Mapping) or not isinstance(config.get("peft_type"), str):
            raise RecordError(f"{where}.config is {config!r}, expected PEFT's configuration as an object")
        if not (std is None or isinstance(std, float)):
            raise RecordError(f"{where}.init_std is {std!r}, expected a number")
        return PeftMethod(json.dumps(config, sort_keys=True), std)


def _is_short(name: str, value: object) -> bool:
    parts = value if isinstance(value, list) and name in LISTS else [value]
    return not any(isinstance(one, list | dict) or set(str(one)) & set(",+") for one in parts)


Method = Adapters | TopLayers | LayerNormOnly | FullFineTuning | HeadOnly | Biases | PeftMethod
"""What trains."""

_BY_NAME: dict[str, type[Method]] = {kind.name: kind for kind in get_args(Method)}
METHOD_NAMES = tuple(_BY_NAME)


def method_from_json(record: object, where: str = "method") -> Method:
    """The inverse of `to_json`.

    Args:
        record: the parsed JSON; fields with a default may be missing.
        where: dotted name of the record within its file, for the message.

    Raises:
        RecordError: an unknown method, or a field that is missing, unknown or of the wrong type.
        ModelError: a field is out of range.
    """
    if not isinstance(record, Mapping):
        raise RecordError(f"{where} is {record!r}, expected an object")
    name = record.get("name")
    if not isinstance(name, str) or name not in _BY_NAME:
        raise RecordError(f"{where}.name is {name!r}, expected one of {', '.join(METHOD_NAMES)}")
    if name == PeftMethod.name:
        return PeftMethod.from_json(record, where)
    return from_record(_BY_NAME[name], {k: v for k, v in record.items() if k != "name"}, where)


def check_depth(method: Method, n_layers: int) -> None:
    """Refuse a method that needs more layers than the base has."""
    if isinstance(method, TopLayers) and method.k > n_layers:
        raise ModelError(
            f"k {method.k} exceeds the base, which has {n_layers} layers; give a whole number from 0 to "
            f"{n_layers}"
        )
    if isinstance(method, Adapters) and any(layer >= n_layers for layer in method.skip_layers):
        raise ModelError(
            f"skip_layers {list(method.skip_layers)} exceeds the base, whose {n_layers} layers are 0 to "
            f"{n_layers - 1}"
        )


def possible_top_k(layers: Sequence[str]) -> tuple[int, ...]:
    """All k for which the top k layers can train while the layers below stay frozen.

    Args:
        layers: name of every layer's module, bottom first (`Places.layer_names`); layers that share weights
            have the same.
    """
    depth = len(layers)
    return tuple(k for k in range(depth + 1) if set(layers[depth - k :]).isdisjoint(layers[: depth - k]))


def check_shared(method: Method, layers: Sequence[str]) -> None:
    """Refuse to train layers that share their weights with frozen layers; see `possible_top_k`."""
    possible = possible_top_k(layers)
    if isinstance(method, TopLayers) and method.k not in possible:
        raise ModelError(
            f"k {method.k} is not possible: the base's layers share their weights, which cannot train in "
            f"some layers and stay frozen in others; give one of {', '.join(map(str, possible))}"
        )


def _check_whole(what: str, value: object, least: int, most: int | None = None) -> None:
    fits = isinstance(value, int) and not isinstance(value, bool)
    if not fits or value < least or (most is not None and value > most):
        limits = f"from {least:,} to {most:,}" if most is not None else f"of at least {least}"
        raise ModelError(must_be(what, f"a whole number {limits}", value))
