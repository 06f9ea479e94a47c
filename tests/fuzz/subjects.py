"""What a user can hand in: how a folder of it is laid out, which files change, which command reads them."""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from language_models import judge_rows, write, write_rows
from mutations import ODD
from safetensors.torch import load_file, save_file
from truth import assert_same, examples_of, native_logits, peft_logits, switched_logits

FIXTURES = Path(__file__).resolve().parents[1] / "checkpoints" / "fixtures"
ROWS = (("w1 w2 w3", 0), ("w9", 1), ("w4 w40 w7 w7 w12", 2), ("w30 w31", 0))
NO_FIGURES = """
import adapter_probe.figures.gallery
adapter_probe.figures.gallery.write_gallery = lambda *a, **k: []
"""


@dataclass(frozen=True)
class Subject:
    """One kind of input.

    Attributes:
        name: of the test.
        files: patterns of what changes, relative to the folder.
        lay: ``(folder, sources)`` puts the whole input there.
        command: arguments of the program, which runs in the folder.
        judge: ``(folder, what was changed)`` raises AssertionError where an accepted input gave wrong
            numbers, and anything else where the reference finds no sense in the input.
        share: of the mutations.
        on_results: whether the changed files are results, in ``out``.
        reseal: ``(folder, generator)`` may write the changed tensors' checksum into the description.
        before: Python to run in the program's process first.
    """

    name: str
    files: tuple[str, ...]
    lay: Callable[[Path, Path], None]
    command: tuple[object, ...]
    judge: Callable[[Path, str], None]
    share: float = 1.0
    on_results: bool = False
    reseal: Callable[[Path, random.Random], None] | None = None
    before: str = NO_FIGURES


