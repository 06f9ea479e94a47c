"""How many real configurations of PEFT open: a tiny base of each type, and a checkpoint with its fields.

    python -m benchmarks.peft_configurations CONFIGURATIONS.tsv [--only TEXT]

The file has one row per public adapter: its type, task, base, targets, quantisation and other settings, as in
the sample that the issue tracker describes. Of each row a random base of that type is made with three small
layers (quantised with bitsandbytes where the row says so) and PEFT writes an adapter of rank 2 with the row's
settings; then adapter-probe opens it, with the base's folder in place of its name, and its logits are
compared with those of PEFT's own loader. Printed is one line per row that does not open, and the shares.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # PEFT asks the hub for a base's configuration when it saves
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "checkpoints"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "fixtures"))

import torch
import transformers
from peft import LoraConfig, PeftModel, PromptTuningConfig, get_peft_model
from peft_cases import IDS, randomise, small_config, write_base
from safetensors.torch import load_file, save_file
from transformers import BitsAndBytesConfig, PretrainedConfig
from transformers.models.auto import modeling_auto

from adapter_probe.checkpoints.mlx import as_peft
from adapter_probe.checkpoints.opened_peft import OpenedPeft
from adapter_probe.checkpoints.opening import open_any
from adapter_probe.checkpoints.peft_opening import open_with_peft
from adapter_probe.errors import AdapterProbeError

Row = dict[str, str]
IMAGES = ("vit", "dinov3", "diffusers", "blip-2", "whisper")
WITH_IMAGES = ("qwen3_vl", "qwen2_5_vl", "idefics3", "llava_mistral", "llava(pixtral)", "mllama", "gemma3")
TYPES = {
    "llava_mistral": "llava",
    "llava(pixtral)": "llava",
    "qwen2?": "qwen2",
    "llama (by repo name)": "llama",
}
MLX_TYPES = {"qwen2": "qwen2", "qwen3.5": "qwen3_5", "qwen3": "qwen3", "phi-3": "phi3", "gemma": "gemma4"}
SCALE = 5.0
NEEDS_CODE = ("chatglm", "internlm", "openelm")
# Rows that differ in other columns only (rank, alpha, size, version) are tried once.
DIFFERING = (
    "peft_type",
    "task_type",
    "model_type_inferred",
    "quantised",
    "target_modules",
    "notes",
    "reason",
)
# Where every fourth layer is of another kind, and where positions have sections that make half a head.
OF_TEXTS = {
    "qwen3_5": {"num_hidden_layers": 4, "layer_types": None},
    "qwen2_5_vl": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [1, 1, 2]}
    },
}
QUANTISED = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}  # for rows of 32 on a processor
MAPPINGS = {
    "SEQ_CLS": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    "QUESTION_ANS": modeling_auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    "SEQ_2_SEQ_LM": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    "images": modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    "CAUSAL_LM": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING,
}
LLAMA = {name: f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down", "out")}
NAMES = {
    "t5": {},
    "bart": {"q": "q_proj", "v": "v_proj"},
    "mbart": {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj", "dense": "fc1", "out": "fc2"},
}


def kind_of(row: Row) -> str:
    """What the base of a row is: text, text and images, neither, or unknown."""
    kind = row["model_type_inferred"]
    if row["format"] != "peft":
        return "MLX-LM"
    if kind.startswith("?"):
        return "unknown base"
    return "images or sound" if kind in IMAGES else "text and images" if kind in WITH_IMAGES else "text"


def class_for(row: Row, config: PretrainedConfig) -> type:
    """The class in which such a base is stored."""
    order = [row["task_type"]] if row["task_type"] in ("SEQ_CLS", "QUESTION_ANS", "SEQ_2_SEQ_LM") else []
    for name in (*order, "images", "CAUSAL_LM", "SEQ_2_SEQ_LM"):
        found = MAPPINGS[name].get(type(config), None)
        if found is not None:
            return found[0] if isinstance(found, tuple) else found
    raise LookupError(f"no class for {config.model_type}")


def write_row_base(row: Row, folder: Path) -> tuple[Path, type]:
    """A tiny base of the row's type, quantised if it is."""
    kind = TYPES.get(row["model_type_inferred"], row["model_type_inferred"])
    quantised = "bnb" in row["quantised"]
    settings: dict[str, object] = dict(QUANTISED) if quantised else {}
    if kind == "llava" or (kind in OF_TEXTS and not quantised):
        own = settings or OF_TEXTS.get(kind, {})
        settings = {"text_config": {**small_config(kind).text_config.to_dict(), **own}}
    cls = class_for(row, transformers.AutoConfig.for_model(kind))
    base = write_base(folder / "full", kind, cls, **settings)
    if not quantised:
        return base, cls
    four = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32
    )
    cls.from_pretrained(base, quantization_config=four).save_pretrained(folder / "base")
    for file in base.glob("*token*"):
        shutil.copy(file, folder / "base")
    return folder / "base", cls


