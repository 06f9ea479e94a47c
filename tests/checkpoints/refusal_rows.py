"""What is wrong with a checkpoint or its base, and the facts that the refusal names.

A row is the checkpoint (`NATIVE`, or a folder of the fixtures), the file that is changed (those of the base
begin with ``base/``), the change, and the facts. A change is a mapping (of a JSON file: values by dotted
path, `LACKS` for none), text or bytes (the new content), a number (as many bytes stay), None (the file is
taken away), `PIPE`, or a function of the tensors.
"""

from __future__ import annotations

from collections.abc import Callable

import peft
import torch
import transformers
from changed_files import LACKS
from packaging.version import Version

NATIVE, PEFT, HUB, HOULSBY = "native", "peft/lora", "adapterhub/lora", "adapterhub/houlsby"
PIPE = object()
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 437955512\n"
NAN, INFINITE = float("nan"), float("inf")
LIBRARY = f"PEFT {peft.__version__}"
GOT_A_LIST = "got list" if Version(transformers.__version__) < Version("5.18") else "'list'"
Tensors = dict[str, torch.Tensor]


def spoilt(name: str, value: float) -> Callable[[Tensors], object]:
    """The last number of a tensor is another one."""
    return lambda tensors: tensors[name].view(-1)[-1:].fill_(value)


def lacking(name: str) -> Callable[[Tensors], object]:
    """A tensor is missing."""
    return lambda tensors: tensors.pop(name)


