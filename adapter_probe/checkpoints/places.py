"""Where adapters sit in the modules of Transformers' own models (without torch)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from adapter_probe.errors import CheckpointError, ModelError


@dataclass(frozen=True)
class Place:
    """The place of a bottleneck after a sublayer, by names of modules inside a layer; "" is the layer.

    Attributes:
        holder: the tensors of its adapter are ``<holder>.adapter.*``.
        end: the module that returns the sublayer's output.
        start: the module whose input is the residual.
        norm: the LayerNorm after the residual sum, None in a layer that normalises the input of sublayers.
    """

    holder: str
    end: str
    start: str
    norm: str | None = None


@dataclass(frozen=True)
class Places:
    """The places of adapters in a kind of model.

    Attributes:
        layers: pattern of the layers' names in the encoder, in which {} is replaced by the number.
        attention, ffn: the places of the bottlenecks.
        projections: of query, key and value, inside a layer; or the one module of all three.
        head: the classification head, in the whole model.
        span_head: the head of question answering.
        reads_first: whether the classification head reads the first token, not the last.
        before_head: the modules between the encoder and the classification head, in the whole model; None is
            a function.
        reads_sequence: which of these and of the head take ``[rows, positions, hidden]`` and pick the first
            position themselves.
        pooler: whether the encoder has a pooler that classification reads.
        final_norm: the LayerNorm of an encoder between its last layer and what reads it.
        layer_groups: name in the configuration of the number of layer modules, if there are fewer modules
            than layers, each shared by adjacent layers; {} in `layers` is then the number of the module.
        allowed: fields of the configuration with the values that are supported, if they are few.
    """

    layers: str
    attention: Place
    ffn: Place
    projections: tuple[str, ...]
    head: str = "score"
    span_head: str = "qa_outputs"
    reads_first: bool = False
    before_head: tuple[str | None, ...] = ()
    reads_sequence: tuple[str, ...] = ()
    pooler: bool = False
    final_norm: str | None = None
    layer_groups: str | None = None
    allowed: tuple[tuple[str, tuple[object, ...]], ...] = ()

    def layer_names(self, config: Any) -> tuple[str, ...]:
        """The module of every layer, bottom first; one that serves several layers repeats."""
        n_layers = int(config.num_hidden_layers)
        n_modules = n_layers if self.layer_groups is None else int(getattr(config, self.layer_groups))
        # As in the code of shared layers, whose groups need not be of equal size.
        return tuple(self.layers.format(int(i / (n_layers / n_modules))) for i in range(n_layers))


def _encoder(
    projections: tuple[str, ...],
    attention: Place = Place(
        "attention.output", "attention.output.dropout", "", "attention.output.LayerNorm"
    ),
    ffn: Place = Place("output", "output.dropout", "intermediate.dense", "output.LayerNorm"),
    layers: str = "encoder.layer.{}",
    **others: Any,
) -> Places:
    """Places in an encoder, by default those of BERT."""
    return Places(layers, attention, ffn, projections, "classifier", reads_first=True, **others)


def _three(pattern: str, *names: str) -> tuple[str, ...]:
    return tuple(map(pattern.format, names or ("query", "key", "value")))


_PLAIN_POSITIONS = ("position_embedding_type", ("absolute", None))
_NO_DECODER = (("is_decoder", (False, None)), ("add_cross_attention", (False, None)), _PLAIN_POSITIONS)
_SELF = _three("attention.self.{}")
_ROBERTA = _encoder(_SELF, reads_sequence=("classifier",), allowed=_NO_DECODER)
ENCODERS: dict[str, Places] = {
    "bert": _encoder(
        _SELF, before_head=("bert.pooler", "dropout"), reads_sequence=("bert.pooler",), pooler=True,
        allowed=_NO_DECODER,
    ),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "data2vec-text", "electra"), _ROBERTA),
    "distilbert": _encoder(
        _three("attention.{}_lin", "q", "k", "v"),
        Place("attention", "attention.out_lin", "", "sa_layer_norm"),
        Place("ffn", "ffn.dropout", "ffn.lin1", "output_layer_norm"),
        "transformer.layer.{}",
        before_head=("pre_classifier", None, "dropout"),
    ),
    "mpnet": _encoder(
        _three("attention.attn.{}", "q", "k", "v"),
        Place("attention", "attention.dropout", "", "attention.LayerNorm"),
        reads_sequence=("classifier",),
    ),
    "albert": _encoder(
        _three("attention.{}"),
        Place("attention", "attention.output_dropout", "", "attention.LayerNorm"),
        Place("", "ffn_output", "ffn", "full_layer_layer_norm"),
        "encoder.albert_layer_groups.{}.albert_layers.0",
        before_head=("albert.pooler", "albert.pooler_activation", "dropout"),
        pooler=True,
        layer_groups="num_hidden_groups",
        allowed=(("inner_group_num", (1, None)), _PLAIN_POSITIONS),
    ),
    "deberta-v2": _encoder(
        _three("attention.self.{}_proj"), before_head=("pooler", "dropout"), reads_sequence=("pooler",)
    ),
    "deberta": _encoder(
        ("attention.self.in_proj",), before_head=("pooler", "dropout"), reads_sequence=("pooler",)
    ),
    "modernbert": _encoder(
        ("attn.Wqkv",),
        Place("attn", "attn.out_drop", "attn_norm"),
        Place("mlp", "mlp.Wo", "mlp_norm"),
        "layers.{}",
        span_head="classifier",
        before_head=("head", "drop"),
        final_norm="final_norm",
        allowed=(("classifier_pooling", ("cls", None)),),
    ),
}  # fmt: skip
"""By the base's model type: encoders of attention and feed-forward sublayers with residual sums."""

