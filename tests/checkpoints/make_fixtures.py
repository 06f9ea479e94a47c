"""Make the foreign checkpoints that the tests open, with the logits that their own library computes.

Run by hand, in an environment of its own, never by the tests:

    python -m venv env
    env/bin/pip install "adapters==1.3.*" "transformers==4.57.*" torch==2.13.0 peft
    env/bin/python tests/checkpoints/make_fixtures.py adapterhub peft causal llama-{lora,houlsby,flex} \
        mistral-{lora,houlsby,flex}
    python -m venv old
    old/bin/pip install adapters==1.0.1 torch==2.13.0
    old/bin/python tests/checkpoints/make_fixtures.py adapterhub-1.0 causal gpt2-{lora,pfeiffer,flex}

With ``--logits`` the checkpoints stay as they are, and only the logits are computed again.

Each case is a folder that the library wrote, on a tiny random base in ``fixtures/bases``, and an
``expected.npz`` in it: ``skipped`` bool ``[runs, layers]`` and ``logits`` float64
``[runs, examples, labels]``, the first run intact. Weights are float32, arithmetic is float64, see
``tests/fixtures/exact.py``. Every example runs alone, so that no padding plays a part.
"""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["PYTORCH_JIT"] = "0"  # compiled functions, such as DeBERTa's, would stay in float32

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fixtures"))
from exact import Float64, to_float64

logging.disable(logging.WARNING)

FIXTURES = Path(__file__).resolve().parent / "fixtures"
LAYERS, HIDDEN, WORDS = 3, 16, 48
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
TEXTS = "texts.json"
ONLY_LOGITS = "--logits" in sys.argv
LABELS = ("bad", "fair", "good")
EVERYWHERE = {"intermediate_lora": True, "output_lora": True, "attn_matrices": ["q", "k", "v"]}

_BERT = {
    "intermediate_size": 24,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "hidden_size": HIDDEN,
}
FAMILIES = {
    "bert": _BERT,
    "roberta": _BERT,
    "electra": {**_BERT, "embedding_size": 8},
    "mpnet": _BERT,
    "deberta": {
        **_BERT,
        "relative_attention": True,
        "pos_att_type": ["c2p", "p2c"],
        "max_relative_positions": 24,
    },
    "deberta-v2": {
        **_BERT,
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 4,
    },
    "albert": {**_BERT, "embedding_size": 8, "num_hidden_groups": LAYERS},
    "distilbert": {"hidden_dim": 24, "n_layers": LAYERS, "n_heads": 2, "dim": HIDDEN},
    "gpt2": {"n_inner": 24, "n_layer": LAYERS, "n_head": 2, "n_embd": HIDDEN},
    "llama": {**_BERT, "num_key_value_heads": 1},
    "mistral": {**_BERT, "num_key_value_heads": 1, "sliding_window": 4},
    "qwen2": {**_BERT, "num_key_value_heads": 1},
}


def spans() -> list[tuple[int, int]]:
    """Every contiguous span of layers: six of three."""
    return [(first, last) for first in range(LAYERS) for last in range(first, LAYERS)]


def make_texts() -> list[list[int]]:
    """Token ids of five examples."""
    path = FIXTURES / TEXTS
    if not path.exists():
        draw = random.Random(0)
        texts = [[2, *(draw.randrange(5, 5 + WORDS) for _ in range(n)), 3] for n in (1, 4, 4, 7, 9)]
        path.write_text(json.dumps(texts) + "\n")
    return json.loads(path.read_text())


def base(family: str) -> Path:
    """The folder of a family's random base: an encoder with its pooler, and a tokenizer; no head."""
    from transformers import AutoConfig, AutoModel

    folder = FIXTURES / "bases" / family
    if folder.exists():
        return folder
    config = AutoConfig.for_model(
        family,
        vocab_size=len(SPECIAL) + WORDS,
        max_position_embeddings=24,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=3,
        **FAMILIES[family],
    )
    model = AutoModel.from_config(config)
    randomise(model, 0)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def save_tokenizer(folder: Path) -> None:
    """A tokenizer of whole words w0, w1, ..."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *(f"w{n}" for n in range(WORDS))])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        model_max_length=24,
        model_input_names=["input_ids", "attention_mask"],
        **names,
    )
    tokenizer.save_pretrained(folder)


@torch.no_grad()
def randomise(module: torch.nn.Module, seed: int, only: str = "") -> None:
    """Every parameter with `only` in its name so far from its start that leaving it out shows."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        if only not in name:
            continue
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() > 1:
            parameter.copy_(noise * 1.2 / parameter.shape[-1] ** 0.5)
        else:
            around_one = "norm" in name.lower() or "ln_" in name or "scaling" in name
            parameter.copy_(noise * 0.3 + float(around_one and name.endswith(("weight", "scaling"))))


