"""DPO in the training loop, against its closed form on PEFT's own model, and `ablate`."""

from __future__ import annotations

import json
import math
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from byte_tokenizer import byte_tokenizer
from peft import LoraConfig
from refusals import naming
from tiers import slow_unless
from trainings import assert_resumes, losses_of, request_of, write_task
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import adapter_probe as ap
from adapter_probe.data.packing import pack
from adapter_probe.errors import AdapterProbeError
from adapter_probe.training.loop import seconds_of
from adapter_probe.training.request import build_model, load_inputs

CPU = torch.device("cpu")
WORDS = ["red", "green", "blue", "fast", "slow", "warm"]
ROWS = [
    {
        "prompt": f"{WORDS[i % 6]}{i}:",
        "chosen": f" {WORDS[(i + 1) % 6]} yes",
        "rejected": f" no {WORDS[i % 5]}",
    }
    for i in range(24)
]
CHATS = [
    {
        "prompt": [{"role": "user", "content": row["prompt"]}],
        "chosen": [{"role": "assistant", "content": row["chosen"]}],
        "rejected": [{"role": "assistant", "content": row["rejected"]}],
    }
    for row in ROWS
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, tokenizer = tmp_path_factory.mktemp("base"), byte_tokenizer(True)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=4, bos_token_id=tokenizer.bos_token_id, eos_token_id=None, initializer_range=0.3,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def likelihoods(model: torch.nn.Module, rows: list[dict]) -> torch.Tensor:
    """Log-likelihoods ``[rows, 2]`` as TRL sums them, from the whole logits of a row."""
    tokenizer, found = byte_tokenizer(True), []
    for row in rows:
        for answer in (row["chosen"], row["rejected"]):
            if isinstance(answer, str):
                prompt = tokenizer(row["prompt"])["input_ids"]
                ids = tokenizer(f"{row['prompt']}{answer}</s>")["input_ids"]
            else:
                template = tokenizer.apply_chat_template
                prompt = template(row["prompt"], add_generation_prompt=True, return_dict=False)
                ids = template(row["prompt"] + answer, return_dict=False)
            begin = next(i for i, pair in enumerate(zip([*prompt, None], ids)) if pair[0] != pair[1])
            likely = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
            found.append(sum(likely[place - 1, ids[place]] for place in range(begin, len(ids))))
    return torch.stack(found).view(-1, 2)


def dpo(policy: torch.Tensor, reference: torch.Tensor, beta: float) -> torch.Tensor:
    """The sigmoid loss of TRL's DPOTrainer."""
    ratios = (policy[:, 0] - policy[:, 1]) - (reference[:, 0] - reference[:, 1])
    return -torch.nn.functional.logsigmoid(beta * ratios).mean()


@pytest.mark.slow
def test_the_formula_gives_the_loss_of_trls_trainer(base, tmp_path):
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list(ROWS)
    arguments = trl.DPOConfig(
        str(tmp_path), beta=0.3, max_steps=4, learning_rate=0.05, report_to=[], use_cpu=True,
        save_strategy="no", disable_tqdm=True, per_device_eval_batch_size=6, gradient_checkpointing=False,
        bf16=False,
    )  # fmt: skip
    trainer = trl.DPOTrainer(
        AutoModelForCausalLM.from_pretrained(base), args=arguments, train_dataset=rows, eval_dataset=rows,
        processing_class=byte_tokenizer(True),
        peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"]),
    )  # fmt: skip
    trainer.train()
    with torch.no_grad():
        policy = likelihoods(trainer.model.eval(), ROWS)
        with trainer.model.disable_adapter():
            reference = likelihoods(trainer.model, ROWS)
    expected = trainer.evaluate()["eval_loss"]
    assert abs(expected - math.log(2)) > 0.05
    assert dpo(policy, reference, 0.3).item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("rows", slow_unless(CHATS.__eq__, [ROWS, CHATS]), ids=["texts", "chats"])
@pytest.mark.parametrize("method", ["lora:r=4", "full", "lora:r=4,init_lora_weights=pissa"])
def test_the_loss_and_its_gradient_are_those_of_the_formula(method, rows, base, tmp_path):
    request = request_of(base, write_task(tmp_path / "task", rows, 8), method, beta=0.3)
    inputs = load_inputs(request)
    model = build_model(request, inputs.base, CPU)
    inputs.objective.begin(model)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.named_delta().values():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    examples = np.array([5, 2, 11, 7])
    batch = pack(inputs.objective.train, inputs.objective.train.items(examples))
    ours = inputs.objective.loss(model(batch), batch)
    with torch.no_grad():
        reference = likelihoods(AutoModelForCausalLM.from_pretrained(base), [rows[i] for i in examples])
    theirs = dpo(likelihoods(model.base, [rows[i] for i in examples]), reference, 0.3)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    trained = [one for one in model.base.parameters() if one.requires_grad]
    for own, other in zip(*(torch.autograd.grad(loss, trained) for loss in (ours, theirs))):
        torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-5)
    assert ours.item() > 0.05


