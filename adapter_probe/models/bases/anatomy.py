"""The table of the model families: one row each. Nothing else in the project names a family.

A family whose layers are attention and feed-forward sublayers with residual sums, LayerNorms after the sums
or before the sublayers, joins by adding a row; attention of a new kind is a subclass in attention.py.
"""

from __future__ import annotations

from torch.nn import functional as F
from transformers import PretrainedConfig

from adapter_probe.errors import ModelError

from .attention import CausalAttention, CausalRotaryAttention
from .family import Anatomy
from .parts import LayerNames
from .relative import BiasedAttention, DisentangledAttention, InterleavedDisentangledAttention

_PLAIN_POSITIONS = ("position_embedding_type", ("absolute", None))
_NO_CROSS_ATTENTION = ("add_cross_attention", (False, None))
_ENCODER = (("is_decoder", (False, None)), _NO_CROSS_ATTENTION, _PLAIN_POSITIONS)

ANATOMIES: tuple[Anatomy, ...] = (
    Anatomy(
        model_types=("bert",),
        head=("bert.pooler", "dropout", "classifier"),
        reads_sequence=("bert.pooler",),
        pooler="pooler",
        allowed=_ENCODER,
    ),
    Anatomy(
        model_types=("roberta", "xlm-roberta", "camembert", "data2vec-text"),
        head=("classifier",),
        reads_sequence=("classifier",),
        positions_follow_padding=True,
        allowed=_ENCODER,
    ),
    Anatomy(
        model_types=("electra",),
        head=("classifier",),
        reads_sequence=("classifier",),
        projection="embeddings_project",
        may_lack=("embeddings_project",),
        allowed=_ENCODER,
    ),
    Anatomy(
        model_types=("distilbert",),
        head=("pre_classifier", F.relu, "dropout", "classifier"),
        span_head=("dropout", "qa_outputs"),
        token_types=False,
        layers="transformer.layer.{}",
        layer=LayerNames(
            attention="attention",
            query="attention.q_lin",
            key="attention.k_lin",
            value="attention.v_lin",
            attention_dropout="attention.dropout",
            attention_out="attention.out_lin",
            attention_out_dropout=None,
            attention_norm="sa_layer_norm",
            attention_site="attention",
            ffn_in="ffn.lin1",
            activation="ffn.activation",
            ffn_out="ffn.lin2",
            ffn_out_dropout="ffn.dropout",
            ffn_norm="output_layer_norm",
            ffn_site="ffn",
        ),
    ),
    Anatomy(
        model_types=("mpnet",),
        head=("classifier",),
        reads_sequence=("classifier",),
        token_types=False,
        positions_lost=2,
        attention=BiasedAttention,
        layer=LayerNames(
            attention="attention.attn",
            query="attention.attn.q",
            key="attention.attn.k",
            value="attention.attn.v",
            attention_dropout="attention.attn.dropout",
            attention_out="attention.attn.o",
            attention_out_dropout="attention.dropout",
            attention_norm="attention.LayerNorm",
            attention_site="attention",
        ),
    ),
    Anatomy(
        model_types=("albert",),
        head=("albert.pooler", "albert.pooler_activation", "dropout", "classifier"),
        pooler="pooler",
        projection="encoder.embedding_hidden_mapping_in",
        layers="encoder.albert_layer_groups.{}.albert_layers.0",
        layer_groups="num_hidden_groups",
        layer=LayerNames(
            attention="attention",
            query="attention.query",
            key="attention.key",
            value="attention.value",
            attention_dropout="attention.attention_dropout",
            attention_out="attention.dense",
            attention_out_dropout="attention.output_dropout",
            attention_norm="attention.LayerNorm",
            attention_site="attention",
            ffn_in="ffn",
            activation="activation",
            ffn_out="ffn_output",
            ffn_out_dropout=None,
            ffn_norm="full_layer_layer_norm",
            ffn_site="",
        ),
        allowed=(("inner_group_num", (1, None)), _PLAIN_POSITIONS),
    ),
    Anatomy(
        model_types=("deberta-v2",),
        head=("pooler", "dropout", "classifier"),
        reads_sequence=("pooler",),
        norms=("embeddings.LayerNorm", "encoder.LayerNorm"),
        may_lack=("encoder.LayerNorm",),
        attention=DisentangledAttention,
        layer=LayerNames(
            query="attention.self.query_proj",
            key="attention.self.key_proj",
            value="attention.self.value_proj",
        ),
        allowed=(("conv_kernel_size", (0, None)),),
    ),
    Anatomy(
        model_types=("deberta",),
        head=("pooler", "dropout", "classifier"),
        reads_sequence=("pooler",),
        attention=InterleavedDisentangledAttention,
        layer=LayerNames(query=None, key=None, value=None, qkv="attention.self.in_proj", qkv_by_head=True),
        allowed=(("talking_head", (False, None)),),
    ),
    Anatomy(
        model_types=("gpt2",),
        head=("score",),
        reads="last",
        embeddings="wte",
        token_types=False,
        position_embeddings="wpe",
        embedding_dropout="drop",
        norms=(),
        final_norm="ln_f",
        layers="h.{}",
        pre_norm=True,
        attention=CausalAttention,
        layer=LayerNames(
            attention="attn",
            query=None,
            key=None,
            value=None,
            qkv="attn.c_attn",
            attention_dropout="attn.attn_dropout",
            attention_out="attn.c_proj",
            attention_out_dropout="attn.resid_dropout",
            attention_norm="ln_1",
            attention_site="attn",
            ffn_in="mlp.c_fc",
            activation="mlp.act",
            ffn_out="mlp.c_proj",
            ffn_out_dropout="mlp.dropout",
            ffn_norm="ln_2",
            ffn_site="mlp",
        ),
        allowed=(_NO_CROSS_ATTENTION,),
    ),
    Anatomy(
        model_types=("llama", "mistral", "qwen2"),
        head=("score",),
        reads="last",
        embeddings="embed_tokens",
        token_types=False,
        norms=(),
        final_norm="norm",
        layers="layers.{}",
        pre_norm=True,
        attention=CausalRotaryAttention,
        layer=LayerNames(
            attention="self_attn",
            query="self_attn.q_proj",
            key="self_attn.k_proj",
            value="self_attn.v_proj",
            attention_dropout="self_attn.attention_dropout",
            attention_out="self_attn.o_proj",
            attention_out_dropout=None,
            attention_norm="input_layernorm",
            attention_site="self_attn",
            ffn_in="mlp.up_proj",
            ffn_gate="mlp.gate_proj",
            activation="mlp.act_fn",
            ffn_out="mlp.down_proj",
            ffn_out_dropout=None,
            ffn_norm="post_attention_layernorm",
            ffn_site="mlp",
        ),
        allowed=(("is_causal", (True, None)),),
    ),
)