@torch.no_grad()
def logits(model: torch.nn.Module) -> np.ndarray:
    """Float64 ``[examples, labels]``, or start and end of every token ``[tokens, 2]``, in order."""
    to_float64(model).eval()
    with Float64():
        outputs = [model(input_ids=torch.tensor([ids])) for ids in make_texts()]
    if hasattr(outputs[0], "start_logits"):
        return np.concatenate(
            [torch.stack([o.start_logits[0], o.end_logits[0]], -1).numpy() for o in outputs]
        )
    return np.stack([o.logits[0].numpy() for o in outputs])


def begin(folder: Path) -> None:
    """An empty folder, unless its checkpoint stays."""
    if not ONLY_LOGITS:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)


def take_weights(model: torch.nn.Module, folder: Path) -> None:
    """Put the weights of a checkpoint of `adapters` into the model that it was made of."""
    from safetensors.torch import load_file

    for path in sorted([*folder.glob("*.bin"), *folder.glob("*.safetensors")]):
        safe = path.suffix == ".safetensors"
        tensors = load_file(path) if safe else torch.load(path, weights_only=True)
        assert tensors
        assert not model.load_state_dict(tensors, strict=False).unexpected_keys, path


def write_expected(folder: Path, run: Callable[[list[int]], np.ndarray]) -> None:
    """``run(skipped layers)`` intact and for every span, into ``expected.npz``."""
    masks = np.zeros((1 + len(spans()), LAYERS), dtype=bool)
    for row, (first, last) in enumerate(spans(), start=1):
        masks[row, first : last + 1] = True
    outputs = np.stack([run(np.flatnonzero(mask).tolist()) for mask in masks])
    moved = np.abs(outputs[0] - outputs[1:]).max(axis=(1, 2))  # nothing where a layer holds no adapter
    assert np.median(moved) > 1e-2, f"{folder.name}: skipping hardly shows, {moved}"
    assert outputs.dtype == np.float64
    np.savez_compressed(folder / "expected.npz", skipped=masks, logits=outputs)


def adapterhub_cases() -> dict[str, tuple]:
    """By folder: family, adapter configuration, head (static, or what a flexible head is made of), format."""
    from adapters import (
        AdapterPlusConfig,
        ConfigUnion,
        DoubleSeqBnConfig,
        IA3Config,
        LoRAConfig,
        ParBnConfig,
        SeqBnConfig,
    )

    flex = {"layers": 2, "activation_function": "tanh"}
    return {
        "houlsby": ("bert", DoubleSeqBnConfig(reduction_factor=4), None, "bin"),
        "pfeiffer": ("bert", SeqBnConfig(reduction_factor=4), None, "safetensors"),
        "parallel": ("bert", ParBnConfig(reduction_factor=2), None, "bin"),
        "parallel-learned": (
            "bert",
            ParBnConfig(reduction_factor=4, scaling="learned", mh_adapter=True, ln_after=True),
            None,
            "bin",
        ),
        "gated-channel": (
            "bert",
            DoubleSeqBnConfig(
                reduction_factor=4, scaling="channel", use_gating=True, non_linearity="leakyrelu"
            ),
            None,
            "bin",
        ),
        "norms-per-layer": (
            "bert",
            DoubleSeqBnConfig(
                reduction_factor={"0": 8, "default": 4},
                ln_before=True,
                ln_after=True,
                adapter_residual_before_ln=True,
                non_linearity="gelu_new",
                scaling=2.0,
            ),
            None,
            "bin",
        ),
        "left-out": (
            "bert",
            SeqBnConfig(reduction_factor=4, mh_adapter=True, leave_out=[1], residual_before_ln="post_add"),
            None,
            "bin",
        ),
        "adapter-plus": ("bert", AdapterPlusConfig(reduction_factor=4, stochastic_depth=0.0), None, "bin"),
        "lora": ("bert", LoRAConfig(r=2, alpha=6), None, "bin"),
        "lora-everywhere": ("bert", LoRAConfig(r=2, alpha=3, **EVERYWHERE), None, "safetensors"),
        "ia3": ("bert", IA3Config(output_lora=True), None, "bin"),
        "union": ("bert", ConfigUnion(LoRAConfig(r=2), ParBnConfig(reduction_factor=4)), None, "bin"),
        "flex-pooled": ("bert", SeqBnConfig(reduction_factor=4), {**flex, "use_pooler": True}, "bin"),
        "flex-first": ("bert", SeqBnConfig(reduction_factor=4), {"layers": 1, "use_pooler": False}, "bin"),
        "roberta-static": ("roberta", SeqBnConfig(reduction_factor=4), None, "bin"),
        "roberta-flex": ("roberta", DoubleSeqBnConfig(reduction_factor=4), flex, "safetensors"),
        "distilbert-static": ("distilbert", DoubleSeqBnConfig(reduction_factor=4), None, "bin"),
        "distilbert-flex": ("distilbert", LoRAConfig(r=2), flex, "bin"),
        "gpt2-pfeiffer": ("gpt2", SeqBnConfig(reduction_factor=4), None, "bin"),
        "gpt2-parallel": ("gpt2", ParBnConfig(reduction_factor=4, mh_adapter=True), None, "bin"),
        "gpt2-lora": ("gpt2", LoRAConfig(r=2, alpha=3, **EVERYWHERE), None, "bin"),
        "gpt2-ia3": ("gpt2", IA3Config(), None, "bin"),
        "qa-static": ("bert", DoubleSeqBnConfig(reduction_factor=4), "qa", "bin"),
        "qa-flex": ("roberta", SeqBnConfig(reduction_factor=4), "flex-qa", "bin"),
        "regression": ("bert", ParBnConfig(reduction_factor=4), "regression", "bin"),
        "electra-flex": ("electra", SeqBnConfig(reduction_factor=4, mh_adapter=True), flex, "bin"),
        "deberta-lora": ("deberta-v2", LoRAConfig(r=2, **EVERYWHERE), None, "bin"),
        "deberta-flex": ("deberta-v2", DoubleSeqBnConfig(reduction_factor=4), flex, "bin"),
        "albert-pfeiffer": ("albert", SeqBnConfig(reduction_factor=4), None, "bin"),
        "llama-houlsby": ("llama", DoubleSeqBnConfig(reduction_factor=4), None, "bin"),
        "llama-lora": ("llama", LoRAConfig(r=2, **EVERYWHERE), None, "bin"),
    }


