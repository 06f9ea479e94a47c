"""The decoders in the table of families: one row each."""

from __future__ import annotations

from dataclasses import replace

from .attention import CausalAttention
from .family import Anatomy
from .parts import LayerNames
from .rotary import CausalRotaryAttention

_CAUSAL = (("is_causal", (True, None)), ("use_bidirectional_attention", (False, None)))

_DECODER = Anatomy(  # what all of them share
    model_types=(),
    head=("score",),
    reads="last",
    token_types=False,
    norms=(),
    layers="layers.{}",
    pre_norm=True,
)

_LLAMA = replace(
    _DECODER,
    model_types=("llama", "mistral", "qwen2", "smollm3", "gemma"),
    embeddings="embed_tokens",
    final_norm="norm",
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
    allowed=_CAUSAL,
)

_GEMMA2 = replace(
    _LLAMA,
    model_types=("gemma2",),
    layer=replace(
        _LLAMA.layer,
        attention_post_norm="post_attention_layernorm",
        ffn_norm="pre_feedforward_layernorm",
        ffn_post_norm="post_feedforward_layernorm",
    ),
)

_HEAD_NORMS = {"query_norm": "self_attn.q_norm", "key_norm": "self_attn.k_norm"}

DECODERS: tuple[Anatomy, ...] = (
    replace(
        _DECODER,
        model_types=("gpt2",),
        embeddings="wte",
        position_embeddings="wpe",
        embedding_dropout="drop",
        final_norm="ln_f",
        layers="h.{}",
        attention=CausalAttention,
        layer=LayerNames(
            attention="attn",
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
        allowed=(("add_cross_attention", (False, None)),),
    ),
    _LLAMA,
    replace(_LLAMA, model_types=("qwen3",), layer=replace(_LLAMA.layer, **_HEAD_NORMS)),
    _GEMMA2,
    replace(
        _GEMMA2,
        model_types=("gemma3_text",),
        layer=replace(_GEMMA2.layer, **_HEAD_NORMS),
        allowed=(*_CAUSAL, ("attn_logit_softcapping", (None,))),
    ),
    replace(
        _LLAMA,
        model_types=("phi3",),
        layer=replace(
            _LLAMA.layer,
            qkv="self_attn.qkv_proj",
            attention_out_dropout="resid_attn_dropout",
            ffn_in="mlp.gate_up_proj",
            ffn_in_gated=True,
            ffn_gate=None,
            activation="mlp.activation_fn",
            ffn_out_dropout="resid_mlp_dropout",
        ),
    ),
    replace(
        _DECODER,
        model_types=("gpt_neox",),
        embeddings="embed_in",
        embedding_dropout="emb_dropout",
        final_norm="final_layer_norm",
        parallel="use_parallel_residual",
        attention=CausalRotaryAttention,
        layer=LayerNames(
            attention="attention",
            qkv="attention.query_key_value",
            qkv_by_head=True,
            attention_dropout="attention.attention_dropout",
            attention_out="attention.dense",
            attention_out_dropout="post_attention_dropout",
            attention_norm="input_layernorm",
            attention_site="attention",
            ffn_in="mlp.dense_h_to_4h",
            activation="mlp.act",
            ffn_out="mlp.dense_4h_to_h",
            ffn_out_dropout="post_mlp_dropout",
            ffn_norm="post_attention_layernorm",
            ffn_site="mlp",
        ),
        allowed=_CAUSAL,
    ),
    replace(
        _DECODER,
        model_types=("opt",),
        embeddings="decoder.embed_tokens",
        position_embeddings="decoder.embed_positions",
        position_offset=2,
        final_norm="decoder.final_layer_norm",
        layers="decoder.layers.{}",
        attention=CausalAttention,
        layer=LayerNames(
            attention="self_attn",
            query="self_attn.q_proj",
            key="self_attn.k_proj",
            value="self_attn.v_proj",
            attention_dropout="self_attn.dropout",
            attention_out="self_attn.out_proj",
            attention_out_dropout="dropout",
            attention_norm="self_attn_layer_norm",
            attention_site="self_attn",
            ffn_in="fc1",
            activation="activation_fn",
            ffn_out="fc2",
            ffn_out_dropout="dropout",
            ffn_norm="final_layer_norm",
            ffn_site="",
        ),
        allowed=(("do_layer_norm_before", (True, None)), ("_remove_final_layer_norm", (False, None))),
    ),
)
