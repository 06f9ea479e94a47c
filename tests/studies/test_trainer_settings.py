"""Every setting of trainers: obeyed, named, refused, or without effect on what they evaluate."""

from __future__ import annotations

import copy
import importlib
import pkgutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from byte_tokenizer import byte_tokenizer
from mask_loop import with_lora
from packaging.version import Version
from refusals import refuses
from transformers import DataCollatorForLanguageModeling, LlamaConfig, LlamaForCausalLM, Trainer
from transformers import TrainingArguments as Arguments

import adapter_probe as ap

pytest.importorskip("accelerate")
_KNOWN = Version("5.24")  # of transformers, whose fields the table has
OBEYED = """dataloader_drop_last label_names metric_for_best_model greater_is_better remove_unused_columns
generation_config generation_max_length generation_num_beams
assistant_only_loss chat_template_path completion_only_loss dataset_kwargs dataset_text_field eos_token
eval_packing is_encoder_decoder max_completion_length max_length packing packing_strategy
truncation_mode precompute_ref_log_probs pad_token"""
NAMED = """bf16 fp16 bf16_full_eval fp16_full_eval label_smoothing_factor per_device_eval_batch_size
loss_type router_aux_loss_coef beta alpha"""
REFUSED = """batch_eval_metrics eval_do_concat_batches include_for_metrics prediction_loss_only
predict_with_generate ld_alpha optim"""
# What a step of training is; the loss of preferences, of which a study scores the log-likelihoods or rewards.
OF_TRAINING = """activation_checkpointing activation_checkpointing_kwargs activation_offloading adam_beta1
adam_beta2 adam_epsilon average_tokens_across_devices data_seed gradient_accumulation_steps
gradient_checkpointing gradient_checkpointing_kwargs learning_rate lr_scheduler_kwargs lr_scheduler_type
cpo_alpha max_grad_norm max_steps neftune_noise_alpha num_train_epochs optim_args optim_target_modules
per_device_train_batch_size sortish_sampler train_sampling_strategy group_by_length length_column_name
warmup_steps warmup_ratio weight_decay shuffle_dataset disable_dropout label_smoothing loss_weights
discopop_tau simpo_gamma f_alpha_divergence_coef f_divergence_type use_weighting center_rewards_coefficient
ref_model_mixup_alpha ref_model_sync_steps sync_ref_model model_init_kwargs trust_remote_code"""
# Saving, logging, the Hub, devices and speed; padding, which no position of a text sees.
ELSEWHERE = """accelerator_config auto_find_batch_size dataloader_in_order
dataloader_multiprocessing_context dataloader_num_workers dataloader_persistent_workers
dataloader_pin_memory dataloader_prefetch_factor dataset_num_proc ddp_backend ddp_broadcast_buffers
ddp_bucket_cap_mb ddp_find_unused_parameters ddp_static_graph ddp_timeout debug deepspeed disable_tqdm
do_eval do_predict do_train enable_jit_checkpoint eval_accumulation_steps eval_delay eval_on_start
eval_steps eval_strategy eval_use_gather_object fsdp fsdp_config full_determinism generate_during_eval
hub_always_push hub_model_id hub_private_repo hub_revision hub_strategy hub_token ignore_data_skip
include_num_input_tokens_seen liger_kernel_config load_best_model_at_end local_rank log_level
log_level_replica log_on_each_node logging_dir logging_first_step logging_nan_inf_filter logging_steps
logging_strategy output_dir pad_to_multiple_of padding_free parallelism_config precompute_ref_batch_size
project push_to_hub report_to restore_callback_states_from_checkpoint resume_from_checkpoint run_name
save_on_each_node save_only_model save_steps save_strategy save_total_limit seed skip_memory_metrics tf32
torch_compile torch_compile_backend torch_compile_mode torch_empty_cache_steps trackio_bucket_id
trackio_space_id trackio_static_space_id use_cache use_cpu use_liger_kernel"""


SCORED = ("SFTTrainer", "DPOTrainer", "RewardTrainer", "CPOTrainer", "ORPOTrainer")
"""Trainers of TRL that are scored in part or whole; see `test_preferences`."""


def settings_of(kind: type) -> set[str]:
    return {one.name for one in fields(kind)}


@pytest.mark.skipif(Version(transformers.__version__) >= Version("5.25"), reason="fields of a newer version")
def test_every_setting_has_a_verdict():
    known = {name for table in (OBEYED, NAMED, REFUSED, OF_TRAINING, ELSEWHERE) for name in table.split()}
    there = settings_of(transformers.Seq2SeqTrainingArguments)
    try:
        import trl
        from trl.experimental.cpo import CPOConfig

        for kind in (trl.SFTConfig, trl.DPOConfig, trl.RewardConfig, CPOConfig):
            there |= settings_of(kind)
    except ImportError:
        pass
    assert there <= known


@pytest.mark.slow
def test_the_settings_of_all_other_trainers_are_refused_with_their_trainer(tmp_path):
    """By name, whatever they are: those of KTO, GRPO, RLOO and of everything experimental."""
    trl, found = pytest.importorskip("trl"), set()
    experimental = importlib.import_module("trl.experimental").__path__
    modules = [f"trl.experimental.{one.name}" for one in pkgutil.iter_modules(experimental) if one.ispkg]
    trainer = trainer_in(tmp_path)
    for module in [trl, *map(importlib.import_module, modules)]:
        kinds = [getattr(module, name) for name in dir(module) if name.endswith("Trainer")]
        for kind in [one for one in kinds if one.__name__ not in SCORED]:
            other = type(kind.__name__, (kind,), {"__init__": lambda self: None})()
            vars(other).update(vars(trainer))
            refuses(ap.DataError, (kind.__name__, "data="), ap.ablate, other, progress=False)
            found.add(kind.__name__.strip("_"))
    assert found >= {"KTOTrainer", "GRPOTrainer", "RLOOTrainer"}