def adapterhub_1_0_cases() -> dict[str, tuple]:
    """As `adapterhub_cases`, for a version that lost LoRA's scaling where it wrapped a linear map."""
    from adapters import IA3Config, LoRAConfig

    return {
        "1.0-lora": ("bert", LoRAConfig(r=2, alpha=6), None, "bin"),
        "1.0-ia3": ("bert", IA3Config(alpha=2), None, "bin"),
        "1.0-gpt2-lora": ("gpt2", LoRAConfig(r=2, alpha=6, **EVERYWHERE), None, "bin"),
        "1.0-gpt2-ia3": ("gpt2", IA3Config(alpha=2), None, "bin"),
        "1.0-deberta-lora": ("deberta", LoRAConfig(r=2, alpha=6, **EVERYWHERE), None, "bin"),
    }


def make_adapterhub(only: list[str], cases: dict[str, tuple] | None = None) -> None:
    """Checkpoints of the `adapters` library."""
    import adapters
    from adapters import AutoAdapterModel
    from transformers import AutoModelForQuestionAnswering, AutoModelForSequenceClassification

    for case, (family, config, head, kind) in (cases or adapterhub_cases()).items():
        folder = FIXTURES / "adapterhub" / case
        if only and case not in only:
            continue
        begin(folder)
        torch.manual_seed(0)
        names = {"id2label": dict(enumerate(LABELS)), "label2id": {n: i for i, n in enumerate(LABELS)}}
        static = head in (None, "qa", "regression")
        if static:
            cls = AutoModelForQuestionAnswering if head == "qa" else AutoModelForSequenceClassification
            labels = {None: names, "qa": {}, "regression": {"num_labels": 1}}[head]
            model = cls.from_pretrained(base(family), **labels)
            adapters.init(model)
        elif head == "flex-qa":
            model = AutoAdapterModel.from_pretrained(base(family))
            model.add_qa_head("task")
        else:
            model = AutoAdapterModel.from_pretrained(base(family))
            model.add_classification_head("task", num_labels=3, id2label=names["id2label"], **head)
        for name, parameter in model.named_parameters():
            if name.endswith("in_proj.bias"):  # DeBERTa has none: the library makes one up and never saves it
                torch.nn.init.zeros_(parameter)
        model.add_adapter("task", config=config)
        randomise(model, 1, only="task")
        for number, part in enumerate(
            ("classifier", "score", "qa_outputs", "pre_classifier", "pooler"), start=2
        ):
            if static and hasattr(model, part):
                randomise(getattr(model, part), number)

        def run(skipped: list[int], model=model) -> np.ndarray:
            model.set_active_adapters("task", skip_layers=skipped or None)
            return logits(model)

        safe = kind == "safetensors"
        # The base is named as a model on a hub: folders of this machine mean nothing elsewhere.
        model.name_or_path = model.config._name_or_path = f"tiny-random/{family}"
        if ONLY_LOGITS:
            take_weights(model, folder)
        else:
            model.save_adapter(folder, "task", use_safetensors=safe)
            if static:
                model.save_head(folder, use_safetensors=safe)
        write_expected(folder, run)
        print(case, sorted(path.name for path in folder.iterdir()))