def copy(source: Path, target: Path) -> None:
    """A folder's files, without results inside."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("ablation*", "training", "expected.npz"))


def predictions(place: Path) -> dict[str, np.ndarray]:
    with np.load(place / "out" / "predictions.npz") as archive:
        return dict(archive)


def check_scores(place: Path, logits: np.ndarray, labels: np.ndarray) -> None:
    """The tables against the logits: the intact accuracy, or the count of what is not finite."""
    summary = json.loads((place / "out" / "summary.json").read_text())
    finite = np.isfinite(logits).all(axis=(1, 2))
    if finite[0]:
        right = float((logits[0].argmax(-1) == labels).mean())
        assert abs(summary["intact_score"] - right) < 1e-12, f"intact {summary['intact_score']}, not {right}"
    else:
        assert summary["intact_score"] is None, f"a score from what is not finite: {summary['intact_score']}"
    bad = int((~finite).sum())
    assert bad == len(summary["nonfinite_examples"]), f"{bad} variants not finite, and not said"


def check_ablation(place: Path, texts: list[str], labels: list[int], right: np.ndarray) -> None:
    """Predictions against logits ``[spans, examples, labels]``, and the scores with them."""
    found = predictions(place)
    assert found["labels"].tolist() == labels, f"labels {found['labels'].tolist()}, not {labels}"
    assert_same(found["logits"], right, "logits")
    check_scores(place, found["logits"], np.array(labels))


# --- checkpoints and bases


def lay_native(place: Path, sources: Path) -> None:
    """A native checkpoint, its base, and a few rows."""
    copy(sources / "trained", place / "checkpoint")
    copy(sources / "base", place / "base")
    shutil.copy(sources / "rows.jsonl", place / "rows.jsonl")


ABLATE = ("ablate", "checkpoint", "--base", "base", "--out", "out", "--data")


def judge_native(place: Path, _done: str) -> None:
    spans = predictions(place)["spans"]
    about = json.loads((place / "checkpoint" / "adapter_probe.json").read_text("utf-8-sig"))
    (rows,) = place.glob("rows.*")
    texts, labels = examples_of(rows, about["task"]["label_names"])
    right = native_logits(place / "checkpoint", place / "base", texts, spans)
    check_ablation(place, texts, labels, right)


def reseal_native(place: Path, draw: random.Random) -> None:
    """Half of the changed tensors come with their checksum, as if they had been trained so."""
    file, about = place / "checkpoint" / "delta.safetensors", place / "checkpoint" / "adapter_probe.json"
    if draw.random() < 0.5:
        text = about.read_text("utf-8", errors="surrogateescape")
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        about.write_text(
            re.sub(r'("delta_sha256": )"[0-9a-f]{64}"', rf'\1"{digest}"', text),
            "utf-8",
            errors="surrogateescape",
        )


def foreign(case: str, base: str) -> Callable[[Path, Path], None]:
    def lay(place: Path, _sources: Path) -> None:
        copy(FIXTURES / case, place / "checkpoint")
        copy(FIXTURES / "bases" / base, place / "base")
        names = ("bad", "fair", "good") if case.startswith("adapterhub") else (0, 1, 2)
        rows = [{"text": text, "label": names[label]} for text, label in ROWS]
        write(place / "rows.jsonl", rows)

    return lay


# What changes no number: bookkeeping, training, what the tensors say as well, and what belongs to products of
# Kronecker factors (phm_layer), which none of these adapters has.
INERT = re.compile(
    r"(model_name|model_class|name|version|model_type|config_id|dropout|init_weights|hidden_size|inference_mode|"
    r"base_model_name_or_path|revision|peft_version|lora_dropout|id2label|label2id|activation_function|"
    r"init_weights_seed|future|phm(?!_layer)|hypercomplex)"
)


def judge_foreign(place: Path, done: str) -> None:
    found = predictions(place)
    texts, labels = [text for text, _ in ROWS], [label for _, label in ROWS]
    if (place / "checkpoint" / "head_config.json").exists():
        head = json.loads((place / "checkpoint" / "head_config.json").read_text("utf-8-sig"))
        numbers = head.get("label2id") or head["config"]["label2id"]
        labels = [int(numbers[("bad", "fair", "good")[label]]) for label in labels]
    right, length = switched_logits(place / "checkpoint", place / "base", texts, found["spans"])
    check_ablation(place, texts, labels, right)
    theirs = None
    if (place / "checkpoint" / "adapter_model.safetensors").exists():
        theirs = peft_logits(place / "checkpoint", place / "base", texts, length)
    if theirs is not None:
        assert_same(found["logits"][0], theirs, "logits by PEFT")
    elif done.startswith(("adapter_config", "head_config")) and "->" in done and not INERT.search(done):
        with np.load(place / "undisturbed" / "predictions.npz") as archive:
            same = np.allclose(archive["logits"], found["logits"], equal_nan=True)
        assert not same, "the changed setting changed no number"


CHECKPOINT = ("checkpoint/*.json", "checkpoint/*.safetensors", "checkpoint/*.bin")
BASE = ("base/*.json", "base/*.json", "base/*.safetensors")


# --- data


def lay_data(suffix: str) -> Callable[[Path, Path], None]:
    """As `lay_native`, with the rows in a file of another format."""

    def lay(place: Path, sources: Path) -> None:
        lay_native(place, sources)
        rows = [json.loads(line) for line in (place / "rows.jsonl").read_text().splitlines()]
        (place / "rows.jsonl").unlink()
        write(place / f"rows{suffix}", rows)

    return lay


def lay_squad(place: Path, _sources: Path) -> None:
    copy(FIXTURES / "adapterhub" / "qa-static", place / "checkpoint")
    copy(FIXTURES / "bases" / "bert", place / "base")
    asked = [("w1 w2", "w3 w4 w5 w6", "w4", 3), ("w9", "w10 w11 w12", "w11 w12", 4)]
    paragraphs = [
        {
            "context": context,
            "qas": [{"id": str(i), "question": question, "answers": [{"text": text, "answer_start": at}]}],
        }
        for i, (question, context, text, at) in enumerate(asked)
    ]
    (place / "rows.json").write_text(
        json.dumps({"version": "1.1", "data": [{"title": "a", "paragraphs": paragraphs}]})
    )


def judge_squad(place: Path, _done: str) -> None:
    data = json.loads((place / "rows.json").read_bytes().decode("utf-8-sig"))["data"]
    asked = [(q, p["context"]) for article in data for p in article["paragraphs"] for q in p["qas"]]
    summary = json.loads((place / "out" / "summary.json").read_text())
    assert summary["n_examples"] == len(asked), f"{summary['n_examples']} examples, not {len(asked)}"
    for question, context in asked:
        for answer in question["answers"]:
            at = answer["answer_start"]
            assert type(at) is int, f"an answer starts at {at!r}"
            # A character or two beside, as happens in SQuAD, is let pass; the score is by the text alone.
            near = [shift for shift in range(-2, 3) if context.startswith(answer["text"], max(0, at + shift))]
            assert near, "not in the text"


# --- language models


def lay_causal(family: str, form: str, suffix: str) -> Callable[[Path, Path], None]:
    def lay(place: Path, sources: Path) -> None:
        for name in ("checkpoint", "base"):
            copy(sources / f"causal-{family}" / name, place / name)
        write_rows(place / f"rows{suffix}", form)

    return lay


def on_causal(name: str, family: str, form: str, suffix: str, share: float, *files: str) -> Subject:
    """A language model: its rows, or the files that are named."""
    rows = f"rows{suffix}"
    return Subject(
        name, files or (rows,), lay_causal(family, form, suffix), (*ABLATE, rows), judge_rows(rows), share
    )


def lay_recorded(place: Path, sources: Path) -> None:
    """A configuration with little but the name of the base, which no option gives."""
    lay_causal("llama", "choices", ".jsonl")(place, sources)
    file = place / "checkpoint" / "adapter_config.json"
    kept = ("peft_type", "task_type", "r", "lora_alpha", "target_modules", "revision")
    fields = {name: value for name, value in json.loads(file.read_text()).items() if name in kept}
    file.write_text(json.dumps({**fields, "base_model_name_or_path": "base"}))


def rename_base(place: Path, draw: random.Random) -> None:
    """Mostly the changed configuration names another base, too, if it still is one."""
    file = place / "checkpoint" / "adapter_config.json"
    with suppress(ValueError, AttributeError, TypeError):
        fields = dict(json.loads(file.read_text("utf-8")).items())
        if draw.random() < 0.7:
            fields["base_model_name_or_path"] = draw.choice((*ODD, "./base", "checkpoint", "a/b"))
        file.write_text(json.dumps(fields))


def lay_wrapped(place: Path, sources: Path) -> None:
    """Names as torch.compile and FSDP leave them."""
    lay_causal("llama", "choices", ".jsonl")(place, sources)
    file = place / "checkpoint" / "adapter_model.safetensors"
    names = {name: name.replace(".self_attn", "._fsdp_wrapped_module.self_attn") for name in load_file(file)}
    save_file({f"_orig_mod.{names[name]}": tensor for name, tensor in load_file(file).items()}, file)


def lay_several(place: Path, sources: Path) -> None:
    """The adapter in a subfolder, below another one."""
    lay_causal("llama", "choices", ".jsonl")(place, sources)
    copy(place / "checkpoint", place / "checkpoint" / "ref")
    file = place / "checkpoint" / "adapter_model.safetensors"
    save_file({name: 2 * tensor for name, tensor in load_file(file).items()}, file)


# --- suites

SUITE = """base = "base"
[[tasks]]
task = "./task"
name = "first"
max_train = 16
[[tasks]]
task = "./task"
name = "second"
epochs = [1, 2]
[init-sweep]
tasks = ["second"]
stds = [0.01, 0.1]
size = 2
seeds = 2
learning_rates = [1e-3]
[tradeoff]
sizes = [2, 4]
top_k = [1]
layernorm = false
seeds = 2
epochs = [1]
learning_rates = [1e-3, 1e-2]
[tradeoff.rates]
full = [1e-4]
[ablation]
tasks = ["first"]
size = 2
seeds = 3
epochs = 1
"""
REQUESTS_ONLY = """
import json, os
import adapter_probe.studies.suite as suite
read = suite._read
def requests_only(file):
    about, requests = read(file)
    os.makedirs("out", exist_ok=True)
    def row(one):
        chosen = one.settings
        return [one.task.name, one.method.name, chosen.seed, chosen.epochs, chosen.learning_rate]
    rows = {study: list(map(row, ones)) for study, ones in requests.items()}
    with open("out/requests.json", "w") as file: json.dump(rows, file)
    raise SystemExit(0)