def fields_of(row: Row) -> dict[str, object]:
    """The row's settings as those of a `LoraConfig`, with rank 2."""
    notes, kind = row["notes"], row["model_type_inferred"]
    names = NAMES.get(kind, LLAMA)
    given = [name for name in row["target_modules"].split(",") if name]
    targets: object = sorted({names.get(name, name).replace("*", "qkv") for name in given})
    if row["target_modules"] == "regex":
        targets = r".*(?:language_model).*(?:self_attn|mlp).*\.(?:q_proj|v_proj|down_proj)"
    elif row["target_modules"] in ("", "(absent)"):
        targets = None
    fields: dict[str, object] = {
        "r": 2,
        "lora_alpha": float(row["alpha"] or 16) * 2 / float(row["r"] or 8),
        "target_modules": targets,
        "use_dora": "use_dora" in notes,
        "use_rslora": "use_rslora" in notes,
        "rank_pattern": {"to_v": 2} if "rank_pattern" in notes else {},
        "exclude_modules": r".*vision.*" if "exclude_modules regex" in notes else None,
        "init_lora_weights": "gaussian" if "init=gaussian" in notes else True,
        "task_type": None if row["task_type"] in ("null", "(absent)") else row["task_type"],
    }
    saved = [part.removeprefix("modules_to_save=") for part in notes.split(";") if "modules_to_save" in part]
    heads = {"lm_head", "embed_tokens", "classifier", "score", "qa_outputs"}
    fields["modules_to_save"] = sorted(heads & set(saved[0].strip().split(","))) if saved else None
    return fields


def write_row_adapter(row: Row, base: Path, cls: type, folder: Path) -> None:
    """PEFT's checkpoint with the row's settings, and what other tools write into its configuration."""
    model = cls.from_pretrained(base)
    if row["peft_type"] == "PROMPT_TUNING":
        config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=30)
    else:
        config = LoraConfig(**fields_of(row))
    model = get_peft_model(model, config)
    randomise(model)
    model.save_pretrained(folder)
    document = json.loads((folder / "adapter_config.json").read_text())
    document["base_model_name_or_path"] = row["base"]
    if "auto_mapping" in row["notes"]:
        parts = {"base_model_class": cls.__name__, "parent_library": cls.__module__}
        document["auto_mapping"] = parts
    if "unsloth_fixed" in row["notes"]:
        document["unsloth_fixed"] = True
    if "revision=unsloth" in row["notes"]:
        document["revision"] = "unsloth"
    document["peft_version"] = row["peft_version"] or None
    if "hand-edited" in row["reason"]:
        document["trained_on"] = "a field of nobody"
    (folder / "adapter_config.json").write_text(json.dumps(document))


def mlx_type(row: Row) -> str:
    """The type of the base of an adapter of MLX-LM, by its name."""
    name = row["base"].lower()
    return next((kind for part, kind in MLX_TYPES.items() if part in name), "?")