def rows_of(n: int) -> list[dict[str, Any]]:
    tokenizer = byte_tokenizer(True)
    return [dict(tokenizer(" ab" * (1 + row % 4) + " c")) for row in range(n)]


class Weighted(Trainer):
    def compute_loss(self, model, inputs, *given, **options):
        return 2 * super().compute_loss(model, inputs, *given, **options)


def trainer_in(folder: Path, kind: type[Trainer] = Trainer, n: int = 7, **settings: Any) -> Trainer:
    """Of a tiny language model, with `settings` of its arguments or its configuration."""
    tokenizer = byte_tokenizer(True)
    tokenizer.pad_token = tokenizer.eos_token
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=64, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = with_lora(LlamaForCausalLM(config), ["v_proj"], r=2)
    given = {"per_device_eval_batch_size": 3, **settings}
    arguments = Arguments(str(folder), use_cpu=True, report_to=[], disable_tqdm=True, **given)
    return kind(
        model, arguments, eval_dataset=rows_of(n), processing_class=tokenizer,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )  # fmt: skip


# Settings, words of the question, and the number of rows that are read.
SAID: dict[str, tuple[dict[str, Any], tuple[str, ...], int]] = {
    "batches of several rows": ({}, ("mean over the tokens of each batch", "over the rows"), 7),
    "one row a batch": ({"per_device_eval_batch_size": 1}, (), 7),
    "a last batch that is dropped": ({"dataloader_drop_last": True}, ("last rows are left out",), 6),
    "label smoothing": ({"label_smoothing_factor": 0.1}, ("by label_smoothing_factor",), 7),
    "a loss of its own": ({"kind": Weighted}, ("by compute_loss of its own",), 7),
    "half precision": ({"bf16_full_eval": True}, ("half precision (bf16_full_eval=True)",), 7),
}


@pytest.mark.parametrize("case", SAID)
def test_what_a_trainer_does_otherwise_is_said(case, tmp_path):
    settings, words, n_rows = SAID[case]
    trainer = trainer_in(tmp_path, **settings)
    study = ap.ablate(trainer, spans="single", progress=False)
    said = "\n".join(study.question)
    assert study.summary.n_examples == n_rows
    assert all(word in said for word in words), said
    differs = "the trainer's eval_loss" in said
    assert differs == (case not in ("one row a batch",))
    if not differs:
        # Transformers 5.9 divides by one token more, which has no prediction.
        with torch.no_grad():
            losses = [float(trainer.model(**batch).loss) for batch in trainer.get_eval_dataloader()]
        assert study.summary.intact_score == pytest.approx(sum(losses) / len(losses), rel=1e-5)
        if Version(transformers.__version__) >= Version("5.20"):
            assert study.summary.intact_score == pytest.approx(trainer.evaluate()["eval_loss"], rel=1e-5)


def test_what_a_trainer_does_is_not_said_of_other_batches(tmp_path):
    trainer = trainer_in(tmp_path, dataloader_drop_last=True)
    batches = list(trainer.get_eval_dataloader())
    study = ap.ablate(trainer, batches=batches, spans="single", progress=False)
    said = "\n".join(study.question)
    assert "last rows are left out" not in said
    assert "evaluation set" not in said


def test_routers_losses_are_named(tmp_path):
    trainer = trainer_in(tmp_path)
    trainer.model.config.output_router_logits = True
    study = ap.ablate(trainer, spans="single", progress=False)
    assert any("routers' auxiliary loss" in line for line in study.question)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["DPO", "Reward"])
def test_preferences_are_those_that_the_trainer_reads(kind, tmp_path):
    """Without the rows of a batch that it drops, and with what it does otherwise named."""
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    trainer = trainer_in(tmp_path)
    model, tokenizer = trainer.model, trainer.processing_class
    if kind == "Reward":
        base = transformers.LlamaForSequenceClassification(
            LlamaConfig(**{**model.config.to_dict(), "num_labels": 1})
        )
        model = with_lora(base, ["v_proj"], "SEQ_CLS", r=2)
    rows = [
        {"prompt": "ab c" * (1 + n % 3), "chosen": " ab" * (1 + n % 4), "rejected": " c"} for n in range(7)
    ]
    data = datasets.Dataset.from_list(rows)
    for drops, n in ((True, 6), (False, 7)):
        arguments = getattr(trl, f"{kind}Config")(
            str(tmp_path), use_cpu=True, report_to=[], disable_tqdm=True, bf16=False, max_steps=1,
            per_device_eval_batch_size=3, dataloader_drop_last=drops,
        )  # fmt: skip
        made = getattr(trl, f"{kind}Trainer")(
            copy.deepcopy(model), args=arguments, train_dataset=data, eval_dataset=data,
            processing_class=tokenizer,
        )  # fmt: skip
        study = ap.ablate(made, metric="margin", spans="single", progress=False)
        said = "\n".join(study.question)
        assert len(study.results.scored_with) == n
        assert ("last rows are left out" in said) == drops
        assert ("averages its batches" in said) == (not drops)
        assert ("0.1 times (beta)" in said) == (kind == "DPO")
        if drops and kind == "Reward":
            assert study.summary.intact_score == pytest.approx(made.evaluate()["eval_margin"], abs=1e-5)
