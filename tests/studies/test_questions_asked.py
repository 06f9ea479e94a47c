"""What a study asks, in words and as a number: columns, what is said, a loop with Transformers."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from byte_tokenizer import byte_tokenizer
from peft_folders import KV, reference, saved, written
from scorer import likelihood, n_alike
from typer.testing import CliRunner

import adapter_probe as ap
from adapter_probe.analysis.summary import AblationSummary
from adapter_probe.cli.main import app

TARGETS = ["q_proj", "v_proj", "down_proj"]
TOKENIZER = byte_tokenizer(True)
TEXTS = ["ab cab", "a b c", "cab! a", "bb a", "so ab"]
BESIDE = [{"id": n, "source": "web"} for n in range(5)]
ORCA = [{"question": f"{t}?", "chosen": f" {t[:2]}", "rejected": f" {t[2:]}"} for t in TEXTS]
ASKED = [{"prompt": f"{t}?", "response": f" {t[:3]}", **b} for t, b in zip(TEXTS, BESIDE)]
CHOSEN = [
    {"question": t, "choices": [t[:2], t[2:], "ba"], "answer": n % 3, **BESIDE[n]}
    for n, t in enumerate(TEXTS)
]
CLASSES = [{"text": t, "label": n % 3, "title": "t", **BESIDE[n]} for n, t in enumerate(TEXTS)]


def ids(text: str, framed: bool = True) -> list[int]:
    return TOKENIZER(text, add_special_tokens=framed)["input_ids"]


def after(model: torch.nn.Module, prompt: str, answer: str, other: str | None = None) -> float:
    """The log-likelihood of an answer from where the tokens of both differ from the prompt's."""
    whole, before = ids(prompt + answer), ids(prompt)
    beside = whole if other is None else ids(prompt + other)
    same = min(n_alike(before, one) for one in (whole, beside))
    return likelihood(model, whole[:same], whole[same:])


def margin(model: torch.nn.Module) -> float:
    """Of answers to their question, each with the EOS token, as in TRL."""
    return float(np.mean([
        after(model, row["question"], f"{row['chosen']}</s>", row["rejected"])
        - after(model, row["question"], f"{row['rejected']}</s>", row["chosen"])
        for row in ORCA
    ]))  # fmt: skip


def loss(model: torch.nn.Module) -> float:
    """Nats a token of the responses after their prompts."""
    wholes = [(ids(row["prompt"]), ids(row["prompt"] + row["response"])) for row in ASKED]
    sums = [likelihood(model, before, whole[len(before) :]) for before, whole in wholes]
    return float(-np.mean([one / (len(whole) - len(before)) for one, (before, whole) in zip(sums, wholes)]))


def bits(model: torch.nn.Module) -> float:
    """Bits a byte of the prompts alone; as in lm-evaluation-harness, their own BOS is scored after one."""
    sums = [likelihood(model, ids("")[:1], ids(row["prompt"])) for row in ASKED]
    return -sum(sums) / np.log(2) / sum(len(row["prompt"].encode()) for row in ASKED)


def chosen(model: torch.nn.Module) -> float:
    """The share of questions whose right choice is the likeliest."""
    right = []
    for row in CHOSEN:
        before = ids(f"Question: {row['question']}\nAnswer:")
        wholes = [ids(f"Question: {row['question']}\nAnswer: {choice}") for choice in row["choices"]]
        sums = [likelihood(model, before, whole[len(before) :]) for whole in wholes]
        right.append(int(np.argmax(sums)) == row["answer"])
    return float(np.mean(right))


def classified(model: torch.nn.Module) -> float:
    with torch.no_grad():
        read = [torch.tensor([[*ids(row["text"], False), TOKENIZER.eos_token_id]]) for row in CLASSES]
        logits = [model(input_ids=one).logits[0] for one in read]
    return float(np.mean([int(own.argmax()) == row["label"] for own, row in zip(logits, CLASSES)]))