def make_causal(only: list[str]) -> None:
    """The same on causal language models: ``logits.npz`` ``[tokens, vocabulary]``."""
    import adapters
    from adapters import AutoAdapterModel, DoubleSeqBnConfig, LoRAConfig, SeqBnConfig
    from adapters.heads import CausalLMHead
    from transformers import AutoModelForCausalLM

    cases = {
        "gpt2-lora": ("gpt2", LoRAConfig(r=2, alpha=6), False),
        "gpt2-pfeiffer": ("gpt2", SeqBnConfig(reduction_factor=4), False),
        "gpt2-flex": ("gpt2", SeqBnConfig(reduction_factor=4), True),
    }
    for family in ("llama", "mistral"):  # whose output embeddings are not tied, so that the heads hold them
        cases[f"{family}-lora"] = (family, LoRAConfig(r=2, alpha=6, **EVERYWHERE), False)
        cases[f"{family}-houlsby"] = (family, DoubleSeqBnConfig(reduction_factor=4), False)
        cases[f"{family}-flex"] = (family, SeqBnConfig(reduction_factor=4), True)
    for case, (family, config, flexible) in cases.items():
        folder = FIXTURES / "causal" / case
        if only and case not in only:
            continue
        begin(folder)
        torch.manual_seed(0)
        if flexible:
            model = AutoAdapterModel.from_pretrained(base(family))
            model.add_prediction_head(CausalLMHead(model, "task"))
        else:
            model = AutoModelForCausalLM.from_pretrained(base(family))
            adapters.init(model)
        model.add_adapter("task", config=config)
        randomise(model, 1, only="loras.task" if case.endswith("-lora") else "adapters.task")
        if flexible:
            model.active_head = "task"  # which the library ties to the input embedding
        model.set_active_adapters("task")
        model.name_or_path = model.config._name_or_path = f"tiny-random/{family}"
        if ONLY_LOGITS:
            take_weights(model, folder)
        else:
            model.save_adapter(folder, "task")
            if flexible:
                model.save_head(folder, "task")
        np.savez_compressed(folder / "logits.npz", logits=np.concatenate(causal_logits(model)))
        print(case, sorted(path.name for path in folder.iterdir()))


@torch.no_grad()
def causal_logits(model: torch.nn.Module) -> list[np.ndarray]:
    """``[tokens, vocabulary]`` of every example, in float64."""
    to_float64(model).eval()
    with Float64():
        return [model(input_ids=torch.tensor([ids])).logits[0].numpy() for ids in make_texts()]


