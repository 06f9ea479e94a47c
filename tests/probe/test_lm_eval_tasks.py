"""Tasks of lm-evaluation-harness: the numbers are those of the library's own run on PEFT's model."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from byte_tokenizer import TEMPLATE
from lm_eval_cases import (
    ANSWER,
    CHOICE,
    LAST,
    LASTS,
    LAYERS,
    MOST,
    NUMBERS,
    PAGE,
    PAGES,
    QUESTIONS,
    opened,
    write_lora,
    write_task,
)
from refusals import names, naming, refuses

import adapter_probe as ap
from adapter_probe.checkpoints.opening import open_any
from adapter_probe.data.lm_eval_tasks import with_absolute_paths
from adapter_probe.data.task_of_files import data_name
from adapter_probe.errors import DataError

OURS = {"acc": "accuracy", "perplexity": "continuation_perplexity"}


@pytest.fixture(scope="module", autouse=True)
def _offline(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("peft")
    return write_lora(tmp_path_factory.mktemp("gpt2"))


def likeliest(checkpoint: Path) -> dict[str, str]:
    """A row whose continuation the model itself gives."""
    model, tokenizer = opened(checkpoint)
    texts = ["".join(pair) for pair in itertools.product("cdefghijklmnopqrstuvwxyz0123456789", repeat=2)]
    with torch.no_grad():
        found = model(torch.tensor([tokenizer.encode(text) for text in texts])).logits[:, -1].argmax(-1)
    for text, token in zip(texts, found.tolist()):
        last = tokenizer.decode(token)
        if last.strip() and tokenizer.encode(text + last) == [*tokenizer.encode(text), token]:
            return {"text": text, "last": last}
    raise AssertionError("the model gives no whole letter")


def harness(checkpoint: Path, task: str, off: range, **prompts) -> dict:
    """The library's own run on PEFT's model, its scaling set to zero in the layers `off`."""
    lm_eval = pytest.importorskip("lm_eval")
    from lm_eval.models.huggingface import HFLM

    model, tokenizer = opened(checkpoint)
    for number in off:
        for module in model.base_model.model.transformer.h[number].modules():
            if isinstance(getattr(module, "scaling", None), dict):
                module.scaling["default"] = 0.0
    wrapped = HFLM(pretrained=model, tokenizer=tokenizer, max_length=MOST, device="cpu", batch_size=1)
    found = lm_eval.simple_evaluate(wrapped, tasks=[task], bootstrap_iters=0, **prompts)
    return next(iter(found["results"].values())) | {"samples": found["samples"]["tiny"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "about"),
    [
        (QUESTIONS, {**CHOICE, "metric_list": [{"metric": m} for m in ("acc", "acc_norm", "acc_bytes")]}),
        (QUESTIONS, {**CHOICE, "num_fewshot": 1, "fewshot_split": "test"}),
        (LASTS, LAST),
        (PAGES, PAGE),
    ],
    ids=["choice", "few-shot", "last word", "rolling"],
)
def test_numbers_are_those_of_the_librarys_own_run(rows, about, checkpoint, tmp_path):
    more = [likeliest(checkpoint)] if rows is LASTS else []
    task = write_task(tmp_path / "tasks", "tiny", rows + more, about)
    expected = {off: harness(checkpoint, task, range(*off)) for off in ((0, 0), (1, 2))}
    for theirs in (metric["metric"] for metric in about["metric_list"]):
        ours = OURS.get(theirs, theirs)
        if theirs == "acc" and rows is LASTS:
            ours = "greedy_accuracy"
        study = ap.ablate(
            checkpoint, task=f"lm-eval:{task}", metric=ours, out=tmp_path / "out", progress=False
        )
        span = float(study.spans.set_index(["first", "last"]).loc[(1, 1), "score"])
        found = {(0, 0): study.summary.intact_score, (1, 2): span}
        for off, score in found.items():
            assert score == pytest.approx(expected[off][f"{theirs},none"], rel=1e-5), (theirs, off)
        assert study.summary.metric == ours
        if ours == "greedy_accuracy":
            assert 0 < study.results.scored.greedy.mean() < 1
        assert ap.load(study.folder).results.predictions.tolist() == study.predictions.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    "prompts",
    [
        {"apply_chat_template": True},
        {"apply_chat_template": True, "num_fewshot": 2},
        {"apply_chat_template": True, "num_fewshot": 1, "fewshot_as_multiturn": False},
        {"apply_chat_template": True, "num_fewshot": 1, "system_instruction": "b a"},
        {"num_fewshot": 1, "system_instruction": "b a"},
    ],
    ids=["template", "turns", "one turn", "system", "no template"],
)
@pytest.mark.parametrize(("rows", "about"), [(QUESTIONS, CHOICE), (LASTS, LAST)], ids=["choice", "last word"])
def test_prompts_of_a_chat_are_those_of_the_librarys_own_run(prompts, rows, about, checkpoint, tmp_path):
    task = write_task(tmp_path / "tasks", "tiny", rows, {**about, "fewshot_split": "test"})
    usual = {"fewshot_as_multiturn": bool(prompts.get("apply_chat_template"))}  # of its own command
    expected = harness(checkpoint, task, range(0), **usual | prompts)
    asked = {"task": f"lm-eval:{task}", "precision": "float64", "progress": False}
    study = ap.ablate(checkpoint, out=tmp_path / "out", **asked, **prompts)
    samples = sorted(expected["samples"], key=lambda sample: sample["doc_id"])
    for ours, sample in zip(study.results.outputs[0], samples, strict=True):
        theirs = [float(one[0][0]) for one in sample["resps"]]
        assert ours[: len(theirs)].tolist() == pytest.approx(theirs, rel=1e-5)
    if rows is QUESTIONS:
        assert study.summary.intact_score == expected["acc,none"]
    plain = ap.ablate(checkpoint, out=tmp_path / "plain", **asked)
    assert plain.results.outputs[0].tolist() != study.results.outputs[0].tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    "prompts",
    [{}, {"num_fewshot": 1}, {"apply_chat_template": True, "num_fewshot": 1}],
    ids=["plain", "few-shot", "chat"],
)
def test_written_answers_are_those_of_the_librarys_own_run(prompts, checkpoint, tmp_path):
    letters = [{"q": q, "is": one} for q in ("a", "b", "cab") for one in "ab"]  # so that some are right
    task = write_task(tmp_path / "tasks", "tiny", NUMBERS + letters, {**ANSWER, "fewshot_split": "test"})
    usual = {"fewshot_as_multiturn": bool(prompts.get("apply_chat_template"))}
    expected = {
        off: harness(checkpoint, task, range(*off), **usual | prompts) for off in ((0, 0), (0, LAYERS))
    }
    asked = {"task": f"lm-eval:{task}", "out": tmp_path / "out", "progress": False, **prompts}
    for metric in ("exact_match,first", "exact_match,whole"):
        study = ap.ablate(checkpoint, metric=metric, spans="whole", **asked)
        assert study.summary.metric == f"per text:{metric}"
        assert study.summary.intact_score == expected[0, 0][metric]
        assert study.summary.removed_score == expected[0, LAYERS][metric]
    for variant, off in (("intact", (0, 0)), (study.results.row_names[1], (0, LAYERS))):
        samples = {one["doc_id"]: one["resps"][0][0] for one in expected[off]["samples"]}
        written = study.texts[study.texts["variant"] == variant]["text"].tolist()
        assert written == [samples[number] for number in range(len(written))]


@pytest.mark.slow
def test_a_task_that_wants_no_worked_examples_keeps_none(checkpoint, tmp_path):
    pytest.importorskip("lm_eval")
    task = write_task(tmp_path / "tasks", "tiny", QUESTIONS, {**CHOICE, "num_fewshot": 0})
    options = {"spans": "suffix", "progress": False}
    plain, asked = (
        ap.ablate(checkpoint, task=f"lm-eval:{task}", out=tmp_path / name, **options, **more)
        for name, more in (("a", {}), ("b", {"num_fewshot": 2}))
    )
    assert plain.results.outputs.tolist() == asked.results.outputs.tolist()


def test_settings_of_prompts_that_say_nothing_are_one_line(checkpoint, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "completion": " b"}\n')
    for options, message in (
        ({"data": rows, "apply_chat_template": True}, ("apply_chat_template=True",)),
        ({"data": rows, "num_fewshot": 1}, ("num_fewshot=", "task='lm-eval:NAME'")),
        ({"task": "lm-eval:a", "num_fewshot": -1}, ("num_fewshot must", "0", "-1")),
        (
            {"task": "lm-eval:a", "fewshot_as_multiturn": True},
            ("fewshot_as_multiturn=", "apply_chat_template=True"),
        ),
    ):
        asked = {"out": tmp_path / "out", "progress": False, **options}
        refuses(DataError, message, ap.ablate, checkpoint, **asked)


def test_a_tokenizer_without_a_template_is_one_line(checkpoint, tmp_path):
    base = shutil.copytree(checkpoint.parent / "base", tmp_path / "base")
    (base / "chat_template.jinja").unlink()
    with pytest.raises(DataError, match=naming("lm-eval:a", "apply_chat_template=True")):
        ap.ablate(checkpoint, base=base, task="lm-eval:a", apply_chat_template=True, out=tmp_path / "out")


def test_rows_without_the_template_of_a_chat_model_are_remarked_on(checkpoint, tmp_path, capsys):
    rows = {
        "plain": {"prompt": "a", "completion": " b"},
        "chat": {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    }
    base = shutil.copytree(checkpoint.parent / "base", tmp_path / "base")
    (base / "chat_template.jinja").unlink()
    said = {}
    for name, place in (("plain", None), ("chat", None), ("plain", base)):
        file = tmp_path / f"{name}.jsonl"
        file.write_text(json.dumps(rows[name]) + "\n")
        out = tmp_path / f"{name}-{place is None}"
        ap.ablate(checkpoint, base=place, data=file, out=out, spans="single")
        said[name, place] = capsys.readouterr().err
    remark = "without", "chat template", "messages", "apply_chat_template=True", "task='lm-eval:NAME'"
    remarked = [any(names(line, *remark) for line in text.splitlines()) for text in said.values()]
    assert remarked == [True, False, False]


@pytest.mark.slow
def test_several_tasks_are_groups_and_a_folder_is_all_its_tasks(checkpoint, tmp_path):
    pytest.importorskip("lm_eval")
    folder = tmp_path / "tasks"
    one, two = (write_task(folder, name, QUESTIONS[:n], CHOICE) for name, n in (("one", 2), ("two", 3)))
    options: dict = {"spans": "suffix", "progress": False}
    named = ap.ablate(checkpoint, task=f"lm-eval:{one},{two}", out=tmp_path / "a", **options)
    assert named.results.groups.tolist() == ["one"] * 2 + ["two"] * 3
    whole = ap.ablate(checkpoint, task=f"lm-eval:{folder}", out=tmp_path / "b", **options)
    assert sorted(whole.results.groups) == sorted(named.results.groups)
    with pytest.raises(DataError, match=naming("'one'")):
        ap.ablate(checkpoint, task=f"lm-eval:{one},{folder}", **options)
    assert whole.summary.intact_score == named.summary.intact_score


@pytest.mark.slow
def test_a_tasks_own_counts_are_kept(checkpoint, tmp_path):
    """As in wikitext, whose words are those of another text than the one that is scored."""
    pytest.importorskip("lm_eval")
    folder = tmp_path / "tasks"
    task = write_task(folder, "tiny", PAGES, PAGE)
    (folder / "own.py").write_text(
        "def count(doc, results):\n    return {'word_perplexity': (results[0], 3), 'byte_perplexity': 1.0}\n"
    )
    path = Path(task)
    path.write_text(path.read_text("utf-8") + "process_results: !function own.count\n", encoding="utf-8")
    with pytest.raises(DataError, match=naming("'tiny'")):  # its byte_perplexity is odd
        ap.ablate(checkpoint, task=f"lm-eval:{task}", out=tmp_path / "o", progress=False)
    (folder / "own.py").write_text(
        "def count(doc, results):\n    return {'word_perplexity': (results[0], 3)}\n"
    )
    sys.modules.pop("own", None)
    expected = harness(checkpoint, task, range(0))
    study = ap.ablate(checkpoint, task=f"lm-eval:{task}", out=tmp_path / "out", progress=False)
    assert study.results.scored_with.tolist() == [3, 3]
    assert study.summary.intact_score == pytest.approx(expected["word_perplexity,none"], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "changes", "message"),
    [
        (QUESTIONS, {"output_type": "generate_until"}, ("'acc'", "'acc_norm'", "per text")),
        (QUESTIONS, {"metric_list": [{"metric": "f1"}]}, ("'f1'",)),
        (QUESTIONS, {"metric_list": [{"metric": "acc", "aggregation": "median"}]}, ("'acc'",)),
        (QUESTIONS, {"doc_to_target": "{{[right, 0, 1]}}"}, ("row 1", "3")),
        ([QUESTIONS[0], {**QUESTIONS[0], "right": 7}], {}, ("row 2", "0", "3")),
    ],
    ids=["generation", "f1", "median", "several", "none"],
)
def test_what_cannot_be_scored_is_refused_by_name(rows, changes, message, checkpoint, tmp_path):
    pytest.importorskip("lm_eval")
    task = write_task(tmp_path / "tasks", "tiny", rows, {**CHOICE, **changes})
    asked = {"task": f"lm-eval:{task}", "out": tmp_path / "out", "progress": False}
    refuses(DataError, (*message, "'tiny'"), ap.ablate, checkpoint, **asked)


def test_names_are_settled_and_mistakes_are_one_line(checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert with_absolute_paths("lm-eval:piqa,own/t.yaml") == f"lm-eval:piqa,{tmp_path / 'own' / 't.yaml'}"
    assert data_name([with_absolute_paths("lm-eval:piqa,own/t.yaml")]) == "piqa, t.yaml"
    assert with_absolute_paths("rows.jsonl") == str(tmp_path / "rows.jsonl")
    for options, message in (
        ({"task": "piqa"}, ("task must", "lm-eval:NAME", "'piqa'", "data=")),
        ({"task": "lm-eval:piqa", "data": "a.jsonl"}, ("data=", "a.jsonl", "task=", "lm-eval:piqa")),
    ):
        refuses(DataError, message, ap.ablate, checkpoint, progress=False, **options)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.setitem(sys.modules, "lm_eval.tasks", None)
    facts = ("lm-eval:piqa", "'lm-eval'", "pip install 'adapter-probe[lm-eval]'")
    asked = {"task": "lm-eval:piqa", "out": tmp_path / "out", "progress": False}
    refuses(DataError, facts, ap.ablate, checkpoint, **asked)


def test_a_chat_template_that_was_saved_alone_with_the_adapter_is_used(checkpoint, tmp_path):
    rows = tmp_path / "rows.jsonl"
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    rows.write_text(json.dumps({"messages": chat}) + "\n")
    own = shutil.copytree(checkpoint, tmp_path / "own")
    (own / "chat_template.jinja").write_text(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    )
    refused = shutil.copytree(checkpoint, tmp_path / "refused")
    (refused / "chat_template.jinja").write_text("{{ raise_exception('no turns') }}")
    with pytest.raises(DataError, match="no turns"):
        ap.ablate(refused, base=checkpoint.parent / "base", data=rows, progress=False)
    opened = open_any(own)
    assert opened.own_tokenizer
    assert any(names(note, "own tokenizer", "base", "chat template") for note in opened.notes)
    assert open_any(checkpoint).tokenizer.chat_template == TEMPLATE
    assert opened.tokenizer.apply_chat_template(chat, tokenize=False) == "<user>a<assistant>b<assistant>"
