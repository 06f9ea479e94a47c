"""The files of lm-evaluation-harness: fields, scores, and its own files and table where it is installed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from lm_eval_cases import CHOICE, MOST, PAGE, PAGES, QUESTIONS, opened, write_lora, write_task
from peft_folders import written
from refusals import names, naming

import adapter_probe
from adapter_probe.errors import DataError

ROWS = [
    {"context": f"Q: {one['q']}\nA:", "choices": one["options"], "gold": one["right"]} for one in QUESTIONS
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lora(tmp_path_factory.mktemp("gpt2"))


def files_of(folder: Path) -> dict[str, tuple[dict, list[dict]]]:
    """Results and samples of every model."""
    found = {}
    for place in folder.iterdir():
        (results,), (samples,) = place.glob("results_*.json"), place.glob("samples_*.jsonl")
        lines = [json.loads(line) for line in samples.read_text("utf-8").splitlines()]
        found[place.name] = json.loads(results.read_text("utf-8")), lines
    return found


def test_scores_and_samples_are_those_of_the_study(checkpoint, tmp_path):
    study = adapter_probe.ablate(
        checkpoint, data=written(tmp_path, ROWS), out=tmp_path / "out", progress=False,
        lm_eval_json=tmp_path / "files",
    )  # fmt: skip
    found = files_of(tmp_path / "files")
    assert {"lora", "lora-all-adapters-off"} <= set(found)
    results, samples = found["lora"]
    scores = results["results"]["rows"]
    assert scores["acc,none"] == study.summary.intact_score
    assert found["lora-all-adapters-off"][0]["results"]["rows"]["acc,none"] == study.summary.removed_score
    right = [sample["acc"] for sample in samples]
    mean = sum(right) / len(right)
    spread = (sum((one - mean) ** 2 for one in right) / (len(right) - 1) / len(right)) ** 0.5
    assert scores["acc_stderr,none"] == pytest.approx(spread, rel=1e-12)
    assert [s["prompt_hash"] for s in samples] == [
        hashlib.sha256(row["context"].encode()).hexdigest() for row in ROWS
    ]
    assert samples[1]["arguments"]["gen_args_2"] == {"arg_0": ROWS[1]["context"], "arg_1": " aé"}
    values = [float(resp[0][0]) for resp in samples[1]["resps"]]
    assert values == pytest.approx(study.results.outputs[0, 1].tolist(), rel=1e-6)
    assert results["n-samples"]["rows"] == {"original": 5, "effective": 5}


def test_samples_are_compared_row_by_row(checkpoint, tmp_path, capsys):
    data, options = written(tmp_path, ROWS), {"spans": "single", "out": tmp_path / "out"}
    adapter_probe.ablate(checkpoint, data=data, lm_eval_json=tmp_path / "files", progress=False, **options)
    (path,) = (tmp_path / "files" / "lora").glob("samples_*.jsonl")
    lines = path.read_text("utf-8").splitlines()
    sample = json.loads(lines[0])
    sample["resps"][0][0][0] = str(float(sample["resps"][0][0][0]) - 0.5)
    other = tmp_path / "samples.jsonl"
    other.write_text("\n".join([*reversed(lines[2:]), json.dumps(sample)]), encoding="utf-8")
    capsys.readouterr()
    adapter_probe.ablate(checkpoint, data=data, lm_eval_samples=other, **options)
    said = capsys.readouterr().err
    assert any(names(line, "4 of 5 rows", "0.5 nats") for line in said.splitlines())
    assert "acc is " in said
    strange = tmp_path / "strange.jsonl"
    for text, facts in (
        (
            lines[0].replace("gen_args_0", "x").replace('"Q:', '"R:'),
            ("--lm-eval-samples", "none", "5 rows"),
        ),
        ('{"arguments": 3}', ("line 1", "lm-evaluation-harness")),
        ("no json", ("line 1", "log-likelihoods")),
    ):
        strange.write_text(text, encoding="utf-8")
        with pytest.raises(DataError, match=naming(str(strange), *facts)):
            adapter_probe.ablate(checkpoint, data=data, lm_eval_samples=strange, progress=False, **options)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ({"layers": "0-0"}, "lora-layers-0-0-switched-off"),
        ({"strength": 0.5}, "lora-all-scaled-by-0.5"),
        ({"sites": "attention"}, "lora-all-attention-switched-off"),
    ],
)
def test_models_are_named_by_what_was_done_to_them(checkpoint, asked, name, tmp_path):
    study = adapter_probe.ablate(
        checkpoint, data=written(tmp_path, ROWS), out=tmp_path / "out", progress=False,
        lm_eval_json=tmp_path / "files", **asked,
    )  # fmt: skip
    found = files_of(tmp_path / "files")
    assert "lora-all-adapters-off" not in found
    assert found[name][0]["results"]["rows"]["acc,none"] == study.summary.removed_score


def test_lines_end_at_line_feeds_alone(checkpoint, tmp_path):
    """Unicode has other ends of lines, which JSON may contain."""
    rows = [{**ROWS[0], "context": "a\u2028b\x85c"}, *ROWS[1:]]
    asked = {"data": written(tmp_path, rows), "spans": "whole", "progress": False}
    adapter_probe.ablate(checkpoint, lm_eval_json=tmp_path / "files", out=tmp_path / "a", **asked)
    (samples,) = (tmp_path / "files" / "lora").glob("samples_*.jsonl")
    adapter_probe.ablate(checkpoint, lm_eval_samples=samples, out=tmp_path / "b", **asked)


def test_rows_without_a_metric_of_the_harness_are_one_line(checkpoint, tmp_path):
    data = written(tmp_path, [{"prompt": "a", "completion": " b"}])
    with pytest.raises(DataError, match=naming("lm-evaluation-harness", "nll", "greedy_accuracy")):
        adapter_probe.ablate(
            checkpoint, data=data, out=tmp_path / "out", progress=False, lm_eval_json=tmp_path / "files"
        )


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "about"), [(QUESTIONS, CHOICE), (PAGES, PAGE)], ids=["choice", "rolling"])
def test_the_harness_takes_our_files_and_we_take_its_samples(
    rows, about, checkpoint, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    lm_eval = pytest.importorskip("lm_eval")
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.models.huggingface import HFLM
    from lm_eval.utils import make_table

    task = write_task(tmp_path / "tasks", "tiny", rows, about)
    model, tokenizer = opened(checkpoint)
    wrapped = HFLM(pretrained=model, tokenizer=tokenizer, max_length=MOST, device="cpu", batch_size=1)
    tracker = EvaluationTracker(output_path=str(tmp_path / "theirs"))
    run = lm_eval.simple_evaluate(wrapped, tasks=[task], bootstrap_iters=0, evaluation_tracker=tracker)
    samples = run.pop("samples")
    tracker.save_results_aggregated(results=run, samples=samples)
    tracker.save_results_samples(task_name="tiny", samples=samples["tiny"])
    ((theirs, lines),) = files_of(tmp_path / "theirs").values()
    (path,) = (tmp_path / "theirs").glob("*/samples_*.jsonl")
    study = adapter_probe.ablate(
        checkpoint, task=f"lm-eval:{task}", out=tmp_path / "out", lm_eval_json=tmp_path / "ours",
        lm_eval_samples=path,
    )  # fmt: skip
    said = capsys.readouterr().err
    assert f"{len(rows)} of {len(rows)} rows" in said
    ours, own = files_of(tmp_path / "ours")["lora"]
    assert make_table(ours).count("\n") == make_table(theirs).count("\n")
    for name in ("versions", "n-shot", "higher_is_better", "n-samples", "group_subtasks", "task_hashes"):
        assert ours[name] == theirs[name], name
    assert ours["configs"].keys() == theirs["configs"].keys()
    for name, value in theirs["results"]["tiny"].items():
        if "stderr" not in name:
            expected = value if isinstance(value, (str, int)) else pytest.approx(value, rel=1e-5)
            assert ours["results"]["tiny"][name] == expected, name
    assert ours["results"]["tiny"].keys() == theirs["results"]["tiny"].keys()
    for one, two in zip(own, lines, strict=True):
        assert one.keys() == two.keys()
        same = ("doc_id", "doc", "target", "arguments", "filter", "doc_hash", "prompt_hash", "target_hash")
        assert [one[name] for name in same] == [two[name] for name in same]
    assert study.summary.metric in ("accuracy", "word_perplexity")
