"""Every kind of model, data and method: against Transformers' Trainer, PEFT's loader and `ablate`."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from refusals import naming
from trainer import RATE, assert_losses_of_trainer
from trainings import assert_resumes, assert_trains_in_bfloat16, request_of

import adapter_probe as ap
from adapter_probe.data.packing import pack
from adapter_probe.errors import AdapterProbeError
from adapter_probe.training.peft_methods import peft_method
from adapter_probe.training.request import build_model, load_inputs

CPU = torch.device("cpu")
PROMPTS = "prompt_tuning:num_virtual_tokens=3"


def slow(*cases: tuple) -> list:
    return [pytest.param(*case, marks=pytest.mark.slow) for case in cases]


@pytest.mark.parametrize(
    ("model", "data", "method", "epochs", "parts"),
    [
        ("bert", "class", "lora:r=4", 1, 1),
        ("llama", "sft", "lora:r=4", 1, 1),
        *slow(
            *(("bert", "class", method, 10, 1)
              for method in ("lora:r=4", "dora:r=2", "ia3", "vera:r=8", "ln_tuning", PROMPTS)),
            *(("bert", data, method, 5, 1)
              for data in ("tags", "labels") for method in ("adapters", "lora:r=4", "full")),
            ("llama", "sft", "lora:r=4", 10, 1),
            ("llama", "sft", "lora:r=4", 10, 2),
            ("llama", "choices", "dora:r=2", 10, 1),
            ("llama", "pairs", "ia3", 10, 1),
            ("gpt2", "chat", "lora:r=4", 10, 1),
            ("llama", "chat", "full", 10, 2),
            ("llama", "choices", "top_layers", 10, 1),
            ("gpt2", "choices", "bitfit", 10, 1),
            ("llama", "sft", "layernorm_only", 10, 1),
            ("llama", "sft", PROMPTS, 10, 1),
            *(("t5", "answers", method, 2, 1)
              for method in ("lora:r=4", "ia3", PROMPTS, "full", "layernorm_only", "top_layers")),
            ("t5", "contexts", "dora:r=2", 2, 1),
            ("bart", "contexts", "lora:r=4", 2, 1),
            ("bart", "answers", "bitfit", 2, 1),
            ("bart", "answers", "full", 2, 1),
        ),
    ],
)  # fmt: skip
def test_the_losses_are_those_of_the_trainer(model, data, method, epochs, parts, learners, tmp_path):
    one = learners(model, data)
    rate = 1e-3 if (model, method) == ("bert", "full") else RATE
    request = request_of(one.base, one.task, method, epochs=epochs, batch_size=one.size, learning_rate=rate,
                         accumulate=parts)  # fmt: skip
    least = 1e-2 if model == "bert" else 1e-3
    losses = assert_losses_of_trainer(request, one.batches(epochs, parts), tmp_path, parts, least)
    assert len(losses) == epochs * len(one.rows) // one.size
    assert data not in ("tags", "labels") or losses[0] - losses[-1] > 0.1


@pytest.mark.parametrize(
    ("model", "data", "method"),
    [
        *(("bert", data, method) for data in ("tags", "labels") for method in ("adapters", "lora:r=4")),
        ("t5", "answers", "lora:r=4"),
        ("bart", "contexts", "lora:r=4,target_modules=all-linear"),
        *slow(*((model, "answers", "lora:r=4,target_modules=all-linear")
                for model in ("m2m_100", "bert to bert"))),
    ],
)  # fmt: skip
def test_the_loss_of_a_batch_is_the_models_own(model, data, method, learners):
    one = learners(model, data)
    inputs = load_inputs(asked := request_of(one.base, one.task, method))
    trained = build_model(asked, inputs.base, CPU).eval()
    batch = pack(inputs.objective.train, np.arange(9))
    with torch.no_grad():
        own = trained.base(**one.join([one.encode(row) for row in one.rows[:9]])).loss
        torch.testing.assert_close(inputs.objective.loss(trained(batch), batch), own, rtol=0, atol=1e-6)


@pytest.mark.parametrize("data", ["chat", "choices", "pairs", "sft"])
def test_the_loss_is_of_completions_alone(data, learners):
    one = learners("llama", data)
    encoded = load_inputs(request_of(one.base, one.task, "lora:r=4")).objective.train
    for ids, scored, row in zip(encoded.input_ids, encoded.scored, one.rows, strict=True):
        expected = one.encode(row)
        assert ids.tolist() == expected["input_ids"]
        assert scored.tolist() == [n for n, label in enumerate(expected["labels"]) if label != -100]


@pytest.mark.parametrize(
    ("model", "data", "method", "metric"),
    [
        ("bert without pooler", "class", "lora:r=4", "accuracy"),
        ("llama", "chat", "lora:r=4", "nll"),
        *slow(
            *(("bert", "class", method, "accuracy") for method in
              ("dora:r=2", "ia3", "vera:r=8", "ln_tuning", "lora:bias=all", "fourierft", PROMPTS)),
            ("llama", "choices", "lora:r=4", "accuracy"),
            ("llama", "choices", "lora:r=4", "acc_norm"),
            ("llama", "pairs", "lora:r=4", "accuracy"),
            ("llama", "sft", "lora:r=4", "bits_per_byte"),
            ("llama", "sft", "lora:r=4", "greedy_accuracy"),
            ("llama", "sft", "lora:r=4", "token_accuracy"),
            ("t5", "answers", "lora:r=4", "nll"),
            ("t5", "contexts", "ia3", "accuracy"),
            ("m2m_100", "answers", "lora:r=4,target_modules=q_proj+v_proj", "nll"),
            ("bart", "contexts", "lora:r=4", "acc_norm"),
            ("bart", "answers", "dora:r=2", "token_accuracy"),
            ("t5", "answers", "ln_tuning", "greedy_accuracy"),
        ),
    ],
)  # fmt: skip
def test_the_score_is_that_of_ablate_and_of_what_peft_loads(model, data, method, metric, learners, tmp_path):
    one, folder = learners(model, data), tmp_path / "c"
    done = ap.train(
        one.base, task=one.task, out=folder, method=method, metric=metric, epochs=2, batch_size=one.size,
        learning_rate=RATE, progress=False,
    )  # fmt: skip
    assert done.score == (min if metric in ("nll", "bits_per_byte") else max)(done.validation_scores)
    assert (done.majority_score is None) == (data != "class")
    record = json.loads((folder / "adapter_probe.json").read_text())
    assert record["training"]["method"] == peft_method(method).to_json()
    if method != PROMPTS:  # which have no switch
        study = ap.ablate(folder, spans="single", progress=False)
        assert study.summary.metric == metric
        assert study.summary.intact_score == pytest.approx(done.score, rel=1e-5)
        assert ("stack" in study.spans) == (data in ("answers", "contexts"))
    found = one.validated(one.loaded_by_peft(folder))
    if metric == "nll":
        assert done.score == pytest.approx(np.mean([out.loss.item() for out in found]), rel=1e-5)
    if data == "class":
        right = [out.logits.argmax().item() == one.encode(row)["labels"] for out, row in zip(found, one.rows)]
        assert done.score == np.mean(right)


METHODS = {
    "bert": ["adapters", "top_layers", "layernorm_only", "head_only", "bitfit", "full", "lora:r=2",
             "dora:r=2", "ia3", "vera:r=4", "ln_tuning", "oft:oft_block_size=4"],
    "roberta": ["bitfit", "ln_tuning", PROMPTS],
    "gpt2": ["bitfit", "layernorm_only", "ln_tuning", "top_layers", "full", "lora:r=4"],
    "llama": ["layernorm_only", "ln_tuning", "top_layers", "full", "lora:r=4"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "method"),
    [
        ("bert", "bitfit"),
        *slow(*(one for model in METHODS for method in METHODS[model]
                if (one := (model, method)) != ("bert", "bitfit"))),
    ],
)  # fmt: skip
def test_every_method_trains_in_bfloat16(model, method, learners, tmp_path):
    one = learners(model, "sft" if model in ("gpt2", "llama") else "class")
    assert_trains_in_bfloat16(one.base, one.task, method, tmp_path)


TRAINED = {
    "llama": {"top_layers": (".layers.1.", "model.norm."), "layernorm_only": ("norm",)},
    "t5": {"top_layers": ("encoder.block.1.", "decoder.block.2.", "coder.final_layer_norm."),
           "layernorm_only": ("norm",)},
    "bart": {"top_layers": ("encoder.layers.2.", "decoder.layers.1."), "layernorm_only": ("norm",)},
}  # fmt: skip


@pytest.mark.parametrize("model", TRAINED)
def test_what_baselines_train(model, learners):
    one = learners(model, "sft" if model == "llama" else "answers")
    every = {name for name, _ in one.auto.from_pretrained(one.base).named_parameters()}
    for method, parts in {**TRAINED[model], "full": ("",)}.items():
        request = request_of(one.base, one.task, method)
        found = set(build_model(request, load_inputs(request).base, CPU).named_delta())
        assert found == {name for name in every if any(part in name for part in parts)}


@pytest.mark.parametrize(
    ("model", "data", "options", "words"),
    [
        ("llama", "sft", {"method": "adapters"}, ("adapters",)),
        ("llama", "sft", {"metric": "accuracy"}, ("'accuracy'", "'completion'", "nll")),
        ("llama", "sft", {"method": "bitfit"}, ("bitfit",)),
        ("t5", "answers", {"method": "adapters"}, ("adapters", "lora:r=8", "full")),
        ("t5", "answers", {"method": "bitfit"}, ("bitfit",)),
        ("t5", "answers", {"method": "top_layers", "k": 4}, ("k 4", "3")),  # of the longer stack
        ("t5 without a start", "answers", {"method": "ia3"}, ("decoder_start_token_id", "config.json")),
        ("prophetnet", "answers", {"method": "full"}, ("ProphetNetForConditionalGeneration",)),
        ("t5", "whole texts", {"method": "lora:r=4", "kind": "causal"},
         ("prompt", "completion", "whole texts")),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(model, data, options, words, learners, tmp_path):
    one = learners(model, data)
    with pytest.raises(AdapterProbeError, match=naming(*words)) as caught:
        ap.train(one.base, task=one.task, out=tmp_path / "c", progress=False, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "data", "method", "settings", "steps"),
    [
        ("llama", "choices", "lora:r=4,lora_dropout=0.1", {"accumulate": 2, "checkpointing": True}, (3,)),
        ("bert with dropout", "class", "dora:r=2", {"epochs": 2, "batch_size": 16}, (2, 4)),
        ("bert with dropout", "class", "lora:init_lora_weights=pissa", {"epochs": 2, "batch_size": 16},
         (1, 5)),
    ],
)  # fmt: skip
def test_an_interrupted_training_ends_in_the_same_bytes(
    model, data, method, settings, steps, learners, tmp_path
):
    one = learners(model, data)
    assert_resumes(request_of(one.base, one.task, method, **settings), tmp_path, *steps)
    written = {path.name for path in (tmp_path / "cut").iterdir()}
    assert {"adapter_model.safetensors", "adapter_probe.json", "adapter_config.json"} <= written
