"""The parts of one layer: their names in a family, and the corresponding modules."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from adapter_probe.errors import ModelError


@dataclass(frozen=True)
class LayerNames:
    """Dotted names of one layer's parts, relative to the layer; None for parts that the family lacks.

    Attributes:
        attention: the module that attends; what families' attention does differently is read off it.
        query, key, value: the projections, if they are separate modules; None with `qkv`.
        qkv: the joint projection, if it is one module: all queries, then all keys, then all values.
        qkv_by_head: whether query, key and value of each head are adjacent instead.
        attention_dropout: dropout of the attention weights. Every dropout is a module or a number.
        attention_out, ffn_out: the projections that end the sublayers.
        attention_out_dropout, ffn_out_dropout: dropout after them.
        attention_norm, ffn_norm: the sublayer's LayerNorm, after its residual sum or at its entrance.
        attention_site, ffn_site: the modules that hold the adapters, so that the state dict names them
            ``<site>.adapter.*``; "" is the layer itself.
        ffn_in_gated: whether `ffn_in` computes both: the first half of its output is the gate, which is
            multiplied by the second half.
        ffn_inner_dropout: dropout between activation and `ffn_out`.
    """

    attention: str = "attention.self"
    query: str | None = "attention.self.query"
    key: str | None = "attention.self.key"
    value: str | None = "attention.self.value"
    qkv: str | None = None
    qkv_by_head: bool = False
    attention_dropout: str = "attention.self.dropout"
    attention_out: str = "attention.output.dense"
    attention_out_dropout: str | None = "attention.output.dropout"
    attention_norm: str = "attention.output.LayerNorm"
    attention_site: str = "attention.output"
    ffn_in: str = "intermediate.dense"
    ffn_in_gated: bool = False
    activation: str = "intermediate.intermediate_act_fn"
    ffn_inner_dropout: str | None = None
    ffn_out: str = "output.dense"
    ffn_out_dropout: str | None = "output.dropout"
    ffn_norm: str = "output.LayerNorm"
    ffn_site: str = "output"

    def __post_init__(self) -> None:
        if self.qkv is not None:
            for name in ("query", "key", "value"):
                object.__setattr__(self, name, None)


class _Rate:
    """A dropout probability that a module stores as a number."""

    def __init__(self, owner: nn.Module, name: str):
        self._owner, self._name = owner, name

    @property
    def p(self) -> float:
        return float(getattr(self._owner, self._name))

    @property
    def training(self) -> bool:
        return self._owner.training


Dropout = nn.Dropout | _Rate


@dataclass(frozen=True)
class LayerParts:
    """One layer's modules, found by `LayerNames`; None for parts that the family lacks.

    Attributes:
        whole: the layer.
    """

    whole: nn.Module
    attention: nn.Module
    query: nn.Module | None
    key: nn.Module | None
    value: nn.Module | None
    qkv: nn.Module | None
    qkv_by_head: bool
    attention_dropout: Dropout | None
    attention_out: nn.Module
    attention_out_dropout: Dropout | None
    attention_norm: nn.Module
    attention_site: nn.Module
    ffn_in: nn.Module
    ffn_in_gated: bool
    activation: nn.Module
    ffn_inner_dropout: Dropout | None
    ffn_out: nn.Module
    ffn_out_dropout: Dropout | None
    ffn_norm: nn.Module
    ffn_site: nn.Module

    @property
    def norms(self) -> list[nn.Module]:
        """Every LayerNorm of the layer."""
        return [self.attention_norm, self.ffn_norm]

    @property
    def ends(self) -> tuple[nn.Module, nn.Module]:
        """The last module of each sublayer before its site."""
        last = []
        for kind in ("attention", "ffn"):
            names = (f"{kind}_out_dropout", f"{kind}_out")
            last.append(next(m for m in (getattr(self, n) for n in names) if isinstance(m, nn.Module)))
        return last[0], last[1]


def find_parts(layer: nn.Module, names: LayerNames) -> LayerParts:
    """The modules of one layer.

    Raises:
        ModelError: a named part does not exist.
    """
    found = {part: value for part, value in vars(names).items() if not isinstance(value, str)}
    for part, name in vars(names).items():
        if isinstance(name, str):
            found[part] = (_dropout if part.endswith("dropout") else submodule)(layer, name)
    return LayerParts(whole=layer, **found)


def _dropout(layer: nn.Module, name: str) -> Dropout | None:
    owner, _, attribute = name.rpartition(".")
    found = getattr(submodule(layer, owner), attribute, None)
    if found is None:
        raise _absent(layer, name)
    if isinstance(found, nn.Identity):  # instead of a dropout with rate 0
        return None
    return found if isinstance(found, nn.Module) else _Rate(submodule(layer, owner), attribute)


def submodule(module: nn.Module, name: str) -> nn.Module:
    """The part that a dotted name leads to; "" is the module itself.

    Raises:
        ModelError: there is no such part.
    """
    try:
        return module.get_submodule(name)
    except AttributeError as error:
        raise _absent(module, name) from error


def _absent(module: nn.Module, name: str) -> ModelError:
    return ModelError(f"{type(module).__name__} has no part {name!r}; the anatomy does not fit the model")


def linear_shape(module: nn.Module, name: str) -> tuple[int, int]:
    """Numbers of inputs and outputs of a linear map, for either orientation of its weights.

    Raises:
        ModelError: the module is not a linear map.
    """
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    if type(module).__name__ == "Conv1D":
        return tuple(module.weight.shape)
    raise ModelError(f"{name} is a {type(module).__name__}; a linear map is expected")
