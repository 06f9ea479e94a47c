"""Where adapters sit in the modules of Transformers' own models (without torch)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from adapter_probe.models.bases.family import Anatomy


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
        layers: pattern of the layers' names in the encoder.
        attention, ffn: the places of the bottlenecks.
        projections: of query, key and value, inside a layer; or the one module of all three.
        head: the classification head, in the whole model.
        span_head: the head of question answering.
    """

    layers: str
    attention: Place
    ffn: Place
    projections: tuple[str, ...]
    head: str = "score"
    span_head: str = "qa_outputs"

    def layer_names(self, config: PretrainedConfig) -> tuple[str, ...]:
        """The module of every layer, bottom first."""
        return tuple(map(self.layers.format, range(int(config.num_hidden_layers))))


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


def places_of(anatomy: Anatomy) -> Places:
    """The places in a family that is known part by part."""
    names = anatomy.layer

    def place(kind: str, start: str) -> Place:
        ends = (getattr(names, f"{kind}_{part}") for part in ("out_dropout", "out"))
        norm = getattr(names, f"{kind}_norm")
        return Place(
            getattr(names, f"{kind}_site"), next(filter(None, ends)),
            norm if anatomy.pre_norm else start, None if anatomy.pre_norm else norm,
        )  # fmt: skip

    joint = (names.qkv,) if names.qkv else ()
    return Places(
        anatomy.layers,
        place("attention", ""),
        place("ffn", names.ffn_in),
        joint or tuple(str(name) for name in (names.query, names.key, names.value)),
        str(anatomy.head[-1]),
        str(anatomy.span_head[-1]),
    )