_ATTENTION = Place("self_attn", "self_attn", "input_layernorm")
_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_LLAMA = Places("layers.{}", _ATTENTION, Place("mlp", "mlp", "post_attention_layernorm"), _QKV)
_GEMMA2 = Places(
    "layers.{}",
    Place("self_attn", "post_attention_layernorm", "input_layernorm"),
    Place("mlp", "post_feedforward_layernorm", "pre_feedforward_layernorm"),
    _QKV,
)
DECODERS: dict[str, Places] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma"), _LLAMA),
    **dict.fromkeys(("gemma2", "gemma3_text"), _GEMMA2),
    "phi3": Places(
        "layers.{}",
        Place("self_attn", "resid_attn_dropout", "input_layernorm"),
        Place("mlp", "resid_mlp_dropout", "post_attention_layernorm"),
        ("self_attn.qkv_proj",),
    ),
    "gpt2": Places("h.{}", Place("attn", "attn", "ln_1"), Place("mlp", "mlp", "ln_2"), ("attn.c_attn",)),
    "gpt_neox": Places(
        "layers.{}",
        Place("attention", "post_attention_dropout", "input_layernorm"),
        Place("mlp", "post_mlp_dropout", "post_attention_layernorm"),
        ("attention.query_key_value",),
    ),
    "opt": Places(
        "decoder.layers.{}",
        Place("self_attn", "self_attn", "self_attn_layer_norm"),
        Place("", "fc2", "final_layer_norm"),
        _QKV,
    ),
}
"""By the base's model type: those of AdapterHub, and those on which this project has trained bottlenecks."""


FAMILIES = {**ENCODERS, **DECODERS}


def places_in(config: Any) -> Places:
    """The places in a model with this configuration.

    Raises:
        ModelError: the family has no row, or the configuration changes the computation of its layers or head.
    """
    family = config.model_type
    places = FAMILIES.get(family) if isinstance(family, str) else None
    if places is None:
        raise ModelError(
            f"model family {config.model_type!r} is not supported; supported are {', '.join(FAMILIES)}; add "
            "another as a row in adapter_probe/checkpoints/places.py"
        )
    for name, allowed in places.allowed:
        value = getattr(config, name, None)
        if value in allowed:
            continue
        if name in {"is_decoder", "add_cross_attention"}:
            raise ModelError(f"{config.model_type} configured as a decoder is not supported")
        raise ModelError(f"{name} {value!r} is not supported; allowed is {allowed[0]!r}")
    return places


def places_on(base: str, config: Any) -> Places:
    """`places_in` a base, which the error names as what cannot be opened."""
    try:
        return places_in(config)
    except ModelError as error:
        raise CheckpointError(f"base {base}: {error}") from error
