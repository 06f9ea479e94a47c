"""Tiny random bases, checkpoints on them that PEFT itself writes, and what the stored fixtures are of."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from mask_loop import randomise
from peft import PeftConfig, PeftModel, get_peft_model
from refusals import refused
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

import adapter_probe as ap
from adapter_probe.data.encoding import Encoded, encoded_with_fingerprint
from adapter_probe.errors import CheckpointError

FIXTURES = Path(__file__).parent / "fixtures"
WORDS = FIXTURES / "bases" / "bert"  # a tokenizer of 53 whole words
IDS = torch.tensor([[2, 9, 31, 7, 40, 12, 3], [2, 17, 5, 52, 20, 33, 3]])
_SMALL = {
    32: "hidden_size d_model n_embd dim embedding_size word_embed_proj_dim embed_dim out_hidden_size",
    48: "intermediate_size d_ff ffn_dim hidden_dim encoder_ffn_dim decoder_ffn_dim n_inner",
    3: "num_hidden_layers num_layers n_layer n_layers encoder_layers decoder_layers num_decoder_layers depth "
    "eos_token_id",
    4: "num_attention_heads num_heads n_head n_heads encoder_attention_heads decoder_attention_heads "
    "num_local_experts linear_num_value_heads",
    2: "num_key_value_heads num_kv_heads bos_token_id num_experts_per_tok linear_num_key_heads",
    8: "head_dim d_kv query_pre_attn_scalar rotary_dim linear_key_head_dim linear_value_head_dim "
    "hidden_size_per_layer_input",
    64: "max_position_embeddings n_positions n_ctx vocab_size vocab_size_per_layer_input",
    0: "pad_token_id decoder_start_token_id",
}
_SIZES = {name: size for size, names in _SMALL.items() for name in names.split()}


def small_config(model_type: str, **settings: object) -> PretrainedConfig:
    """The configuration of a type and of its parts made small; ``settings`` go before."""
    whole = AutoConfig.for_model(model_type)
    parts = {name: getattr(whole, name) for name in whole.sub_configs}
    small: dict[str, object] = {
        name: {"model_type": part.model_type, **_small_of(part)}
        for name, part in parts.items()
        if isinstance(part, PretrainedConfig)
    }
    return AutoConfig.for_model(model_type, **(_small_of(whole) | small | settings))


def _small_of(config: PretrainedConfig) -> dict[str, int]:
    fields = set(config.to_dict()) | set(config.attribute_map)
    return {name: size for name, size in _SIZES.items() if name in fields}


def write_base(
    folder: Path,
    model_type: str,
    cls: type[PreTrainedModel] | None = None,
    dtype: torch.dtype = torch.float32,
    **settings: object,
) -> Path:
    """A random model of a type with its configuration made small, and a tokenizer; see `small_config`."""
    config = small_config(model_type, **settings)
    torch.manual_seed(0)
    model = AutoModel.from_config(config) if cls is None else cls(config)
    model.to(dtype).save_pretrained(folder)
    for file in WORDS.glob("*token*"):
        shutil.copy(file, folder)
    return folder


def write_adapter(
    folder: Path, base: Path, cls: type[PreTrainedModel], config: PeftConfig, std: float = 0.3
) -> Path:
    """A checkpoint that PEFT writes of a random adapter on a base."""
    config.base_model_name_or_path = str(base)
    torch.manual_seed(5)
    model = get_peft_model(cls.from_pretrained(base), config)
    randomise(model, std)
    model.save_pretrained(folder)
    if getattr(config, "bias", "none") == "lora_only":  # which PEFT leaves out before 0.21
        weights, stored = folder / "adapter_model.safetensors", model.state_dict().items()
        biases = {name: t.contiguous() for name, t in stored if name.endswith("base_layer.bias")}
        save_file(load_file(weights) | biases, weights, {"format": "pt"})
    return folder


def by_peft(folder: Path, base: Path, cls: type[PreTrainedModel] = AutoModelForCausalLM) -> PeftModel:
    """PEFT's own model of a checkpoint."""
    return PeftModel.from_pretrained(cls.from_pretrained(base), folder).eval()


@torch.no_grad()
def logits(model: torch.nn.Module, ids: torch.Tensor = IDS) -> torch.Tensor:
    """By the model's own forward; a decoder behind an encoder reads the same tokens."""
    ids = ids.to(next(model.parameters()).device)
    more = {"decoder_input_ids": ids} if getattr(model.config, "is_encoder_decoder", False) else {}
    return model(input_ids=ids, **more).logits.cpu()


def refusals(folder: Path, base: Path | None = None) -> list[str]:
    """What opening and inspecting say, one line each."""
    return [refused(read, folder, error=CheckpointError, base=base) for read in (ap.open, ap.inspect)]


def base_of(folder: Path) -> str:
    """The fixtures' base that a checkpoint names."""
    config = json.loads((folder / "adapter_config.json").read_text())
    name = config.get("model_name") or config["base_model_name_or_path"]
    return str(FIXTURES / "bases" / name.rpartition("/")[2])


def texts() -> Encoded:
    """The examples of the fixtures' logits."""
    ids = json.loads((FIXTURES / "texts.json").read_text())
    return encoded_with_fingerprint(tuple(np.array(text, dtype=np.int64) for text in ids), None)