def write_mlx_adapter(row: Row, base: Path, cls: type, folder: Path) -> None:
    """MLX-LM's checkpoint on the linear maps of the upper layers, after the source of its format."""
    model, made = cls.from_pretrained(base), {}
    n_layers = model.config.get_text_config().num_hidden_layers
    number = min(int(re.findall(r"\d+", row["target_modules"])[0]), n_layers - 1)
    for name, module in model.named_modules():
        found = re.search(r"(?<!vision_tower\.)(?:^|\.)layers\.(\d+)\.", name)
        text = not re.search("vision|visual|audio", name)
        if found and text and type(module) is torch.nn.Linear and int(found[1]) >= n_layers - number:
            theirs = name.replace("model.language_model.", "language_model.model.")
            outputs, inputs = module.weight.shape
            made[f"{theirs}.lora_a"] = 0.3 * torch.randn(inputs, 2)
            made[f"{theirs}.lora_b"] = 0.3 * torch.randn(2, outputs)
    folder.mkdir()
    save_file(made, folder / "adapters.safetensors")
    given = {"rank": 2, "dropout": 0.0, "scale": SCALE}
    about = {"model": row["base"], "fine_tune_type": "lora", "num_layers": number, "lora_parameters": given}
    (folder / "adapter_config.json").write_text(json.dumps(about))


def merged(base: Path, cls: type, folder: Path) -> torch.nn.Module:
    """The base with MLX-LM's change added to its weights."""
    model, tensors = cls.from_pretrained(base).eval(), load_file(folder / "adapters.safetensors")
    with torch.no_grad():
        for name in {name.rpartition(".")[0] for name in tensors}:
            own = name.replace("language_model.model.", "model.language_model.")
            a, b = tensors[f"{name}.lora_a"], tensors[f"{name}.lora_b"]
            model.get_submodule(own).weight += SCALE * (a @ b).T
    return model


def outcome(row: Row, place: Path) -> str:
    """``equal`` where the row opens with PEFT's logits, else why not."""
    if row["model_type_inferred"] in NEEDS_CODE:
        return "refused: its base needs Python code of its own"
    try:
        base, cls = write_row_base(row, place)
        write = write_row_adapter if row["format"] == "peft" else write_mlx_adapter
        write(row, base, cls, place / "adapter")
    except Exception as error:  # what the libraries cannot make here
        return f"not made here: {type(error).__name__} {' '.join(str(error).split())[:100]}"
    try:
        opened = open_any(place / "adapter", str(base))
        adapter = as_peft(place / "adapter", str(base))[0]
        if not isinstance(opened, OpenedPeft):
            opened = open_with_peft(adapter, str(base))
    except AdapterProbeError as error:
        return f"refused: {str(error).replace(str(place), '')[:140]}"
    theirs = (
        merged(base, cls, place / "adapter")
        if row["format"] != "peft"
        else PeftModel.from_pretrained(cls.from_pretrained(base), place / "adapter").eval()
    )
    inputs = {"input_ids": IDS[:1]}
    if opened.head == "seq2seq":
        inputs["decoder_input_ids"] = IDS[:1]
    with torch.no_grad():
        try:
            right = theirs(**inputs)
        except RuntimeError as error:  # the tiny base does not run in transformers either
            return f"opens, not compared: {' '.join(str(error).split())[:80]}"
        ours = opened.model(**inputs)
    name = "logits" if "logits" in right else "start_logits"
    off = float((ours[name].float() - right[name].float()).abs().max())
    return "equal" if off < 1e-4 else f"WRONG by {off:.1e}"


def main(path: Path, only: str) -> None:
    with path.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file, delimiter="\t") if only in row["repo"]]
    found: dict[str, Counter[str]] = {}
    tried: dict[tuple[str, ...], str] = {}
    for row in rows:
        kind, said, settings = kind_of(row), "not tried", tuple(row[name] for name in DIFFERING)
        if kind == "MLX-LM":
            row["model_type_inferred"] = mlx_type(row)
        if kind in ("text", "text and images", "MLX-LM"):
            if settings not in tried:
                with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    tried[settings] = outcome(row, Path(folder))
            said = tried[settings]
        if said not in ("equal", "not tried"):
            print(f"{row['repo']} ({row['model_type_inferred']}): {said}", flush=True)
        found.setdefault(kind, Counter())[said.partition(":")[0].partition(",")[0]] += 1
    for kind, counts in found.items():
        opened, total = counts["equal"], sum(counts.values())
        parts = ", ".join(f"{name} {n}" for name, n in counts.most_common())
        print(f"{kind}: {opened} of {total} open, {100 * opened / total:.1f} % ({parts})")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("configurations", type=Path)
    options.add_argument("--only", default="", help="rows whose repository contains this text")
    arguments = options.parse_args()
    main(arguments.configurations, arguments.only)