suite._read = requests_only
"""


def lay_suite(place: Path, sources: Path) -> None:
    lay_sweep(place, sources)
    (place / "suite.toml").write_text(SUITE)


def judge_suite(place: Path, _done: str) -> None:
    """The trainings of every study, counted from Python's own reading of the file."""
    try:
        import tomllib
    except ModuleNotFoundError:
        import tomli as tomllib
    said = tomllib.loads((place / "suite.toml").read_text("utf-8-sig"))
    found = json.loads((place / "out" / "requests.json").read_text())
    tasks = {task.get("name", "task"): task for task in said["tasks"]}
    assert len(tasks) == len(said["tasks"]), "two tasks of one name"
    parts = {"tradeoff": said.get("tradeoff"), "init-sweep": said.get("init-sweep", said.get("init_sweep"))}
    for study, part in parts.items():
        rows = found.pop(study, [])
        right = [] if part is None else trials_of(study, part, tasks)
        assert sorted(map(json.dumps, rows)) == sorted(map(json.dumps, right)), f"{study}: {rows}"
    checkpoints = found.pop("checkpoints", [])
    if (part := said.get("ablation")) is not None:
        names = part.get("tasks") or tasks
        right = [[name, seed] for name in names for seed in range(part.get("seeds", 1))]
        assert sorted([row[0], row[2]] for row in checkpoints) == sorted(right), f"ablation: {checkpoints}"
    assert not found, f"unknown studies: {sorted(found)}"