# The head, the rows, further arguments, the loop, the words of the question, and what is not read.
CASES: dict[str, tuple[str, list[dict[str, Any]], dict[str, Any], Any, tuple[str, ...]]] = {
    "preferences after a question": (
        "CAUSAL_LM", ORCA, {"columns": "chosen,rejected,prompt=question", "metric": "margin"}, margin,
        ("5 rows of given rows: log-likelihood of `chosen` above `rejected`, after `prompt`; margin",
         "prompts begin with <s>; each answer ended by </s>"),
    ),
    "responses to prompts": (
        "CAUSAL_LM", ASKED, {"columns": ["prompt", "completion=response", "id"]}, loss,
        ("5 rows of given rows: likelihood of `completion` after `prompt`; negative log-likelihood",
         "prompts begin with <s>; no end token is scored", "not read: id"),
    ),
    "prompts as texts, on purpose": (
        "CAUSAL_LM", ASKED, {"columns": "prompt"}, bits,
        ("5 rows of given rows: likelihood of `prompt` as a text; bits per byte",
         "texts begin with <s> after another <s>, and are scored from the second one on; "
         "no end token is scored"),
    ),
    "choices": (
        "CAUSAL_LM", CHOSEN, {}, chosen,
        ("5 rows of given rows: the likeliest of `choices` after `question`, right is `answer`; accuracy",
         "not read: id, source"),
    ),
    "classes": (
        "SEQ_CLS", CLASSES, {}, classified,
        ("5 rows of given rows: class `label` of `text`; accuracy", "texts as text </s>",
         "not read: title, id, source"),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A LoRA with each head on a decoder of three layers."""
    made = {}
    for head, settings in {"CAUSAL_LM": KV, "SEQ_CLS": {**KV, "num_labels": 3}}.items():
        made[head] = saved(tmp_path_factory.mktemp(head), "llama", settings, head, TARGETS)
    return made


@pytest.mark.parametrize("case", CASES)
def test_the_number_is_that_of_the_question_which_is_said(checkpoints, tmp_path, capsys, case):
    head, rows, asked, loop, words = CASES[case]
    asked = {**asked, "data": rows, "spans": "single", "precision": "float64", "out": tmp_path / "out"}
    study = ap.ablate(checkpoints[head], **asked)
    model = reference(checkpoints[head], head).double()
    assert study.summary.intact_score == pytest.approx(loop(model), rel=1e-6)  # outputs are kept in float32
    said = capsys.readouterr().err
    for line in words:
        assert line in study.question
        assert line in said
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["question"] == list(study.question)
    assert ap.load(tmp_path / "out").question == study.question
    plan = ap.ablate.plan(checkpoints[head], **asked)
    assert plan.question == study.question


def test_report_and_captions_say_what_is_asked_and_not_read(checkpoints, tmp_path):
    rows = [{"prompt": text, "completion": " ab", "source": "web"} for text in TEXTS]
    study = ap.ablate(checkpoints["CAUSAL_LM"], data=rows, spans="single", out=tmp_path / "out")
    page = html.unescape(ap.report(study.folder, out=tmp_path / "report.html").path.read_text())
    study.save(tmp_path / "figures", formats="svg")
    captions = "".join(path.read_text() for path in (tmp_path / "figures").glob("*.txt"))
    unread = "not read: source"
    assert unread in study.question
    for line in (study.question[0], unread):
        assert line in page
        assert line in captions


def test_a_training_and_a_smaller_checkpoint_say_their_question(tiny_base, tiny_task, tmp_path, capsys):
    training = ap.train(base=tiny_base("bert"), task=tiny_task, size=4, epochs=1, out=tmp_path / "made")
    said, (first, *_) = capsys.readouterr().err, training.question
    assert first.startswith("train: ")
    assert "class `label` of `text`; the loss" in first
    assert any(line.startswith("validation: ") and line.endswith("; accuracy") for line in training.question)
    assert all(line in said for line in training.question)
    assert (
        ap.train(base=tiny_base("bert"), task=tiny_task, size=4, epochs=1, out=tmp_path / "made") == training
    )
    smaller = ap.prune(tmp_path / "made", span=0, out=tmp_path / "smaller", base=tiny_base("bert"))
    assert "class `label` of `text`; accuracy" in smaller.question[0]
    assert smaller.question[0] in capsys.readouterr().err


def test_a_summary_of_an_older_version_has_no_question(tmp_path):
    old = {"task": "t", "split": "validation", "study": "ablated", "metric": "accuracy", "n_examples": 3,
           "intact_score": 0.5, "removed_delta_points": 0.0, "majority_score": 0.5}  # fmt: skip
    assert AblationSummary.from_dict(old, tmp_path / "summary.json").question is None


def test_notes_name_arguments_in_python_and_options_in_commands(tmp_path, capsys):
    """The file of a study has the words of whoever made it."""
    folder = saved(tmp_path, "llama", KV, "CAUSAL_LM", ["v_proj"])
    file = written(tmp_path, [{"text": text} for text in TEXTS])
    study = ap.ablate(folder, data=file, spans="single")
    assert any("apply_chat_template=True" in line for line in study.question)
    assert not any("--" in line for line in (*study.question, *ap.ablate.plan(folder, data=file).question))
    assert "apply_chat_template=True" in capsys.readouterr().err
    assert study.summary.question == study.question
    options = ["--data", str(file), "--spans", "single"]
    options += ["--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["ablate", str(folder), *options])
    assert "--apply-chat-template" in done.stderr
    assert "apply_chat_template=" not in done.stderr
