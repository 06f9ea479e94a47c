"""Language models in the training loop, against PEFT, the Trainer of Transformers and `ablate`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from byte_tokenizer import byte_tokenizer
from refusals import naming
from tiers import slow_unless
from trainer import RATE, assert_losses_of_trainer, order_of_batches, saved_moved
from trainings import assert_resumes, assert_trains_in_bfloat16, losses_of, request_of, write_task
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

import adapter_probe as ap
from adapter_probe.errors import AdapterProbeError
from adapter_probe.training.request import build_model, load_inputs

BATCH, CPU = 4, torch.device("cpu")
SHORT = {"epochs": 1, "batch_size": BATCH, "learning_rate": RATE, "progress": False}
WORDS = ["red", "green", "blue", "fast", "slow", "warm", "cold", "near", "far", "old", "new", "big"]


def prose(n: int, seed: int) -> str:
    return " ".join(np.random.default_rng(seed).choice(WORDS, n))


ROWS: dict[str, list[dict]] = {
    "choices": [
        {"question": f"{prose(2 + i % 3, i)}?", "answer": i % 2,
         "choices": [prose(1 + j, 9 * i + j) for j in range(2 + i % 2)]}
        for i in range(20)
    ],
    "sft": [
        {"prompt": f"{prose(1 + i % 4, i)}:", "completion": f" {prose(3 - i % 3, 50 + i)}"} for i in range(20)
    ],
    "pairs": [{"sentence_good": prose(3, i), "sentence_bad": prose(4, 70 + i)} for i in range(20)],
    "chat": [
        {"messages": [
            {"role": "user", "content": prose(2, i)}, {"role": "assistant", "content": prose(2, i + 1)},
            {"role": "user", "content": prose(1, i + 2)}, {"role": "assistant", "content": prose(3, i + 3)},
        ]}
        for i in range(20)
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def bases(tmp_path_factory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def make(family: str = "llama") -> Path:
        if family not in made:
            folder, tokenizer = tmp_path_factory.mktemp(family), byte_tokenizer(True)
            shared = {
                "vocab_size": len(tokenizer),
                "bos_token_id": tokenizer.bos_token_id,
                "eos_token_id": None,
            }
            torch.manual_seed(0)
            if family == "llama":
                model = LlamaForCausalLM(LlamaConfig(
                    **shared, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                    num_attention_heads=4,
                    num_key_value_heads=2, tie_word_embeddings=True,
                ))  # fmt: skip
            else:
                still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
                model = GPT2LMHeadModel(
                    GPT2Config(**shared, n_embd=16, n_layer=2, n_head=4, n_positions=128, **still)
                )
            made[family] = saved_moved(model, tokenizer, folder)
        return made[family]

    return make


@pytest.fixture(scope="module")
def tasks(tmp_path_factory) -> Callable[[str], Path]:
    return lambda form: write_task(tmp_path_factory.mktemp(form) / form, ROWS[form], 8)


def masked(tokenizer, row: dict) -> tuple[list[int], list[int]]:
    """Tokens and labels of a row as a user of the Trainer makes them: the prompt's labels are -100."""
    if "messages" in row:
        ids = tokenizer(
            tokenizer.apply_chat_template(row["messages"], tokenize=False), add_special_tokens=False
        )
        ids = ids["input_ids"]
        labels = [-100] * len(ids)
        for number, message in enumerate(row["messages"]):
            if message["role"] == "assistant":
                before, after = (
                    tokenizer(
                        tokenizer.apply_chat_template(row["messages"][:n], tokenize=False, **more),
                        add_special_tokens=False,
                    )["input_ids"]
                    for n, more in ((number, {"add_generation_prompt": True}), (number + 1, {}))
                )
                for place in range(len(before), len(after)):
                    labels[place] = ids[place]
        return ids, labels
    if "choices" in row:
        prompt, answer = f"Question: {row['question']}\nAnswer:", f" {row['choices'][row['answer']]}"
    elif "sentence_good" in row:
        prompt, answer = "", f" {row['sentence_good']}"  # as `ablate` scores it
    else:
        prompt, answer = row["prompt"], row["completion"]
    context, whole = (tokenizer(text)["input_ids"] for text in (prompt, prompt + answer))
    return whole, [-100] * len(context) + whole[len(context) :]