def test_a_reference_in_the_rows_is_taken(base, tmp_path):
    rows = [{**row, "ref_chosen_logps": -3.0 - i, "ref_rejected_logps": -9.0} for i, row in enumerate(ROWS)]
    request = request_of(base, write_task(tmp_path / "task", rows, 8))
    inputs = load_inputs(request)
    model = build_model(request, inputs.base, CPU)
    inputs.objective.begin(model)
    batch = pack(inputs.objective.train, inputs.objective.train.items(np.arange(24)))
    reference = torch.tensor([[-3.0 - i, -9.0] for i in range(24)])
    with torch.no_grad():
        expected = dpo(likelihoods(model.base, ROWS), reference, 0.1)
        torch.testing.assert_close(inputs.objective.loss(model(batch), batch), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", slow_unless("lora:r=4".__eq__, ["lora:r=4", "full"]))
def test_training_learns_and_ablate_scores_its_checkpoint(method, base, tmp_path):
    task = write_task(tmp_path / "task", ROWS, 8)
    losses = losses_of(request_of(base, task, method, epochs=4, learning_rate=3e-2), tmp_path / "c")
    assert losses[0] == pytest.approx(math.log(2), abs=1e-5)
    assert np.mean(losses[-4:]) < 0.5 * losses[0]
    study = ap.ablate(tmp_path / "c", spans="single", progress=False)
    said = json.loads((tmp_path / "c" / "adapter_probe.json").read_text())
    assert study.summary.metric == "pairwise_accuracy"
    assert study.summary.intact_score == said["scores"]["pairwise_accuracy"] > 0.6
    outside = {"outside": "base"} if method == "full" else {}  # so that all off is the base
    margin = ap.ablate(
        tmp_path / "c", metric="margin", reference="off", spans="single", progress=False, **outside
    )
    assert margin.summary.intact_score > 5.0
    model = margin.results.outputs[0] - margin.results.reference
    with torch.no_grad():
        base_model = AutoModelForCausalLM.from_pretrained(base)
        np.testing.assert_allclose(margin.results.reference, likelihoods(base_model, ROWS[:8]), atol=1e-4)
    assert margin.summary.intact_score == pytest.approx((model[:, 0] - model[:, 1]).mean(), abs=1e-4)


@pytest.mark.parametrize("method", slow_unless("lora:r=4".__eq__, ["lora:r=4", "full"]))
def test_an_interrupted_training_ends_in_the_same_bytes(method, base, tmp_path):
    request = request_of(base, write_task(tmp_path / "task", ROWS, 8), method, epochs=2, accumulate=2)
    assert_resumes(request, tmp_path, 3)


@pytest.mark.parametrize(
    "settings",
    slow_unless(
        {"checkpointing": True}.__eq__, [{"accumulate": 3}, {"packing": True}, {"checkpointing": True}]
    ),
    ids=str,
)
def test_memory_is_saved_without_another_result(settings, base, tmp_path):
    task = write_task(tmp_path / "task", ROWS, 8)
    plain = losses_of(request_of(base, task), tmp_path / "plain")
    saving = losses_of(request_of(base, task, **settings), tmp_path / "saving")
    np.testing.assert_allclose(saving, plain, rtol=1e-4)


def test_a_margin_chooses_the_epoch(base, tmp_path):
    done = ap.train(
        base, task=write_task(tmp_path / "task", CHATS, 8), out=tmp_path / "c", method="lora:r=2", epochs=2,
        batch_size=6, learning_rate=1e-2, metric="margin", progress=False,
    )  # fmt: skip
    study = ap.ablate(tmp_path / "c", spans="single", progress=False)
    assert done.score == max(done.validation_scores) == pytest.approx(study.summary.intact_score, rel=1e-5)
    assert done.majority_score is None


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        (ROWS, {"beta": 0.0}, ("--beta", "0.0", "positive")),
        (ROWS, {"metric": "nll"}, ("'nll'", "'preference'", "pairwise_accuracy, margin")),
        (ROWS, {"method": "adapters"}, ("adapters", "lora:r=8")),
        (ROWS, {"method": "lora:r=2", "pooling": "mean"}, ("--pooling mean", "embeddings", "causal")),
        ([{**ROWS[0], "chosen": 3}] * 9, {"method": "lora:r=2"}, ("line 1", "chosen", "3")),
        ([{**ROWS[0], "chosen": CHATS[0]["chosen"]}] * 9, {"method": "lora:r=2"}, ("line 1", "rejected")),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(rows, options, words, base, tmp_path):
    with pytest.raises(AdapterProbeError, match=naming(*words)) as caught:
        ap.train(
            base, task=write_task(tmp_path / "task", rows, 8), out=tmp_path / "c", progress=False, **options
        )
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.usefixtures("in_this_process")
def test_a_trade_off_takes_the_best_rate_by_the_margin(base, tmp_path):
    study = ap.tradeoff(
        base, write_task(tmp_path / "task", ROWS, 8), tmp_path / "t", sizes=(), top_k=(1,), layernorm=False,
        full=False, lora_ranks=(2,), seeds=1, learning_rates=(1e-5, 3e-2), epochs=(1,), batch_size=6,
        metric="margin", beta=0.3, threads=1, progress=False,
    )  # fmt: skip
    table = study.table.set_index("method")
    assert set(table.index) == {"lora", "top_layers"}
    for method, tried in study.trials.groupby("method"):
        assert table["mean"][method] == tried["score"].max()
        assert table["learning_rate"][method] == 3e-2


def test_the_pass_of_the_reference_is_foreseen(base, tmp_path, monkeypatch):
    """With a clock that ticks once a call, what is added is the time of one forward pass of all items."""
    given = [{**row, "ref_chosen_logps": -1.0, "ref_rejected_logps": -2.0} for row in ROWS]
    monkeypatch.setattr("adapter_probe.training.loop.time.perf_counter", count().__next__)
    found = []
    for name, rows in (("given", given), ("computed", ROWS)):
        request = request_of(base, write_task(tmp_path / name, rows, 8), "lora:r=2", epochs=1, batch_size=4)
        inputs = load_inputs(request)
        found.append(seconds_of(request, inputs, CPU))
    items, read = inputs.objective.train.lengths, inputs.objective.validation.lengths
    assert found[1] - found[0] == pytest.approx(items.sum() / read.sum())