def trials_of(study: str, part: dict, tasks: dict[str, dict]) -> list[list]:
    """Task, method, seed, epochs and learning rate of every trial."""
    rates = part.get("rates", {})
    if study == "init-sweep":
        methods = ["adapters"] * len(part.get("stds", range(8)))
    else:
        methods = ["adapters"] * len(part.get("sizes", range(10)))
        methods += ["top_layers"] * len(part.get("top_k", range(4)))  # of a base of three layers
        methods += ["layernorm_only"] * part.get("layernorm", True) + ["full"] * part.get("full", True)
        methods += ["head_only"] * part.get("head_only", False)
    usual = [3e-4] if study == "init-sweep" else [3e-5, 3e-4, 3e-3]
    return [
        [name, method, seed, epochs, rate]
        for name in part.get("tasks") or tasks
        for method in methods
        for rate in rates.get(method) or part.get("learning_rates") or usual
        for epochs in tasks[name].get("epochs") or part.get("epochs", [3])
        for seed in range(part.get("seeds", 3))
    ]


# --- conversions


def judge_converted(place: Path, _done: str) -> None:
    """What was written gives the logits of PEFT, or where PEFT does not open the source, of the source."""
    import adapter_probe

    texts = [text for text, _ in ROWS]
    written = adapter_probe.open(place / "out", base=place / "base")
    length = written._opened.description.max_length
    right = peft_logits(place / "checkpoint", place / "base", texts, length)
    if right is None:
        right = adapter_probe.open(place / "checkpoint", base=place / "base").logits(texts)
    assert_same(written.logits(texts), right, "logits")


# --- results


SWEEP = (
    "init-sweep", "--stds", "1e-2:0.1", "--size", 2, "--seeds", 1, "--epochs", 1, "--learning-rates", 0.01,
    "--max-train", 32, "--workers", 1,
)  # fmt: skip
TRADEOFF = (
    "tradeoff", "--sizes", "2", "--top-k", "1", "--no-layernorm", "--seeds", 1, "--epochs", 1,
    "--learning-rates", 0.01, "--max-train", 32, "--workers", 1,
)  # fmt: skip
READ = (".csv", ".svg", ".txt", ".md", ".tex", ".npz", ".html", ".safetensors")


def lay_sweep(place: Path, sources: Path) -> None:
    copy(sources / "base", place / "base")
    shutil.copytree(sources / "task", place / "task")


def judge_sweep(place: Path, done: str) -> None:
    table = "sweep.csv" if (place / "undisturbed" / "sweep.csv").exists() else "tradeoff.csv"
    for name in ("trials.csv", table) if done else ():
        found, right = ((place / folder / name).read_bytes() for folder in ("out", "undisturbed"))
        assert found == right, f"{name} differs from the undisturbed one"