def peft_cases() -> dict[str, tuple]:
    """By folder: family, configuration."""
    from peft import IA3Config, LNTuningConfig, LoraConfig

    lora = {"task_type": "SEQ_CLS", "r": 2, "lora_alpha": 5}
    patterns = {"rank_pattern": {"layer.0.*query": 3}, "alpha_pattern": {"value": 7, "^bert.*key": 2}}
    feed = {"target_modules": ["key", "value", "output.dense"], "feedforward_modules": ["output.dense"]}
    return {
        "lora": ("bert", LoraConfig(**lora)),
        "lora-everywhere": ("bert", LoraConfig(target_modules="all-linear", bias="all", **lora)),
        "lora-patterns": (
            "bert",
            LoraConfig(
                target_modules=["query", "key", "value"],
                use_rslora=True,
                layers_to_transform=[0, 2],
                bias="lora_only",
                lora_bias=True,
                **patterns,
                **lora,
            ),
        ),
        "roberta-lora": ("roberta", LoraConfig(target_modules=["query", "dense"], **lora)),
        "distilbert-lora": (
            "distilbert",
            LoraConfig(target_modules=["q_lin", "lin2"], modules_to_save=["pre_classifier"], **lora),
        ),
        "gpt2-lora": ("gpt2", LoraConfig(target_modules=["c_attn", "c_proj"], fan_in_fan_out=True, **lora)),
        "llama-lora": ("llama", LoraConfig(target_modules="all-linear", **lora)),
        "qa": (
            "bert",
            LoraConfig(task_type="QUESTION_ANS", r=2, lora_alpha=2, target_modules=["query", "dense"]),
        ),
        "electra-lora": ("electra", LoraConfig(target_modules=["query", "dense"], **lora)),
        "mpnet-lora": (
            "mpnet",
            LoraConfig(target_modules=["attn.q", "attn.o", "intermediate.dense"], **lora),
        ),
        "deberta-lora": (
            "deberta-v2",
            LoraConfig(target_modules=["query_proj", "key_proj"], modules_to_save=["pooler"], **lora),
        ),
        "albert-lora": ("albert", LoraConfig(target_modules=["query", "ffn"], **lora)),
        "qwen2-lora": ("qwen2", LoraConfig(target_modules="all-linear", **lora)),
        "ia3": ("bert", IA3Config(task_type="SEQ_CLS", **feed)),
        "gpt2-ia3": (
            "gpt2",
            IA3Config(
                task_type="SEQ_CLS",
                target_modules=["c_attn", "mlp.c_proj"],
                feedforward_modules=["mlp.c_proj"],
                fan_in_fan_out=True,
            ),
        ),
        "norms": ("bert", LNTuningConfig(task_type="SEQ_CLS", target_modules=["LayerNorm"])),
        "llama-norms": (
            "llama",
            LNTuningConfig(
                task_type="SEQ_CLS", target_modules=["input_layernorm", "post_attention_layernorm", "norm"]
            ),
        ),
    }


def make_peft(only: list[str]) -> None:
    """Checkpoints of PEFT."""
    from peft import get_peft_model, set_peft_model_state_dict
    from safetensors.torch import load_file
    from transformers import AutoModelForQuestionAnswering, AutoModelForSequenceClassification

    for case, (family, config) in peft_cases().items():
        if only and case not in only:
            continue
        folder = FIXTURES / "peft" / case
        begin(folder)
        torch.manual_seed(0)
        asks = config.task_type == "QUESTION_ANS"
        cls = AutoModelForQuestionAnswering if asks else AutoModelForSequenceClassification
        model = cls.from_pretrained(base(family), num_labels=2 if asks else len(LABELS))
        model.name_or_path = model.config._name_or_path = f"tiny-random/{family}"
        model = get_peft_model(model, config)
        for number, part in enumerate(("lora_", "ia3_l", "ln_tuning_layers", "modules_to_save")):
            randomise(model, 1 + number, only=part)
        if config.peft_type == "IA3":
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if "ia3_l" in name:
                        parameter.mul_(0.3).add_(1)
        if getattr(config, "bias", "none") != "none":
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if name.endswith("bias") and parameter.requires_grad:
                        parameter.add_(0.2)
        if ONLY_LOGITS:
            set_peft_model_state_dict(model, load_file(folder / "adapter_model.safetensors"))
        else:
            model.save_pretrained(folder)
            (folder / "README.md").unlink(missing_ok=True)
        write_expected(folder, lambda skipped, model=model: peft_run(model, skipped))
        print(case, sorted(path.name for path in folder.iterdir()))


def peft_run(model: torch.nn.Module, skipped: list[int]) -> np.ndarray:
    """Logits with what PEFT holds in some layers switched off by its own means."""
    import re

    from peft.tuners.tuners_utils import BaseTunerLayer

    changed = []
    for name, module in model.named_modules():
        number = re.search(r"\.(?:layer|layers|h|albert_layer_groups)\.(\d+)\.", name)
        if not isinstance(module, BaseTunerLayer) or number is None or int(number[1]) not in skipped:
            continue
        if hasattr(module, "lora_A"):
            changed.append((module.scaling, "default", module.scaling["default"]))
            module.scaling["default"] = 0.0
        else:
            changed.append((module.__dict__, "_disable_adapters", False))
            module._disable_adapters = True
    outputs = logits(model)
    for owner, key, value in changed:
        owner[key] = value
    return outputs


def main() -> None:
    """Make what is asked for: kinds such as ``peft``, and after that names of single cases."""
    makers = {
        "adapterhub": make_adapterhub,
        "adapterhub-1.0": lambda only: make_adapterhub(only, adapterhub_1_0_cases()),
        "causal": make_causal,
        "peft": make_peft,
    }
    only = [name for name in sys.argv[1:] if name not in makers and name != "--logits"]
    for kind in (name for name in sys.argv[1:] if name in makers):
        makers[kind](only)


if __name__ == "__main__":
    main()
