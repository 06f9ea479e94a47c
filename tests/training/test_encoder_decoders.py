"""Encoder-decoders in the training loop, against their own loss, the Trainer of Transformers and `ablate`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from refusals import naming
from trainer import BATCH, RATE, assert_losses_of_trainer, order_of_batches, saved_moved
from trainings import request_of, write_task
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    EncoderDecoderConfig,
    EncoderDecoderModel,
    M2M100Config,
    M2M100ForConditionalGeneration,
    ProphetNetConfig,
    ProphetNetForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
)

import adapter_probe as ap
from adapter_probe.data.packing import pack
from adapter_probe.errors import AdapterProbeError
from adapter_probe.training.request import build_model, load_inputs

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "checkpoints"))
from peft_cases import WORDS

CPU = torch.device("cpu")
NAMES = [f"w{i}" for i in range(8)]
ROWS = {
    "sft": [
        {"prompt": "w20 " * (1 + i % 3) + f"{NAMES[i % 4]} w21",
         "completion": "w22 " * (i % 2) + NAMES[i % 4]}
        for i in range(40)
    ],
    "choices": [
        {"context": f"w20 {NAMES[i % 8]} w23 {NAMES[i // 4 % 4]}",
         "choices": [f"w22 w24 {NAMES[i // 4 % 4]}", NAMES[i % 8], "w25"][: 2 + i % 2], "gold": i % 2}
        for i in range(40)
    ],
    "text": [{"text": "w20 w1 w21"}] * 40,
}  # fmt: skip
SUITE = """
base = "{base}"

[[tasks]]
task = "{task}"
name = "sft"

[tradeoff]
sizes = []
method = ["lora:r=4"]
top_k = [1]
seeds = 1
epochs = [1]
batch_size = 8
learning_rates = [1e-3, 1e-2]

[init-sweep]
method = "lora:r=4"
stds = [1e-2]
inits = ["gaussian"]
seeds = 1
epochs = [1]