def copy_results(place: Path) -> dict[str, bytes]:
    """What people read, by its path: tables, figures and captions without what names the folder."""
    paths = [path for path in sorted(place.rglob("*")) if path.is_file() and path.suffix in READ]
    return {str(path.relative_to(place)): path.read_bytes() for path in paths if path.parent.name != "parts"}


def judge_resumed(place: Path, done: str) -> None:
    if not done:
        return
    found, right = copy_results(place / "out"), copy_results(place / "undisturbed")
    for name in ("spans.csv", "layers.csv", "removable.csv", "predictions.npz"):
        assert found[name] == right[name], f"{name} differs from the undisturbed one"


def judge_drawn(place: Path, _done: str) -> None:
    """Drawn from changed results, which may be other numbers: something was written."""
    assert any(path.is_file() for path in (place / "drawn").rglob("*")), "nothing was written"


AVERAGE = """
import sys
import adapter_probe as ap
try:
    ap.average(["out", "seed1"]).save("drawn", formats="svg")
except ap.AdapterProbeError as error:
    print(f"adapter-probe: {error}", file=sys.stderr)
    raise SystemExit(2)
raise SystemExit(0)
"""
FILES = ("*.csv", "manifest.json", "summary.json", "checksums.json", "predictions.npz")
RESULTS = tuple(f"out/{name}" for name in FILES)


def lay_drawn(place: Path, sources: Path) -> None:
    """Finished results of an ablation in ``out``, of a second one in ``other``, of a sweep in ``sweep``."""
    lay_native(place, sources)
    for name in ("out", "other", "seed1", "sweep", "tradeoff"):
        shutil.copytree(sources / name, place / name)
    shutil.copytree(sources / "trained" / "ablation", place / "checkpoint" / "ablation")


def lay_drawn_causal(place: Path, sources: Path) -> None:
    shutil.copytree(sources / "causal-out", place / "out")


def drawn(
    name: str, files: tuple[str, ...], share: float, *command: str, lay: Callable = lay_drawn
) -> Subject:
    """A command that makes something of finished results."""
    return Subject(name, files, lay, command, judge_drawn, share, on_results=True, before="")


def resumed(name: str, command: tuple[object, ...], share: float) -> Subject:
    """A study of trainings that goes on."""
    files = ("out/*.csv", "out/*.json", "out/trials/*/*.json")
    whole = (*command, "--base", "base", "--task", "task", "--out", "out")
    return Subject(name, files, lay_sweep, whole, judge_sweep, share, on_results=True)


def on_foreign(case: str, base: str, share: float) -> Subject:
    """A checkpoint of another library."""
    files = (*CHECKPOINT, *CHECKPOINT, *BASE)
    command = (*ABLATE, "rows.jsonl")
    return Subject(case.replace("/", "-"), files, foreign(case, base), command, judge_foreign, share)


def on_data(suffix: str) -> Subject:
    """A data file."""
    file = f"rows{suffix}"
    return Subject(f"data-{suffix[1:]}", (file,), lay_data(suffix), (*ABLATE, file), judge_native, 1.5)