def supported_model_types() -> tuple[str, ...]:
    """Every `config.model_type` that has a row in the table."""
    return tuple(name for anatomy in ANATOMIES for name in anatomy.model_types)


def anatomy_for(config: PretrainedConfig) -> Anatomy:
    """The table row for a model's configuration.

    Raises:
        ModelError: the family has no row, or the configuration changes the layer's computation (a decoder,
            cross-attention, relative positions).
    """
    for anatomy in ANATOMIES:
        if config.model_type in anatomy.model_types:
            check_config(anatomy, config)
            return anatomy
    raise ModelError(
        f"model family {config.model_type!r} is not supported; supported are "
        f"{', '.join(supported_model_types())}; another joins by a row in "
        "adapter_probe/models/bases/anatomy.py, or from Python by AdaptedModel(base, anatomy=...)"
    )


def check_config(anatomy: Anatomy, config: PretrainedConfig) -> None:
    """Refuse a configuration under which a family computes something else.

    Raises:
        ModelError: a field has a value that the engine cannot run.
    """
    for name, allowed in anatomy.allowed:
        value = getattr(config, name, None)
        if value in allowed:
            continue
        if name in {"is_decoder", "add_cross_attention"}:
            role = "with cross-attention" if anatomy.attention.causal else "as a decoder"
            raise ModelError(f"{config.model_type} configured {role} is not supported")
        raise ModelError(f"{name} {value!r} is not supported; allowed is {allowed[0]!r}")


def length_limit(
    asked: int | None, config: PretrainedConfig, tokenizer_limit: int, anatomy: Anatomy | None = None
) -> int:
    """The most tokens an example may have: `asked`, within what the model and its tokenizer can read.

    Raises:
        ModelError: `asked` leaves no room for a token between the two special ones.
    """
    if asked is not None and asked < 3:
        raise ModelError(f"max_length {asked} is not allowed; give at least 3")
    anatomy = anatomy or anatomy_for(config)
    positions = int(config.max_position_embeddings) - anatomy.positions_lost
    if anatomy.positions_follow_padding:
        positions -= int(config.pad_token_id) + 1
    return min(limit for limit in (asked, positions, tokenizer_limit) if limit is not None)