def batches_of(base: Path, rows: list[dict], epochs: int, parts: int) -> list[dict]:
    """What the Trainer of Transformers is given, in the order of batches that the loop has."""
    encoded = [masked(AutoTokenizer.from_pretrained(base), row) for row in rows]
    lengths = np.array([len(ids) for ids, _ in encoded])

    def padded(batch: np.ndarray) -> dict[str, torch.Tensor]:
        width = max(lengths[batch])
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        labels, mask = torch.full_like(ids, -100), torch.zeros_like(ids)
        for place, example in enumerate(batch):
            own, wanted = encoded[example]
            ids[place, : len(own)], labels[place, : len(own)] = torch.tensor(own), torch.tensor(wanted)
            mask[place, : len(own)] = 1
        return {"input_ids": ids, "labels": labels, "attention_mask": mask}

    order = order_of_batches(lengths, BATCH, epochs)
    return [padded(part) for batch in order for part in np.array_split(batch, parts)]


@pytest.mark.parametrize(
    ("form", "method", "family", "epochs", "parts"),
    [
        ("sft", "lora:r=4", "llama", 1, 1),
        *(
            pytest.param(form, method, family, 10, parts, marks=pytest.mark.slow)
            for form, method, family, parts in (
                ("sft", "lora:r=4", "llama", 1),
                ("sft", "lora:r=4", "llama", 2),
                ("choices", "dora:r=2", "llama", 1),
                ("pairs", "ia3", "llama", 1),
                ("chat", "lora:r=4", "gpt2", 1),
                ("chat", "full", "llama", 2),
                ("choices", "top_layers", "llama", 1),
                ("choices", "bitfit", "gpt2", 1),
                ("sft", "layernorm_only", "llama", 1),
                ("sft", "prompt_tuning:num_virtual_tokens=3", "llama", 1),
            )
        ),
    ],
)
def test_the_losses_are_those_of_the_trainer_of_transformers(
    form, method, family, epochs, parts, bases, tasks, tmp_path
):
    request = request_of(bases(family), tasks(form), method, epochs=epochs, accumulate=parts)
    batches = batches_of(bases(family), ROWS[form], epochs, parts)
    assert len(assert_losses_of_trainer(request, batches, tmp_path, parts)) == 5 * epochs


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["bitfit", "layernorm_only", "ln_tuning", "top_layers", "full", "lora:r=4"]
)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_every_method_trains_in_bfloat16(family, method, bases, tasks, tmp_path):
    if (family, method) == ("llama", "bitfit"):
        pytest.skip("it has no biases")
    assert_trains_in_bfloat16(bases(family), tasks("sft"), method, tmp_path)


def test_what_baselines_train(bases, tasks):
    names = {}
    for method in ("full", "top_layers", "layernorm_only"):
        request = request_of(bases(), tasks("sft"), method)
        names[method] = set(build_model(request, load_inputs(request).base, CPU).named_delta())
    every = {name for name, _ in LlamaForCausalLM.from_pretrained(bases()).named_parameters()}
    assert names["full"] == every
    assert names["top_layers"] == {n for n in every if ".layers.1." in n} | {"model.norm.weight"}
    assert names["layernorm_only"] == {n for n in every if "norm" in n}


@pytest.mark.parametrize(
    "settings",
    slow_unless({"accumulate": 3}.__eq__, [{"accumulate": 3}, {"checkpointing": True}]),
    ids=str,
)
def test_memory_is_saved_without_another_result(settings, bases, tasks, tmp_path):
    task = tasks("chat")
    plain = losses_of(request_of(bases(), task, "lora:r=4"), tmp_path / "plain")
    saving = losses_of(request_of(bases(), task, "lora:r=4", **settings), tmp_path / "saving")
    np.testing.assert_allclose(saving, plain, rtol=1e-5)


