"""Every field of a base's config.json: obeyed as Transformers does, without effect, named, or refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from changed_files import edit
from mask_loop import over_variants
from packaging.version import Version
from peft import PeftModel
from peft_cases import small_config
from peft_folders import KV, saved
from refusals import names, refuses
from transformers import CONFIG_MAPPING, AutoModelForSequenceClassification, AutoTokenizer

import adapter_probe as ap
from adapter_probe.checkpoints.base_config import note_on_unread
from adapter_probe.checkpoints.identity import config_settings
from adapter_probe.checkpoints.model_class import config_for, without_weights

PLAIN = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4}
FAMILIES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "bert": ({**PLAIN, "max_position_embeddings": 64}, ["query"]),
    "llama": (KV, ["q_proj", "down_proj"]),
    "mistral": (KV, ["q_proj"]),
    "qwen2": (KV, ["q_proj"]),
    "gemma2": ({**KV, "head_dim": 6}, ["q_proj"]),
    "gpt2": ({"n_embd": 24, "n_layer": 3, "n_head": 4, "n_positions": 64}, ["c_attn"]),
}
ROWS = [{"text": text, "label": n % 3} for n, text in enumerate(("ab c ab a", "c a b b", "b", "a b c c b a"))]
LINEAR = {"rope_type": "linear", "factor": 3.0, "rope_theta": 10000.0}
# (family, field, value): outputs are those of Transformers and PEFT, and not those without the field.
OBEYED: list[tuple[str, str, Any]] = [
    ("bert", "is_decoder", True), ("bert", "hidden_act", "relu"), ("bert", "layer_norm_eps", 0.1),
    ("llama", "rope_parameters", LINEAR), ("llama", "rope_scaling", {"type": "linear", "factor": 3.0}),
    ("llama", "rms_norm_eps", 0.1), ("llama", "hidden_act", "relu"), ("mistral", "sliding_window", 2),
    ("gemma2", "sliding_window", 2), ("gemma2", "attn_logit_softcapping", 0.01),
    ("gemma2", "query_pre_attn_scalar", 1), ("gemma2", "hidden_activation", "relu"),
    ("gpt2", "scale_attn_by_inverse_layer_idx", True), ("gpt2", "scale_attn_weights", False),
    ("gpt2", "activation_function", "relu"), ("gpt2", "layer_norm_epsilon", 0.1),
]  # fmt: skip
# ... and those without the field: memory, the form of outputs, training, names, writing.
WITHOUT_EFFECT: list[tuple[str, str, Any]] = [
    ("bert", "chunk_size_feed_forward", 1), ("bert", "return_dict", False),
    ("bert", "output_hidden_states", True), ("bert", "output_attentions", True),
    ("bert", "use_cache", False), ("bert", "tie_word_embeddings", False), ("bert", "torchscript", True),
    ("bert", "torch_dtype", "float16"), ("bert", "classifier_dropout", 0.5),
    ("bert", "hidden_dropout_prob", 0.5), ("bert", "gradient_checkpointing", True),
    ("bert", "num_labels", 5), ("bert", "id2label", {"0": "x", "1": "y"}),
    ("bert", "problem_type", "single_label_classification"),
    ("bert", "position_embedding_type", "absolute"), ("bert", "task_specific_params", {"a": {"top_k": 1}}),
    ("bert", "attn_implementation", "eager"), ("llama", "repetition_penalty", 5.0),
    ("llama", "pretraining_tp", 2), ("llama", "attention_dropout", 0.5), ("gpt2", "n_ctx", 4),
    ("gpt2", "summary_type", "mean"), ("gpt2", "reorder_and_upcast_attn", True),
]  # fmt: skip
# What Transformers 5 passes over, or does otherwise: words of a note.
NAMED: list[tuple[str, str, Any, tuple[str, ...]]] = [
    ("bert", "position_embedding_type", "relative_key_query", ("position_embedding_type", "does not read")),
    ("bert", "pruned_heads", {"0": [1]}, ("pruned_heads", "does not read")),
    ("bert", "auto_map", {"AutoModel": "own.Model"}, ("auto_map", "never run")),
    ("llama", "sliding_window", 2, ("sliding_window: 2", "does not read")),
    ("llama", "use_bidirectional_attention", True, ("use_bidirectional_attention", "does not read")),
    ("llama", "logit_scale", 2.0, ("logit_scale", "does not read")),
]
REFUSED: list[tuple[str, str, Any, tuple[str, ...]]] = [
    ("bert", "problem_type", "multi_label_classification", ("label", "a list of labels")),
    ("bert", "problem_type", "regression", ("3", "problem_type regression", "batches=")),
    ("llama", "quantization_config", {"quant_method": "own"}, ('"own"', "quantization_config", "base=")),
    ("llama", "quantization_config", {"bits": 4}, ("quant_method", "base=")),
    ("llama", "quantization_config", {"quant_method": None}, ("quant_method", "null", "base=")),
    ("llama", "quantization_config", {"quant_method": ["own"]}, ("quant_method", '["own"]', "base=")),
    ("llama", "attention_bias", True, ("k_proj.bias", "random")),
    ("llama", "num_hidden_layers", 2, ("layers.2", "base")),
    ("llama", "dtype", "float17", ("dtype", "float17")),
    ("llama", "model_type", "own", ("model_type", '"own"')),
    ("gpt2", "add_cross_attention", True, ("crossattention", "base")),
]

# Fields of these families that the tables above have under a like name, and why the others need no row.
LIKE = """rms_norm_eps layer_norm_eps rope_parameters num_hidden_layers mlp_bias attention_bias layer_types
dtype"""
TOKENS = """vocab_size pad_token_id bos_token_id eos_token_id max_position_embeddings n_positions
type_vocab_size"""
SIZES = """hidden_size num_attention_heads num_key_value_heads head_dim intermediate_size n_embd n_head
n_layer n_inner"""
OF_TRAINING = """attention_probs_dropout_prob initializer_range resid_pdrop embd_pdrop attn_pdrop
summary_first_dropout"""
OTHER_HEADS = "summary_use_proj summary_activation summary_proj_to_labels final_logit_softcapping"
OF_LIBRARY = """transformers_version architectures is_encoder_decoder label2id use_sliding_window
max_window_layers"""


@pytest.mark.skipif(Version(transformers.__version__) >= Version("5.25"), reason="fields of a newer version")
def test_every_field_has_a_verdict():
    known = {field for _, field, *_ in (*OBEYED, *WITHOUT_EFFECT, *NAMED, *REFUSED)}
    for table in (LIKE, TOKENS, SIZES, OF_TRAINING, OTHER_HEADS, OF_LIBRARY):
        known |= set(table.split())
    for family in FAMILIES:
        there = {name for name in vars(CONFIG_MAPPING[family]()) if not name.startswith("_")}
        assert there <= known, family


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of every family a LoRA with a head of three outputs, and its base."""
    place = tmp_path_factory.mktemp("families")
    for family, (settings, targets) in FAMILIES.items():
        saved(place / family, family, {**settings, "num_labels": 3}, "SEQ_CLS", targets, noise=0.1)
    return place