def other(name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Callable[[Tensors], object]:
    """A tensor is another one, or one more."""
    return lambda tensors: tensors.update({name: torch.zeros(shape, dtype=dtype)})


def cast(dtype: torch.dtype) -> Callable[[Tensors], object]:
    """All tensors have another type."""
    return lambda tensors: tensors.update({name: one.to(dtype) for name, one in tensors.items()})


ABOUT, DELTA = "adapter_probe.json", "delta.safetensors"
CONFIG, WEIGHTS, TOKENIZER = "base/config.json", "base/model.safetensors", "base/tokenizer.json"
SETTINGS = "base/tokenizer_config.json"
QUERY = "encoder.layer.1.attention.self.query.weight"
DENSE = "encoder.layer.1.output.dense.weight"
OF_NATIVE = [
    (ABOUT, {"schema": 1}, "schema 1", "schema 2"),
    (ABOUT, {"schema": 3}, "schema 3", "schema 2"),
    (ABOUT, {"schema": LACKS}, "schema", "2"),
    (ABOUT, {"max_length": LACKS}, "max_length"),
    (ABOUT, {"delta_sha256": LACKS}, "delta_sha256"),
    (ABOUT, {"method": LACKS}, "method"),
    (ABOUT, {"method.size": 0}, "size", "0", "from 1 to"),
    (ABOUT, {"method.colour": "red"}, "colour"),
    (ABOUT, {"method": "adapters"}, "method"),
    (ABOUT, {"base": LACKS}, "base"),
    (ABOUT, {"base.vocab_size": LACKS}, "vocab_size"),
    (ABOUT, {"base.colour": "red"}, "colour"),
    (ABOUT, {"base": "bert"}, "base"),
    (ABOUT, {"base.name": 5}, "base", "name"),
    (ABOUT, {"base.n_layers": "three"}, "n_layers", "three"),
    (ABOUT, {"task": LACKS}, "task"),
    (ABOUT, {"task.metric": "bleu"}, "bleu", "accuracy", "mcc"),
    (ABOUT, {"task.label_names": ["positive", "negative"]}, "label_names"),
    (ABOUT, {"method.activation": "relu"}, "method"),
    (ABOUT, {"max_length": "forty"}, "max_length", "forty"),
    (ABOUT, {"max_length": 0}, "max_length", "0"),
    (ABOUT, {"scores": [0.5]}, "scores"),
    (ABOUT, {"training": "long"}, "training", "long"),
    (ABOUT, {"colour": "red"}, "colour"),
    *((ABOUT, content) for content in (b"", b'{"schema": 1', b"[]", b"null", b"\xff\xfe\0", b"[" * 100_000)),
    (ABOUT, POINTER, "git lfs pull"),
    (ABOUT, PIPE),
    (DELTA, None),
    (DELTA, PIPE, "pipe"),
    (DELTA, POINTER, "git lfs pull"),
    (
        DELTA,
        spoilt("bert.encoder.layer.1.output.adapter.up.bias", NAN),
        "layer.1.output.adapter.up.bias",
        "NaN",
    ),
    (DELTA, spoilt("bert.embeddings.LayerNorm.weight", INFINITE), "bert.embeddings.LayerNorm.weight", "NaN"),
    (DELTA, spoilt("classifier.weight", -INFINITE), "classifier.weight", "NaN"),
    (DELTA, lacking("bert.encoder.layer.0.attention.output.adapter.down.weight"), "adapter.down.weight"),
    # Else the base's would silently stand in.
    (DELTA, lacking("bert.encoder.layer.2.output.LayerNorm.bias"), "layer.2.output.LayerNorm.bias"),
    (DELTA, lacking("bert.embeddings.LayerNorm.weight"), "bert.embeddings.LayerNorm.weight"),
    (DELTA, lacking("classifier.bias"), "classifier.bias"),
    (DELTA, other("extra", 2), "extra"),
    (DELTA, other("classifier.bias", 3), "classifier.bias", "[3]", "[2]"),
    *(
        (DELTA, other("classifier.bias", 2, dtype=dtype), "classifier.bias", str(dtype)[6:], "floating-point")
        for dtype in (torch.int32, torch.int64, torch.bool, torch.uint8, torch.complex64)
    ),
]
OF_BASES = [
    *((CONFIG, {"model_type": name}, name, "bert, roberta") for name in ("funnel", "t5", "no-such-family")),
    *((CONFIG, {"model_type": name}) for name in (["bert"], "../../etc/passwd", "x" * 5000)),
    (WEIGHTS, spoilt(QUERY, NAN), QUERY, "NaN"),
    (WEIGHTS, spoilt(QUERY, INFINITE), QUERY, "NaN"),
    (WEIGHTS, lacking(DENSE), DENSE),
    (WEIGHTS, other(DENSE, 32, 8), DENSE),
    *((WEIGHTS, kept) for kept in (0, 4, 1000, -1)),
    (CONFIG, None, "config.json"),
    (CONFIG, "{", "config.json", "JSON"),
    *((CONFIG, content, "config.json") for content in ("", "[]", "null", '"bert"', "3", "[" * 100_000)),
    (CONFIG, "{}"),
    (CONFIG, {"hidden_size": "wide"}, "hidden_size", "config.json", '"wide"', "at least 1"),
    (CONFIG, {"hidden_size": -4}, "hidden_size", "config.json", "-4"),
    (CONFIG, {"num_attention_heads": 5}, "weights", "hidden size (32)", "attention heads (5)"),
    *(
        (CONFIG, {name: value}, "config.json", f"{name}: ", str(value))
        for name, value in {
            "num_attention_heads": 2,
            "hidden_act": "relu",
            "layer_norm_eps": 1e-5,
            "position": "other",
        }.items()
    ),
    (CONFIG, {"num_attention_heads": 0}, "num_attention_heads", "config.json", "0"),
    (CONFIG, {"num_hidden_layers": -1}),
    (CONFIG, {"hidden_act": "no-such-function"}, "'no-such-function'"),
    *((CONFIG, {name: True}, "bert", "decoder") for name in ("is_decoder", "add_cross_attention")),
    (CONFIG, {"dtype": "nonsense"}, "dtype", "config.json", '"nonsense"'),
    (CONFIG, {"torch_dtype": 3}, "torch_dtype", "config.json", "3"),
    (CONFIG, {"layer_norm_eps": NAN}, "NaN", "infinite"),
    (CONFIG, {"layer_norm_eps": None}),
    (CONFIG, {"quantization_config": {"quant_method": "bitsandbytes"}}, "quantization_config", "--base"),
    (CONFIG, {"_attn_implementation": "flash_attention_2"}, "FlashAttention2"),
    (CONFIG, {"id2label": [1]}, "configuration", GOT_A_LIST),
    (TOKENIZER, "{", "tokenizer"),
    (TOKENIZER, {"post_processor.special_tokens": {}}, "[CLS]"),
    (TOKENIZER, {"model.vocab.cat": 95}),  # other words than in training
    (TOKENIZER, {"added_tokens.0.future_option": None}, '"future_option"', "effect is unknown"),
    (SETTINGS, {"added_tokens_decoder": {"5": {"content": "w1", "future_option": None}}}, '"future_option"'),
    *(
        (file, content, "tokenizer")
        for file in (TOKENIZER, SETTINGS)
        for content in ("null", "[]", "3", '"x"', '{"model": null}')
    ),
    *(
        (SETTINGS, {"model_max_length": value}, "model_max_length")
        for value in ([], {}, "512", True, 0, -1, 0.5, 40.5, NAN)
    ),
    *((file, POINTER, "git lfs pull") for file in (CONFIG, WEIGHTS, TOKENIZER)),
    *((file, PIPE, "pipe", "regular file") for file in (WEIGHTS, TOKENIZER, "base/chat_template.jinja")),
]
FILE = "adapter_config.json"
LAYER = "base_model.model.bert.encoder.layer.1"
VALUES = "attention.self.query", "attention.self.value"
OF_PEFT = [
    *((FILE, {"lora_alpha": value}, "lora_alpha") for value in (LACKS, [3])),
    (FILE, {"lora_alpha": NAN}, "lora_alpha", "NaN", "finite number"),
    (FILE, {"lora_alpha": INFINITE}, "lora_alpha", "Infinity", "finite number"),
    (FILE, {"lora_alpha": None}, "lacks", "lora_alpha"),
    (FILE, {"lora_alpha": True}, "lora_alpha", "true", "number"),
    (FILE, {"r": LACKS}, "lacks", "r"),
    (FILE, {"r": 0}, "LORA", "`r`", "positive integer"),
    (FILE, {"r": 7}, "query.lora_A.weight", "[2, 16]", "[7, 16]"),
    (FILE, {"r": "2"}),
    (FILE, {"rank_pattern": {"query": 4}}, "query.lora_A.weight", "[2, 16]", "[4, 16]"),
    (FILE, {"rank_pattern": [3]}, "rank_pattern", "[3]", "object"),
    (FILE, {"alpha_pattern": ["query"]}, "alpha_pattern", '["query"]', "object"),
    (FILE, {"alpha_pattern": {"query": NAN}}, "alpha_pattern", "NaN", "finite number"),
    (FILE, {"alpha_pattern": {"query": None}}),
    (FILE, {"alpha_pattern": {"(query": 9}}, '"(query"', "regular expression"),
    (FILE, {"task_type": ["SEQ_CLS"]}, '["SEQ_CLS"]', "SEQ_CLS, QUESTION_ANS, CAUSAL_LM"),
    (FILE, {"task_type": {}}),
    (FILE, {"task_type": "SEQ_2_SEQ_LM"}, "seq2seq", "bert"),
    (FILE, {"peft_type": ["LORA"]}, "peft_type", '["LORA"]', "string"),
    (FILE, {"peft_type": None}),
    (FILE, {"peft_type": "PREFIX_TUNING"}, '"PREFIX_TUNING"'),
    *((FILE, {"peft_type": name}, f'"{name}"') for name in ("XLORA", "HYPERLORA")),
    (FILE, {"use_rslora": "yes"}, "use_rslora", '"yes"'),
    (FILE, {"r": -1}, "PEFT"),
    (FILE, {"target_modules": ["nothing"]}, "PEFT"),
    (FILE, {"megatron_config": {"a": 1}}, "Megatron"),
    (FILE, {"alora_invocation_tokens": [1]}, "activated LoRA"),
    *((FILE, {"init_lora_weights": name}, f'"{name}"') for name in ("pissa_niter_4", "olora")),
    (FILE, {"new_way": "fast"}, '"new_way", "fast"', LIBRARY),
    (FILE, {"new_way": 0}, '"new_way", 0', LIBRARY),
    (FILE, {"target_modules": ["query"]}, "layer.0.attention.self.value.lora_A.weight", "5 more", LIBRARY),
    (FILE, {"layers_to_transform": [0, 1]}, "layer.2.attention.self.query.lora_A.weight", "3 more", LIBRARY),
    (FILE, {"exclude_modules": ["layer.0.attention.self.query"]}, "query.lora_A.weight", "1 more", LIBRARY),
    (FILE, {"target_modules": ["query", "value", "key"]}, "lacks", "key.lora_A.weight", "5 more", LIBRARY),
    (
        FILE,
        {"modules_to_save": ["classifier", "pooler"]},
        "lacks",
        "base_model.model.bert.pooler.dense.weight",
    ),
    (FILE, {"modules_to_save": ["\x1b[31mred", "score"]}),
    (FILE, {"lora_bias": True}, "lacks", "query.lora_B.bias", "5 more", LIBRARY),
    (FILE, {"use_dora": True}, "lacks", "base_model.model.bert.encoder.layer"),
    (FILE, {"init_lora_weights": "pissa"}, '"pissa"'),
    (FILE, {"layer_replication": [[0, 2]]}, "contains", LIBRARY),
    (FILE, {"bias": "some"}, "LORA", "bias", "some"),
    *((FILE, change) for change in ({"bias": []}, {"corda_config": False}, {"lora_ga_config": 2})),
    (FILE, {"eva_config": "x"}),
    *((name, POINTER, "git lfs pull") for name in (FILE, "adapter_model.safetensors")),
    ("adapter_model.safetensors", cast(torch.int32), "int32", "floating-point"),
    ("adapter_model.safetensors", lacking(f"{LAYER}.attention.self.query.lora_A.weight"), "lacks", LAYER),
    ("adapter_model.safetensors", other("base_model.model.extra.lora_A.weight", 2, 2), "contains", "extra"),
    ("adapter_model.safetensors", other(f"{LAYER}.output.LayerNorm.weight", 16), LAYER, "base"),
    ("adapter_model.safetensors", cast(torch.bool), "bool", "floating-point"),
    (
        "adapter_model.safetensors",
        lambda tensors: [tensor.fill_(NAN) for tensor in tensors.values()],
        *("adapter_model.safetensors", "NaN", "infinite"),
    ),
]
OF_HUB = [
    (FILE, {"config.alpha": None}, "alpha", "null", "number"),
    (FILE, {"config.alpha": NAN}, "alpha", "NaN", "number"),
    (FILE, {"config.r": 0}, "r", "0", "at least 1"),
    (FILE, {"config.r": None}),
    (FILE, {"config.r": 7}, "bert.encoder.layer.0.attention.self.query", "[2, 16]", "[16, 2]", "r 7"),
    (FILE, {"config.composition_mode": "future"}, "composition_mode", '"future"', "add", "scale"),
    (FILE, {"config.leave_out": [1]}, "lora", *VALUES, "layer 1", "configuration"),
    (FILE, {"config.selfattn_lora": False}, "lora", *VALUES, "layer 0", "configuration"),
    (FILE, {"config.attn_matrices": ["q"]}, "lora", *VALUES, "layer 0", "configuration"),
    (FILE, {"config.attn_matrices": ["w"]}, "attn_matrices", '"w"', "q", "k", "v"),
    (FILE, {"config.intermediate_lora": True}, "lora", *VALUES, "layer 0", "configuration"),
    (FILE, {"config.rank_free": True}, '"rank_free", true', "adapters 1.3"),
    (FILE, {"config.use_dora": True}, "DoRA"),
    (FILE, {"config.vera_d": 0.1}, "VeRA"),
    (FILE, {"config.use_gating": True}, "gated LoRA"),
]
BIN, HEAD = "pytorch_adapter.bin", "pytorch_model_head.bin"
OF_HOULSBY = [
    (FILE, {"config.leave_out": [1]}, "2 adapters", "layer 1", "attention", "configuration"),
    (FILE, {"config.output_adapter": False}, "3 adapters", "layer 0", "ffn", "configuration"),
    (FILE, {"config.reduction_factor": 2}, "layer 0", "attention", "size 4", "reduction_factor", "8"),
    (FILE, {"config.reduction_factor": 0}, "reduction_factor", "0", "1e-06"),
    (FILE, {"config.reduction_factor": {"0": 4}}, "layer 1", "attention", "size 4", "reduction_factor", "0"),
    (FILE, {"config.scaling": NAN}, "scaling", "NaN", "number"),
    (FILE, {"config.scaling": "sometimes"}, "sometimes"),
    (FILE, {"config.cross_adapter": True}, "cross_adapter"),
    (FILE, {"config.ln_before": "no"}, "ln_before", '"no"', "true", "false"),
    (FILE, {"config.leave_out": "1"}, "leave_out", '"1"', "list"),
    (FILE, {"config.leave_out": None}, "leave_out", "null", "list"),
    (FILE, {"config.swirl": 2}, '"swirl", 2', "adapters 1.3"),
    (FILE, {"config.phm_layer": True}, "compacter"),
    (FILE, {"config.inv_adapter": "nice"}, "invertible adapters"),
    (FILE, {"config.architecture": "prefix_tuning"}, "prefix tuning"),
    (FILE, {"config.architecture": "prompt_tuning"}, "prompt tuning"),
    (FILE, {"config.architecture": "reft"}, "ReFT"),
    (FILE, {"config.non_linearity": "sinc"}, "'sinc'"),
    ("adapter_fusion_config.json", "{}", "AdapterFusion"),
    (BIN, other("bert.encoder.layer.0.output.adapters.task.prompt", 2), "layer.0.output", "prompt"),
    (BIN, other("bert.invertible_adapters.task.F", 2), "invertible adapters"),
    (BIN, cast(torch.complex64), "complex64", "floating-point"),
    (BIN, cast(torch.uint8), "uint8", "floating-point"),
    (
        BIN,
        lambda tensors: [tensors.pop(name) for name in [*tensors] if "layer.1.attention" in name],
        *("lacks 1", "layer 1", "attention"),
    ),
    (HEAD, None, "prediction head"),
    (HEAD, lacking("classifier.bias"), "classifier.bias", "random"),
    ("head_config.json", {"label2id": {"a": 0, "b": 1}, "num_labels": 2}, "classifier.bias", "[3]"),
    ("head_config.json", {"model_class": "BertForTokenClassification"}, "*ForQuestionAnswering"),
    ("base/model.safetensors", lambda tensors: [tensors.pop(name) for name in [*tensors] if "pooler" in name],
     "bert.pooler.dense.bias", "1 more", "random"),
    *((name, POINTER, "git lfs pull") for name in (BIN, HEAD, FILE, "head_config.json")),
]  # fmt: skip
ROWS = [
    *((NATIVE, *row) for row in (*OF_NATIVE, *OF_BASES)),
    *((PEFT, *row) for row in OF_PEFT),
    ("peft/lora-patterns", FILE, {"lora_bias": False}, "contains", "key.lora_B.bias", "5 more", LIBRARY),
    ("peft/ia3", FILE, {"feedforward_modules": []}, "attention.output.dense.ia3_l", "[1, 16]", "[16, 1]"),
    *((HUB, *row) for row in OF_HUB),
    *((HOULSBY, *row) for row in OF_HOULSBY),
    ("adapterhub/pfeiffer", "adapter.safetensors", POINTER, "git lfs pull"),
    ("adapterhub/union", FILE, {"mixture": "yes"}, '"mixture", "yes"'),
    ("adapterhub/union", FILE, {"config.weights": [1, 2]}, '"weights"'),
    ("adapterhub/union", FILE, {"config.configs": {}}, "configs", "{}", "list"),
    *(
        ("adapterhub/union", FILE, {"config.architecture": one}, "several", "architecture")
        for one in ("lora_only", None, ["union"])
    ),
]