@pytest.mark.parametrize("form", ["chat", "choices", "pairs", "sft"])
def test_the_loss_is_of_completions_alone(form, bases, tasks):
    encoded = load_inputs(request_of(bases(), tasks(form), "lora:r=4")).objective.train
    tokenizer = AutoTokenizer.from_pretrained(bases())
    for ids, scored, row in zip(encoded.input_ids, encoded.scored, ROWS[form], strict=True):
        whole, labels = masked(tokenizer, row)
        assert ids.tolist() == whole
        assert scored.tolist() == [place for place, label in enumerate(labels) if label != -100]


@pytest.mark.parametrize(
    ("form", "metric"),
    [("chat", "nll"),
     *(pytest.param(form, metric, marks=pytest.mark.slow) for form, metric in
       (("choices", "accuracy"), ("choices", "acc_norm"), ("pairs", "accuracy"), ("sft", "bits_per_byte"),
        ("sft", "greedy_accuracy"), ("sft", "token_accuracy")))],
)  # fmt: skip
def test_the_score_is_that_of_ablate_and_peft_loads_the_checkpoint(form, metric, bases, tasks, tmp_path):
    from peft import PeftModel

    task = tasks(form)
    given = {**SHORT, "epochs": 3, "metric": metric}
    done = ap.train(bases(), task=task, out=tmp_path / "c", method="lora:r=4", **given)
    assert done.majority_score is None
    best = min if metric in ("nll", "bits_per_byte") else max
    assert done.score == best(done.validation_scores)
    study = ap.ablate(tmp_path / "c", spans="single", progress=False)
    assert study.summary.intact_score == pytest.approx(done.score, rel=1e-5)
    assert study.summary.metric == metric
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(bases()), tmp_path / "c")
    tokenizer = AutoTokenizer.from_pretrained(bases())
    if metric == "nll":
        nats = []
        for row in ROWS["chat"][:8]:
            whole = tokenizer.apply_chat_template(row["messages"], tokenize=False)
            start = tokenizer.apply_chat_template(
                row["messages"][:3], tokenize=False, add_generation_prompt=True
            )
            ids = torch.tensor([tokenizer(whole, add_special_tokens=False)["input_ids"]])
            labels = ids.clone()
            labels[0, : len(tokenizer(start, add_special_tokens=False)["input_ids"])] = -100
            nats.append(loaded(input_ids=ids, labels=labels).loss.item())
        assert done.score == pytest.approx(np.mean(nats), rel=1e-5)


def test_a_baseline_is_a_model_of_transformers(bases, tasks, tmp_path):
    given = {"task": tasks("sft"), "out": tmp_path / "c", "method": "full", **SHORT}
    done = ap.train(bases(), **given)
    model, tokenizer = (c.from_pretrained(tmp_path / "c") for c in (AutoModelForCausalLM, AutoTokenizer))
    nats = []
    for row in ROWS["sft"][:8]:
        ids, labels = (torch.tensor([part]) for part in masked(tokenizer, row))
        nats.append(model(input_ids=ids, labels=labels).loss.item())
    assert done.score == pytest.approx(np.mean(nats), rel=1e-5)
    assert ap.train(bases(), **given) == done


@pytest.mark.slow
def test_an_interrupted_training_ends_in_the_same_bytes(bases, tasks, tmp_path):
    request = request_of(
        bases(), tasks("choices"), "lora:r=4,lora_dropout=0.1", accumulate=2, checkpointing=True
    )
    assert_resumes(request, tmp_path, 3)


@pytest.mark.parametrize(
    ("form", "options", "words"),
    [
        ("sft", {"method": "adapters"}, ("adapters",)),
        ("sft", {"metric": "accuracy"}, ("'accuracy'", "'completion'", "nll")),
        ("sft", {"method": "bitfit"}, ("bitfit",)),
    ],
)  # fmt: skip
def test_bad_input(form, options, words, bases, tasks, tmp_path):
    with pytest.raises(AdapterProbeError, match=naming(*words)) as caught:
        ap.train(bases(), task=tasks(form), out=tmp_path / "c", progress=False, **options)
    assert "\n" not in str(caught.value)


