"""What lies in a checkpoint's folder and has no part in its numbers: named, in one line (without torch).

Three tables say what is known: the files that are read, those that only tell of the training, and the kinds
of files that could change a number. A file of such a kind that is in neither table is named.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

from adapter_probe.errors import CheckpointError

from .files import (
    CONFIG,
    DELTA,
    DESCRIPTION,
    MODULES,
    OF_MODULES,
    VOCABULARIES,
    is_cross_encoder,
    read_json_file,
)

# Of weights, configurations, templates and code.
_KINDS = (
    "*.json", "*.safetensors", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack", "*.gguf",
    "*.onnx", "*.jinja", "*.py",
)  # fmt: skip
_OF_TOKENIZER = ("tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "vocab*.json")
_LIMITS = "sentence_bert_config.json"
_OF_EMBEDDINGS = (OF_MODULES, _LIMITS)
_READ = (
    CONFIG, DESCRIPTION, DELTA, "adapter_model.safetensors", "adapter_model.bin", "adapters.safetensors",
    "pytorch_adapter.bin", "pytorch_model_head.bin", "head_config.json", "config.json", "bert_config.json",
    "*.ckpt-*", "chat_template.jinja", MODULES, *_OF_TOKENIZER, *_OF_EMBEDDINGS,
)  # fmt: skip
"""Files of an adapter's folder that are read; `config.json` is compared with the base's."""
_OF_MODEL = ("model*.safetensors", "model.safetensors.index.json", "generation_config.json")
"""What is also read of a whole model's folder."""
_COPIES = (
    "pytorch_model*.bin*", "tf_model*.h5", "flax_model*.msgpack", "rust_model.ot", "consolidated*", "*.gguf",
    "*.onnx",
)  # fmt: skip
"""Copies of a whole model's weights in other formats."""
_OF_TRAINING = (
    "training_args.*", "training_config.json", "train_config.json", "trainer_state.json", "*_results.json",
    "results.json", "*metrics*.json", "*history*.json", "*log*.json", "optimizer*", "scheduler*", "scaler*",
    "rng_state*", "random_states*", "*_adapters.safetensors", "zero_to_fp32.py", "ds_config*.json",
    "*deepspeed*.json", "accelerate*.json", "wandb*", "eval*.json", "loss*.json", "progress*.json",
    "quantize_config.json", "preprocessor_config.json", "processor_config.json", "video_preprocessor*.json",
    "image_processor*.json", "figure*.json", "summary.json", "manifest.json",
)  # fmt: skip
"""The record and the state of the training, and what prepares images."""
_OF_PEFT = ("adapter_model.safetensors", "adapter_model.bin")
"""The file of PEFT; the first one is read where there are both."""
_OF_OTHERS = ("pytorch_adapter.bin", "pytorch_model_head.bin", "head_config.json", "adapters.safetensors")
"""What other libraries write in place of it."""
_MOST = 5
_VALUE_HEADS = ("value_head.*", "v_head.*", "pytorch_model.bin")
"""Where LLaMA-Factory and TRL keep the head of a reward model or a critic beside an adapter."""


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []


def _any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def note_on_files(folder: Path, whole: bool) -> list[str]:
    """What to say of the files in a checkpoint's folder that could change a number and are not read.

    Args:
        whole: whether it is a whole model instead of an adapter.
    """
    known = (*_READ, *_OF_TRAINING, *(_OF_MODEL + _COPIES if whole else ()))
    others, said = _of_other_formats(folder), [*_without_their_main_file(folder), *_of_cross_encoder(folder)]
    if found := [name for name in _files(folder) if _any(name, _KINDS) and not _any(name, known)]:
        more = f" and {len(found) - _MOST} more" if len(found) > _MOST else ""
        said.append(f"Not read, as no known part of a checkpoint: {', '.join(found[:_MOST])}{more}.")
    return [*said, f"Not read, beside the adapter's own file: {', '.join(others)}."] if others else said


def _without_their_main_file(folder: Path) -> list[str]:
    """What to say of settings that are read with another file only, which is not there."""
    names, said = _files(folder), []
    above = {MODULES}.intersection(_files(folder.parent))  # the folder of the library, around its Transformer
    for patterns, mains in ((_OF_TOKENIZER, VOCABULARIES), (_OF_EMBEDDINGS, (MODULES,))):
        found = [name for name in names if _any(name, patterns)]
        if found and not set(mains) & {*names, *above}:
            said.append(f"Not read, as the folder has no {mains[0]}: {', '.join(found)}.")
    return said


def _of_cross_encoder(folder: Path) -> list[str]:
    """What to say of settings of a cross-encoder, which is scored by the outputs of its head."""
    if not is_cross_encoder(folder):
        return []
    files = [folder / name for name in _OF_EMBEDDINGS]
    asked: dict[str, object] = {}
    for path in (path for path in files if path.is_file()):
        asked |= read_json_file(path)
    found = {name: asked.get(name) for name in ("default_prompt_name", "max_seq_length", "activation_fn")}
    kept = [f"{name} {value}" for name, value in found.items() if value and "Identity" not in str(value)]
    said = f"Settings of the cross-encoder that are not followed: {', '.join(kept)}"
    return [f"{said}; it is scored by its head."] * bool(kept)


def _of_other_formats(folder: Path) -> list[str]:
    """The files of another format, or another library, than the one that the adapter is read from."""
    own, others = set(_files(folder)), set(_OF_OTHERS)
    if own.issuperset(_OF_PEFT):
        others.add(_OF_PEFT[1])
    return sorted(own & others) if own.intersection(_OF_PEFT) else []


def refuse_value_head(folder: Path) -> None:
    """Refuse an adapter of a language model beside which lies the head of a reward model."""
    found = next((name for name in _files(folder) if _any(name, _VALUE_HEADS)), None)
    if found is not None:
        raise CheckpointError(
            f"checkpoint {folder} has {found}, where LLaMA-Factory and TRL keep the head of a reward model; "
            "it is not read, so chosen and rejected would be compared by likelihood. For its reward, save a "
            "model for sequence classification with this head as its one output (task type SEQ_CLS); for "
            "likelihoods, move the file away"
        )