@pytest.fixture(scope="module")
def plain(made: Path) -> dict[str, np.ndarray]:
    """The logits of every family without a changed field."""
    return {family: logits(own(made / family / "lora"), made / family / "base") for family in FAMILIES}


def changed(made: Path, folder: Path, family: str, field: str, value: object) -> Path:
    place = Path(shutil.copytree(made / family, folder / family))
    edit(place / "base" / "config.json", **{field: value})
    edit(place / "lora" / "adapter_config.json", base_model_name_or_path=str(place / "base"))
    return place / "lora"


def own(checkpoint: Path) -> torch.nn.Module:
    base = checkpoint.parent / "base"
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=3, dtype=torch.float32)
    return PeftModel.from_pretrained(model, checkpoint).eval()


def logits(model: torch.nn.Module, base: Path) -> np.ndarray:
    """``[rows, labels]``, a text at a time."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    with torch.no_grad():
        each = [model(**tokenizer(row["text"], return_tensors="pt"), return_dict=True) for row in ROWS]
    return np.concatenate([one.logits.numpy() for one in each])


def study_of(checkpoint: Path) -> ap.Ablation:
    return ap.ablate(checkpoint, base=checkpoint.parent / "base", data=ROWS, device="cpu", progress=False)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "field", "value"), [*OBEYED, *WITHOUT_EFFECT])
def test_a_field_is_obeyed_as_transformers_does(family, field, value, made, plain, tmp_path):
    if field == "attn_logit_softcapping" and Version(transformers.__version__) < Version("5.20"):
        pytest.skip("an older version caps in eager attention alone")
    checkpoint = changed(made, tmp_path, family, field, value)
    study, model = study_of(checkpoint), own(checkpoint)
    wanted = over_variants(model, study, lambda: logits(model, checkpoint.parent / "base"))
    np.testing.assert_allclose(study.results.outputs, wanted, atol=2e-5)
    moved = np.abs(study.results.outputs[0] - plain[family]).max()
    assert (moved > 1e-3) == ((family, field, value) in OBEYED), moved
    assert not any(field in note for note in ap.inspect(checkpoint)["notes"])


@pytest.mark.parametrize(("family", "field", "value", "words"), NAMED)
def test_a_field_that_transformers_passes_over_is_named(family, field, value, words, made, tmp_path):
    checkpoint = changed(made, tmp_path, family, field, value)
    assert any(names(note, *words) for note in ap.inspect(checkpoint)["notes"])


@pytest.mark.parametrize("cls", ["Gemma3ForConditionalGeneration", "Gemma3ForCausalLM"])
def test_fields_of_a_part_are_named_and_no_field_that_is_read(cls):
    config, cls = small_config("gemma3"), getattr(transformers, cls)
    model = without_weights(cls, config_for(cls, config))
    settings = config_settings(json.loads(config.to_json_string()))
    assert note_on_unread(settings, model) == []
    settings["text_config"]["own_scale"] = 2.0
    assert names(note_on_unread(settings, model)[0], "own_scale: 2.0", "does not read")


@pytest.mark.parametrize(("family", "field", "value", "words"), REFUSED)
def test_a_field_that_cannot_be_obeyed_is_refused(family, field, value, words, made, tmp_path):
    refuses(ap.AdapterProbeError, words, study_of, changed(made, tmp_path, family, field, value))


def test_the_problem_of_the_training_counts_where_it_lies_beside_the_adapter(made, tmp_path):
    checkpoint = changed(made, tmp_path, "bert", "problem_type", "single_label_classification")
    shutil.copy(checkpoint.parent / "base" / "config.json", checkpoint)
    edit(checkpoint / "config.json", problem_type="multi_label_classification")
    rows = [{**row, "label": [row["label"]]} for row in ROWS]
    study = ap.ablate(checkpoint, data=rows, device="cpu", progress=False)
    assert "labels `label` of `text`" in study.question[0]
    refuses(ap.DataError, ("label", "a list of labels"), study_of, checkpoint)


def test_labels_are_in_the_order_of_the_configuration(made, tmp_path):
    order = {"2": "good", "0": "bad", "1": "fair"}
    checkpoint = changed(made, tmp_path, "bert", "id2label", order)
    rows = [{**row, "label": order[str(row["label"])]} for row in ROWS]
    study = ap.ablate(checkpoint, data=rows, device="cpu", progress=False)
    said = logits(own(checkpoint), checkpoint.parent / "base").argmax(1)
    assert study.summary.intact_score == np.mean(said == [row["label"] for row in ROWS])


def test_a_fine_tunes_own_configuration_is_compared_with_its_bases(made, tmp_path):
    base = shutil.copytree(made / "llama" / "base", tmp_path / "base")
    model = AutoModelForSequenceClassification.from_pretrained(base)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1
    model.config.rope_parameters = LINEAR
    model.save_pretrained(tmp_path / "tuned")
    notes = ap.inspect(tmp_path / "tuned", base=base)["notes"]
    assert any(names(note, "config.json", "every variant", "rope_parameters.rope_type") for note in notes)