NATIVE = (*ABLATE, "rows.jsonl")
SVG = ("--format", "svg", "--out", "drawn")
TRADEOFF_FILES = ("tradeoff/*.csv", "tradeoff/*.json", "tradeoff/trials/*/trial.json")
SWEEP_FILES = ("sweep/trials.csv", "sweep/sweep.csv", "sweep/*.json")
SUBJECTS = [
    Subject("native-checkpoint", CHECKPOINT, lay_native, NATIVE, judge_native, 3.0, reseal=reseal_native),
    Subject("native-base", BASE, lay_native, NATIVE, judge_native, 3.0),
    on_foreign("peft/lora", "bert", 2.0),
    on_foreign("peft/lora-patterns", "bert", 1.5),
    on_foreign("peft/ia3", "bert", 1.0),
    on_foreign("peft/roberta-lora", "roberta", 0.5),
    on_foreign("peft/gpt2-lora", "gpt2", 0.5),
    on_foreign("peft/llama-lora", "llama", 0.5),
    on_foreign("peft/deberta-lora", "deberta-v2", 0.5),
    on_foreign("adapterhub/pfeiffer", "bert", 1.5),
    on_foreign("adapterhub/houlsby", "bert", 1.5),
    on_foreign("adapterhub/lora", "bert", 1.0),
    on_foreign("adapterhub/union", "bert", 1.0),
    on_foreign("adapterhub/flex-pooled", "bert", 1.0),
    on_causal("causal-llama", "llama", "choices", ".jsonl", 1.5, *CHECKPOINT, *CHECKPOINT, *BASE),
    on_causal("causal-gpt2", "gpt2", "completions", ".jsonl", 1.0, *CHECKPOINT, *CHECKPOINT, *BASE),
    on_causal("causal-grown", "grown", "choices", ".jsonl", 1.0, *CHECKPOINT),
    Subject(
        "causal-recorded",
        ("checkpoint/adapter_config.json",),
        lay_recorded,
        ("ablate", "checkpoint", "--out", "out", "--data", "rows.jsonl"),
        judge_rows("rows.jsonl"),
        reseal=rename_base,
    ),
    Subject("causal-wrapped", CHECKPOINT, lay_wrapped, NATIVE, judge_rows("rows.jsonl")),
    Subject(
        "causal-several",
        (*CHECKPOINT, "checkpoint/ref/*.json", "checkpoint/ref/*.safetensors"),
        lay_several,
        (*NATIVE, "--adapter", "ref"),
        judge_rows("rows.jsonl", "ref"),
    ),
    on_causal("lm-choices", "llama", "choices", ".jsonl", 1.0),
    on_causal("lm-questions", "llama", "questions", ".json", 0.5),
    on_causal("lm-pairs", "llama", "pairs", ".csv", 1.0),
    on_causal("lm-completions", "gpt2", "completions", ".tsv", 1.0),
    on_causal("lm-chats", "llama", "chats", ".jsonl", 0.5),
    on_causal("lm-texts", "gpt2", "texts", ".jsonl", 0.5),
    on_causal("lm-plain", "llama", "texts", ".txt", 0.3),
    *(on_data(suffix) for suffix in (".csv", ".tsv", ".jsonl", ".json")),
    Subject("squad", ("rows.json",), lay_squad, (*ABLATE, "rows.json"), judge_squad),
    Subject(
        "suite",
        ("suite.toml",),
        lay_suite,
        ("suite", "suite.toml", "--out", "out"),
        judge_suite,
        2.0,
        before=REQUESTS_ONLY,
    ),
    Subject(
        "convert",
        CHECKPOINT,
        foreign("peft/lora", "bert"),
        ("convert", "checkpoint", "out", "--to", "peft", "--base", "base"),
        judge_converted,
        1.0,
    ),
    Subject(
        "resumed", (*RESULTS, "out/parts/*.npz"), lay_native, NATIVE, judge_resumed, 2.0, on_results=True
    ),
    resumed("resumed-sweep", SWEEP, 1.0),
    resumed("resumed-tradeoff", TRADEOFF, 0.5),
    drawn("tradeoff-figures", TRADEOFF_FILES, 1.0, "figures", "tradeoff", *SVG),
    drawn("tradeoff-report", TRADEOFF_FILES, 0.7, "report", "tradeoff", "-o", "drawn/report.html"),
    drawn("lm-figures", RESULTS, 0.7, "figures", "out", *SVG, lay=lay_drawn_causal),
    drawn("figures", RESULTS, 1.5, "figures", "out", *SVG),
    drawn("sweep-figures", (*SWEEP_FILES, "sweep/trials/*/trial.json"), 1.5, "figures", "sweep", *SVG),
    drawn("report", (*RESULTS, *SWEEP_FILES), 1.5, "report", "out", "sweep", "-o", "drawn/report.html"),
    drawn("compare", RESULTS, 1.0, "compare", "out", "other", *SVG),
    Subject("average", RESULTS, lay_drawn, (), judge_drawn, 0.7, on_results=True, before=AVERAGE),
    drawn(
        "prune",
        tuple(f"checkpoint/ablation/{name}" for name in FILES),
        1.0,
        *("prune", "checkpoint", "--base", "base", "--within", "50", "--out", "drawn"),
    ),
]