[ablation]
method = "lora:r=4"
seeds = 2
epochs = 1
"""
SIZES = {"d_model": 16, "vocab_size": 60, "pad_token_id": 0, "eos_token_id": 3}
LAYERS = {"encoder_layers": 3, "decoder_layers": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
          "encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 40,
          "bos_token_id": 2, "decoder_start_token_id": 3, "forced_eos_token_id": None,
          "dropout": 0.0}  # fmt: skip
OF_T5 = {**SIZES, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4,
         "dropout_rate": 0.0}  # fmt: skip
BERT, WRITER = (BertConfig(
    vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
    max_position_embeddings=40, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
) for _ in range(2))  # fmt: skip
FAMILIES = {
    "t5": (T5ForConditionalGeneration, T5Config(**OF_T5, decoder_start_token_id=0)),
    "bart": (BartForConditionalGeneration, BartConfig(**SIZES, **LAYERS)),
    "m2m_100": (M2M100ForConditionalGeneration, M2M100Config(**SIZES, **LAYERS, encoder_layerdrop=0.0)),
    "bert to bert": (EncoderDecoderModel, EncoderDecoderConfig.from_encoder_decoder_configs(
        BERT, WRITER, decoder_start_token_id=2, pad_token_id=0,
    )),  # whose pooler has no gradient
    "t5 without a start": (T5ForConditionalGeneration, T5Config(**OF_T5)),
    "prophetnet": (ProphetNetForConditionalGeneration, ProphetNetConfig(
        vocab_size=60, hidden_size=16, encoder_ffn_dim=24, num_encoder_layers=1, num_decoder_layers=1,
        num_encoder_attention_heads=4, decoder_ffn_dim=24, num_decoder_attention_heads=4, pad_token_id=0,
        max_position_embeddings=40, decoder_start_token_id=2, eos_token_id=3,
    )),
}  # fmt: skip


@pytest.fixture(scope="module")
def bases(tmp_path_factory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            cls, config = FAMILIES[family]
            torch.manual_seed(0)
            words = AutoTokenizer.from_pretrained(WORDS)
            made[family] = saved_moved(cls(config), words, tmp_path_factory.mktemp(family))
        return made[family]

    return make


@pytest.fixture(scope="module")
def tasks(tmp_path_factory) -> Callable[[str], Path]:
    return lambda form: write_task(tmp_path_factory.mktemp(form) / form, ROWS[form], 9)


def tokens_of(tokenizer, row: dict) -> tuple[list[int], list[int]]:
    """Source and labels of a row, as a user of Transformers makes them."""
    asked = row.get("prompt", row.get("context"))
    answer = row["completion"] if "completion" in row else row["choices"][row["gold"]]
    return tokenizer(asked)["input_ids"], tokenizer(text_target=answer)["input_ids"]


def padded(pairs: list[tuple[list[int], list[int]]]) -> dict[str, torch.Tensor]:
    """The arguments of an encoder-decoder with its loss."""
    sources, labels = ([torch.tensor(one) for one in side] for side in zip(*pairs))
    join = torch.nn.utils.rnn.pad_sequence
    ids = join(sources, batch_first=True)
    mask = join([torch.ones_like(one) for one in sources], batch_first=True)
    return {"input_ids": ids, "attention_mask": mask, "labels": join(labels, True, -100)}


@pytest.mark.parametrize(("family", "form"), [
    ("t5", "sft"), ("bart", "choices"),
    *(pytest.param(family, "sft", marks=pytest.mark.slow) for family in ("m2m_100", "bert to bert")),
])  # fmt: skip
def test_the_loss_is_the_models_own(family, form, bases, tasks):
    request = request_of(bases(family), tasks(form), "lora:r=4,target_modules=all-linear", batch_size=BATCH)
    inputs = load_inputs(request)
    model = build_model(request, inputs.base, CPU).eval()
    batch = pack(inputs.objective.train, np.arange(BATCH))
    tokenizer = AutoTokenizer.from_pretrained(bases(family))
    own = model.base(**padded([tokens_of(tokenizer, row) for row in ROWS[form][:BATCH]])).loss
    torch.testing.assert_close(inputs.objective.loss(model(batch), batch), own, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("family", "form", "method", "metric"),
    [
        ("t5", "sft", "lora:r=4", "nll"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("t5", "choices", "ia3", "accuracy"),
                ("m2m_100", "sft", "lora:r=4,target_modules=q_proj+v_proj", "nll"),
                ("bart", "choices", "lora:r=4", "acc_norm"),
                ("bart", "sft", "dora:r=2", "token_accuracy"),
                ("t5", "sft", "ln_tuning", "greedy_accuracy"),
            )
        ),
    ],
)
@pytest.mark.slow
def test_the_score_is_that_of_ablate_and_peft_loads_the_checkpoint(
    family, form, method, metric, bases, tasks, tmp_path
):
    done = ap.train(
        bases(family), task=tasks(form), out=tmp_path / "c", method=method, epochs=1, batch_size=BATCH,
        learning_rate=RATE, metric=metric, progress=False,
    )  # fmt: skip
    assert json.loads((tmp_path / "c" / "adapter_config.json").read_text())["task_type"] == "SEQ_2_SEQ_LM"
    study = ap.ablate(tmp_path / "c", spans="single", progress=False)
    assert study.summary.metric == metric
    assert study.summary.intact_score == pytest.approx(done.score, rel=1e-6)
    assert set(study.spans["stack"]) == {"encoder", "decoder"}
    model = PeftModel.from_pretrained(AutoModelForSeq2SeqLM.from_pretrained(bases(family)), tmp_path / "c")
    if metric == "nll":
        tokenizer = AutoTokenizer.from_pretrained(bases(family))
        with torch.no_grad():
            nats = [model(**padded([tokens_of(tokenizer, row)])).loss.item() for row in ROWS[form][:9]]
        assert done.score == pytest.approx(np.mean(nats), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "form", "method"),
    [
        ("t5", "sft", "lora:r=4"),
        ("t5", "choices", "dora:r=2"),
        ("t5", "sft", "ia3"),
        ("t5", "sft", "prompt_tuning:num_virtual_tokens=3"),
        ("t5", "sft", "full"),
        ("t5", "sft", "layernorm_only"),
        ("t5", "sft", "top_layers"),
        ("bart", "choices", "lora:r=4"),
        ("bart", "sft", "bitfit"),
        ("bart", "sft", "full"),
    ],
)
def test_the_losses_are_those_of_the_trainer_of_transformers(family, form, method, bases, tasks, tmp_path):
    request = request_of(bases(family), tasks(form), method, epochs=2, batch_size=BATCH)
    tokenizer = AutoTokenizer.from_pretrained(bases(family))
    pairs = [tokens_of(tokenizer, row) for row in ROWS[form]]
    order = order_of_batches([len(source) + 1 + len(labels) for source, labels in pairs], BATCH, 2)
    batches = [padded([pairs[i] for i in sorted(batch)]) for batch in order]
    assert len(assert_losses_of_trainer(request, batches, tmp_path)) == 10


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_what_baselines_train(family, bases, tasks):
    every = {name for name, _ in AutoModelForSeq2SeqLM.from_pretrained(bases(family)).named_parameters()}
    task, names = tasks("sft"), {}
    for method in ("full", "top_layers", "layernorm_only"):
        request = request_of(bases(family), task, method)
        names[method] = set(build_model(request, load_inputs(request).base, CPU).named_delta())
    assert names["full"] == every
    assert names["layernorm_only"] == {name for name in every if "norm" in name}
    last = {"t5": ("encoder.block.1.", "decoder.block.2.", "coder.final_layer_norm."),
            "bart": ("encoder.layers.2.", "decoder.layers.1.")}[family]  # fmt: skip
    assert names["top_layers"] == {name for name in every if any(part in name for part in last)}


@pytest.mark.parametrize(
    ("form", "options", "words"),
    [
        ("sft", {"method": "adapters"}, ("adapters", "lora:r=8", "full")),
        ("sft", {"method": "bitfit"}, ("bitfit",)),
        ("sft", {"method": "top_layers", "k": 4}, ("k 4", "3")),  # of the longer stack
        ("sft", {"family": "t5 without a start", "method": "ia3"}, ("decoder_start_token_id", "config.json")),
        ("sft", {"family": "prophetnet", "method": "full"}, ("ProphetNetForConditionalGeneration",)),
        ("text", {"method": "lora:r=4", "kind": "causal"}, ("prompt", "completion", "whole texts")),
    ],
)
def test_bad_input(form, options, words, bases, tasks, tmp_path):
    base, options = bases(options.get("family", "t5")), {k: v for k, v in options.items() if k != "family"}
    with pytest.raises(AdapterProbeError, match=naming(*words)) as caught:
        ap.train(base, task=tasks(form), out=tmp_path / "c", progress=False, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.usefixtures("in_this_process")
def test_a_suite_of_an_encoder_decoder(bases, tasks, tmp_path):
    file = tmp_path / "tasks.toml"
    file.write_text(SUITE.format(base=bases("t5"), task=tasks("sft")))
    study = ap.suite(file, tmp_path / "out", progress=False)
    table = study.tradeoff.table.set_index("method")
    assert set(table.index) == {"lora", "top_layers", "layernorm_only", "full"}
    every = {n: p.numel() for n, p in AutoModelForSeq2SeqLM.from_pretrained(bases("t5")).named_parameters()}
    assert table["trained_parameters"]["full"] == sum(every.values())
    assert set(study.init_sweep.trials["score"] > 0) == {True}
    for number, ablation in enumerate(study.ablations["sft"]):
        scores = ap.inspect(tmp_path / f"out/checkpoints/sft/seed-{number}")["scores"]
        assert scores == {"nll": pytest.approx(ablation.summary.intact_score, rel=1e-6)}
        assert set(ablation.spans["stack"]) == {"encoder", "decoder"}
