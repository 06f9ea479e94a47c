"""Language models in the training loop: what they save, read and are compared by."""

from __future__ import annotations

import numpy as np
import pytest
from learners import ROWS
from refusals import naming, refuses
from trainer import RATE
from trainings import losses_of, request_of, write_task
from transformers import AutoTokenizer, LlamaForCausalLM

import adapter_probe as ap
from adapter_probe.errors import AdapterProbeError

BATCH = 4
SHORT = {"epochs": 1, "batch_size": BATCH, "learning_rate": RATE, "progress": False}
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


@pytest.mark.parametrize(
    ("model", "data", "settings"),
    [
        ("llama", "chat", {"accumulate": 3}),
        ("bert", "tags", {"accumulate": 3}),
        pytest.param("llama", "chat", {"checkpointing": True}, marks=pytest.mark.slow),
    ],
)
def test_memory_is_saved_without_another_result(model, data, settings, learners, tmp_path):
    one = learners(model, data)
    plain = losses_of(request_of(one.base, one.task, "lora:r=4"), tmp_path / "plain")
    saving = losses_of(request_of(one.base, one.task, "lora:r=4", **settings), tmp_path / "saving")
    np.testing.assert_allclose(saving, plain, rtol=1e-5)


def test_a_baseline_is_a_model_of_transformers(learners, tmp_path):
    one = learners("llama", "sft")
    given = {"task": one.task, "out": tmp_path / "c", "method": "full", **SHORT}
    done = ap.train(one.base, **given)
    assert AutoTokenizer.from_pretrained(tmp_path / "c").get_vocab()
    found = one.validated(one.auto.from_pretrained(tmp_path / "c").eval())
    assert done.score == pytest.approx(np.mean([out.loss.item() for out in found]), rel=1e-5)
    assert ap.train(one.base, **given) == done


def test_the_columns_that_are_meant_are_trained_on_and_recorded(learners, tmp_path):
    """As those of a file with the usual names, which a study of the checkpoint then reads."""
    base = learners("llama", "sft").base
    rows = {"sft": ROWS["sft"], "other": [
        {"instruction": row["prompt"], "output": row["completion"], "input": "x"} for row in ROWS["sft"]
    ]}  # fmt: skip
    scores = {}
    for name, own in rows.items():
        columns = "" if name == "sft" else "prompt=instruction,completion=output"
        given = {"task": write_task(tmp_path / name, own, 8), "out": tmp_path / f"{name}-lora", **SHORT}
        done = ap.train(base, columns=columns, method="lora:r=2", **given)
        study = ap.ablate(tmp_path / f"{name}-lora", spans="single", progress=False)
        scores[name] = (done.score, study.summary.intact_score)
    assert scores["sft"] == scores["other"]
    write_task(tmp_path / "unread", [{**row, "input": "x"} for row in ROWS["sft"]], 8)
    with pytest.raises(AdapterProbeError, match=naming('"input"', "columns='prompt,completion'")):
        ap.train(base, task=tmp_path / "unread", out=tmp_path / "none", method="lora:r=2", progress=False)


def test_one_file_needs_something_to_validate_on(learners, tmp_path):
    one = learners("llama", "sft")
    given = {"task": one.task / "train.jsonl", "out": tmp_path / "c", "method": "lora:r=2", **SHORT}
    refuses(AdapterProbeError, ("validation_share=0.1",), ap.train, one.base, **given)
    done = ap.train(one.base, validation_share=0.25, **given)
    study = ap.ablate(tmp_path / "c", spans="single", progress=False)
    assert study.summary.intact_score == pytest.approx(done.score, rel=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("in_this_process")
def test_a_trade_off_of_language_models_takes_the_lowest_loss(learners, tmp_path):
    one = learners("llama", "sft")
    study = ap.tradeoff(
        one.base, one.task, tmp_path / "t", sizes=(), top_k=(1,), layernorm=False, lora_ranks=(2,),
        seeds=1, learning_rates=(1e-5, 1e-2), epochs=(1,), batch_size=BATCH, threads=1, progress=False,
    )  # fmt: skip
    table = study.table.set_index("method")
    for method, tried in study.trials.groupby("method"):
        assert table["mean"][method] == tried["score"].min()
        assert table["learning_rate"][method] == 1e-2
    every = {n: p.numel() for n, p in LlamaForCausalLM.from_pretrained(one.base).named_parameters()}
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


def test_a_pruned_checkpoint_records_its_score_on_all_validation_rows(learners, tmp_path):
    one, trained = learners("llama", "sft"), tmp_path / "trained"
    ap.train(one.base, task=one.task, out=trained, method="lora:r=2", epochs=1, progress=False)
    ap.prune(trained, tmp_path / "new", span=0, progress=False)
    found = ap.ablate(tmp_path / "new", spans="whole", progress=False).summary
    assert ap.inspect(tmp_path / "new")["scores"] == {found.metric: pytest.approx(found.intact_score)}
    some = ap.ablate(trained, spans="single", max_examples=5, out=tmp_path / "some", progress=False)
    ap.prune(trained, tmp_path / "fewer", within=1000, ablation=some, progress=False)
    assert ap.inspect(tmp_path / "fewer")["scores"] == {}


@pytest.mark.slow
@pytest.mark.usefixtures("in_this_process")
def test_a_suite_of_an_encoder_decoder(learners, tmp_path):
    file = tmp_path / "tasks.toml"
    one = learners("t5", "answers")
    file.write_text(SUITE.format(base=one.base, task=one.task))
    study = ap.suite(file, tmp_path / "out", progress=False)
    table = study.tradeoff.table.set_index("method")
    assert set(table.index) == {"lora", "top_layers", "layernorm_only", "full"}
    every = {n: p.numel() for n, p in one.auto.from_pretrained(one.base).named_parameters()}
    assert table["trained_parameters"]["full"] == sum(every.values())
    assert set(study.init_sweep.trials["score"] > 0) == {True}
    for number, ablation in enumerate(study.ablations["sft"]):
        scores = ap.inspect(tmp_path / f"out/checkpoints/sft/seed-{number}")["scores"]
        assert scores == {"nll": pytest.approx(ablation.summary.intact_score, rel=1e-6)}
        assert set(ablation.spans["stack"]) == {"encoder", "decoder"}