def test_the_columns_that_are_meant_are_trained_on_and_recorded(bases, tmp_path):
    """As those of a file with the usual names, which a study of the checkpoint then reads."""
    rows = {"sft": ROWS["sft"], "other": [
        {"instruction": row["prompt"], "output": row["completion"], "input": "x"} for row in ROWS["sft"]
    ]}  # fmt: skip
    scores = {}
    for name, own in rows.items():
        columns = "" if name == "sft" else "prompt=instruction,completion=output"
        given = {"task": write_task(tmp_path / name, own, 8), "out": tmp_path / f"{name}-lora", **SHORT}
        done = ap.train(bases(), columns=columns, method="lora:r=2", **given)
        study = ap.ablate(tmp_path / f"{name}-lora", spans="single", progress=False)
        scores[name] = (done.score, study.summary.intact_score)
    assert scores["sft"] == scores["other"]
    write_task(tmp_path / "unread", [{**row, "input": "x"} for row in ROWS["sft"]], 8)
    with pytest.raises(AdapterProbeError, match=naming('"input"', "columns='prompt,completion'")):
        ap.train(bases(), task=tmp_path / "unread", out=tmp_path / "none", method="lora:r=2", progress=False)


def test_one_file_needs_something_to_validate_on(bases, tasks, tmp_path):
    given = {"task": tasks("sft") / "train.jsonl", "out": tmp_path / "c", "method": "lora:r=2", **SHORT}
    with pytest.raises(AdapterProbeError, match=naming("validation_share=0.1")):
        ap.train(bases(), **given)
    done = ap.train(bases(), validation_share=0.25, **given)
    study = ap.ablate(tmp_path / "c", spans="single", progress=False)
    assert study.summary.intact_score == pytest.approx(done.score, rel=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("in_this_process")
def test_a_trade_off_of_language_models_takes_the_lowest_loss(bases, tasks, tmp_path):
    study = ap.tradeoff(
        bases(), tasks("sft"), tmp_path / "t", sizes=(), top_k=(1,), layernorm=False, lora_ranks=(2,),
        seeds=1, learning_rates=(1e-5, 1e-2), epochs=(1,), batch_size=BATCH, threads=1, progress=False,
    )  # fmt: skip
    table = study.table.set_index("method")
    for method, tried in study.trials.groupby("method"):
        assert table["mean"][method] == tried["score"].min()
        assert table["learning_rate"][method] == 1e-2
    every = {n: p.numel() for n, p in LlamaForCausalLM.from_pretrained(bases()).named_parameters()}
    assert table["trained_parameters"]["full"] == sum(every.values())
    top = sum(size for name, size in every.items() if ".layers.1." in name or name == "model.norm.weight")
    assert (
        table["trained_parameters"]["top_layers"]
        == table["trained_parameters_without_head"]["top_layers"]
        == top
    )
    front = study.pareto().set_index("method")
    assert front["on_frontier"]["lora"]  # the fewest parameters
    assert front["on_frontier"]["full"] == (
        table["mean"]["full"] < table["mean"][["lora", "top_layers"]].min()
    )
    points = study.aggregate.set_index("method")["p50_points"]
    assert points["lora"] == pytest.approx(-100 * (table["mean"]["lora"] - table["mean"]["full"]))


def test_a_pruned_checkpoint_records_its_score_on_all_validation_rows(bases, tasks, tmp_path):
    trained = tmp_path / "trained"
    ap.train(bases(), task=tasks("sft"), out=trained, method="lora:r=2", epochs=1, progress=False)
    ap.prune(trained, tmp_path / "new", span=0, progress=False)
    found = ap.ablate(tmp_path / "new", spans="whole", progress=False).summary
    assert ap.inspect(tmp_path / "new")["scores"] == {found.metric: pytest.approx(found.intact_score)}
    some = ap.ablate(trained, spans="single", max_examples=5, out=tmp_path / "some", progress=False)
    ap.prune(trained, tmp_path / "fewer", within=1000, ablation=some, progress=False)
    assert ap.inspect(tmp_path / "fewer")["scores"] == {}
