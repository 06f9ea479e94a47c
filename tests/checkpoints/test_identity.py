"""What determines a number is remembered, compared and named; what does not determine it breaks nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from changed_files import LACKS, edit, retensor
from peft_cases import write_base
from refusals import refused
from training_models import load_plain
from transformers import BartForConditionalGeneration, DeepseekV3ForCausalLM

from adapter_probe.checkpoints.base import load_any_base
from adapter_probe.checkpoints.base_config import find_any_base
from adapter_probe.checkpoints.identity import config_settings, forward_settings, tokenizer_parts
from adapter_probe.checkpoints.opening import open_any
from adapter_probe.checkpoints.tokenizer import load_tokenizer
from adapter_probe.data.tasks import find_task
from adapter_probe.errors import CheckpointError, ResultsError
from adapter_probe.models.methods import Adapters
from adapter_probe.probe.ablation_arguments import AblationArguments
from adapter_probe.probe.request import prepare_ablation
from adapter_probe.results.fingerprints import hash_json
from adapter_probe.results.rundir import RunDirectory
from adapter_probe.training.request import TrainingRequest, identity_of, load_inputs
from adapter_probe.training.settings import TrainingSettings

HARMLESS = {
    "_name_or_path": "elsewhere",
    "transformers_version": "9.9.9",
    "architectures": ["Another"],
    "dtype": "float16",
    "use_cache": False,
    "id2label": {"0": "yes"},
    "label2id": {"yes": 0},
}


@pytest.fixture
def base(tiny_base: Callable[..., Path], tmp_path: Path) -> Path:
    """A base that the test may change."""
    return shutil.copytree(tiny_base("bert"), tmp_path / "base")


@pytest.fixture
def checkpoint(base: Path, write_checkpoint: Callable[..., object], tmp_path: Path) -> Path:
    """A checkpoint on `base`, that the test may change."""
    write_checkpoint(base, tmp_path / "c")
    return tmp_path / "c"


def remember_tokenizer(checkpoint: Path, base: Path) -> None:
    edit(checkpoint / "adapter_probe.json", tokenizer=tokenizer_parts(load_tokenizer(str(base))))


def test_config_keys_that_change_nothing_and_defaults_spelt_out_open(checkpoint, base):
    edit(base / "config.json", **HARMLESS, hidden_dropout_prob=0.3, is_decoder=False)
    assert open_any(checkpoint).notes == ()


def test_a_default_left_out_of_the_config_opens(checkpoint, base):
    assert json.loads((base / "config.json").read_text())["hidden_act"] == "gelu"
    edit(base / "config.json", hidden_act=LACKS)
    open_any(checkpoint)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model.vocab.fine": 6, "model.vocab.bright": 5}, "tokenizer, model"),
        ({"normalizer": {"type": "Lowercase"}}, "tokenizer, normalizer"),
        ({"post_processor.single.2": LACKS}, "tokenizer, post_processor"),
    ],
)
def test_a_changed_tokenizer_is_named_at_opening(checkpoint, base, change, named):
    remember_tokenizer(checkpoint, base)
    open_any(checkpoint)
    edit(base / "tokenizer.json", change)
    said = refused(open_any, checkpoint, error=CheckpointError)
    assert named in said
    assert str(base) in said


def test_a_tokenizer_written_again_is_the_same(base, tmp_path):
    first = load_tokenizer(str(base))
    first("some words here", truncation=True, max_length=4)  # which leaves a state behind
    first.save_pretrained(tmp_path / "again")
    assert tokenizer_parts(load_tokenizer(str(tmp_path / "again"))) == tokenizer_parts(
        load_tokenizer(str(base))
    )


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("hidden_act", "relu", "base.config.hidden_act: gelu -> relu"),
        pytest.param(
            "layer_norm_eps", 1e-3, "base.config.layer_norm_eps: 1e-12 -> 0.001", marks=pytest.mark.slow
        ),
        pytest.param(
            "num_attention_heads", 2, "base.config.num_attention_heads: 4 -> 2", marks=pytest.mark.slow
        ),
        ("activation", "relu", "checkpoint.method.activation: tanh -> relu"),
    ],
)
def test_an_ablation_is_not_gone_on_with_after_a_change(checkpoint, base, tmp_path, name, value, named):
    def claim() -> None:
        request = prepare_ablation(AblationArguments(str(checkpoint)), torch.device("cpu"))
        with RunDirectory(tmp_path / "run", request.identity, {}):
            pass

    claim()
    edit(base / "config.json", **HARMLESS, attention_probs_dropout_prob=0.3)
    claim()
    # The checkpoint was written again, with the change, so that it opens: the run itself has to notice.
    record = checkpoint / "adapter_probe.json"
    if name != "activation":
        edit(base / "config.json", **{name: value})
        edit(record, {f"base.config.{name}": value})
    else:
        method = {**json.loads(record.read_text())["method"], name: value}
        edit(record, method=method, method_sha256=hash_json(method))
    assert named in refused(claim, error=ResultsError)


ROUTED = {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
ROUTED |= {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}


@pytest.mark.parametrize(
    ("cls", "settings", "buffer"),
    [
        (BartForConditionalGeneration, {}, "final_logits_bias"),
        (DeepseekV3ForCausalLM, ROUTED, "model.layers.1.mlp.gate.e_score_correction_bias"),
    ],
)
def test_stored_tensors_that_are_no_parameters_belong_to_a_base(cls, settings, buffer, tmp_path):
    """Such as the biases by which a router chooses experts; they determine outputs as parameters do."""
    base = write_base(tmp_path, cls.config_class.model_type, cls, num_key_value_heads=4, **settings)
    before = load_any_base(find_any_base(str(base)), cls, None).identity
    retensor(base / "model.safetensors", lambda tensors: {**tensors, buffer: tensors[buffer] + 1})
    after = load_any_base(find_any_base(str(base)), cls, None).identity
    assert before.weights_sha256 != after.weights_sha256


def test_a_trial_is_another_after_a_change_of_the_base(base, tiny_task):
    task, settings = find_task(tiny_task), TrainingSettings(epochs=1)
    request = TrainingRequest(str(base), task, Adapters(size=2), settings)

    def identity() -> dict:
        return identity_of(request, load_inputs(request).fingerprints)

    first = identity()
    edit(base / "config.json", **HARMLESS)
    assert identity() == first
    for name, value in (("hidden_dropout_prob", 0.3), ("hidden_act", "relu")):
        edit(base / "config.json", **{name: value})
        changed = identity()
        assert changed != first
        assert changed["base"]["config"][name] == value
        first = changed


def test_every_setting_of_a_config_counts_unless_it_is_known_not_to():
    config = {"hidden_act": "gelu", "new_in_some_release": 1, "attention_dropout": 0.1, **HARMLESS}
    assert config_settings(config) == {
        "hidden_act": "gelu",
        "new_in_some_release": 1,
        "attention_dropout": 0.1,
    }
    assert forward_settings(config_settings(config)) == {"hidden_act": "gelu", "new_in_some_release": 1}


def test_the_identity_of_a_base_holds_what_its_file_says(tiny_base):
    folder = tiny_base("bert")
    said = json.loads((folder / "config.json").read_text())
    config = load_plain(folder).identity.config
    assert config["hidden_act"] == said["hidden_act"]
    assert config.items() <= said.items()
