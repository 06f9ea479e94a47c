"""`adapter-probe ablate` end to end, against separate runs of the transformers model with hooks."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from exact import assert_close_in_float32
from refusals import names
from safetensors.torch import load_file
from sklearn.metrics import accuracy_score, matthews_corrcoef
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from adapter_probe.wording import ALL_OFF

N_LAYERS = 3
SPANS = [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)]


class BruteForce:
    """The transformers model, adapters as hooks, one forward a variant."""

    def __init__(self, checkpoint: Path, base: Path):
        self.tokenizer = AutoTokenizer.from_pretrained(base)
        self.delta = load_file(checkpoint / "delta.safetensors")
        self.model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=2).float().eval()
        self.pretrained = {name: p.clone() for name, p in self.model.state_dict().items()}

    def logits(self, texts: list[str], off: set[tuple[int, str]], pretrained_norms: bool) -> np.ndarray:
        """``[examples, labels]`` with the adapters at the sites `off` gone, each (layer, place)."""
        state = {**self.pretrained, **{k: v for k, v in self.delta.items() if ".adapter." not in k}}
        hooks = []
        for number, layer in enumerate(self.model.bert.encoder.layer):
            for place, output in (("attention", layer.attention.output), ("ffn", layer.output)):
                middle = "attention.output" if place == "attention" else "output"
                prefix = f"bert.encoder.layer.{number}.{middle}"
                if (number, place) not in off:
                    hooks.append(output.dense.register_forward_hook(self.adapter(prefix)))
                elif pretrained_norms:
                    names = [f"{prefix}.LayerNorm.{kind}" for kind in ("weight", "bias")]
                    state |= {name: self.pretrained[name] for name in names}
        self.model.load_state_dict(state)
        inputs = self.tokenizer(texts, padding=True, return_tensors="pt")
        with torch.no_grad():
            logits = self.model(**inputs).logits.numpy()
        for hook in hooks:
            hook.remove()
        return logits

    def adapter(self, prefix: str) -> Callable:
        weights = {name: self.delta[f"{prefix}.adapter.{name}"] for name in
                   ("down.weight", "down.bias", "up.weight", "up.bias")}  # fmt: skip

        def add(_module: object, _inputs: object, x: torch.Tensor) -> torch.Tensor:
            inner = F.gelu(F.linear(x, weights["down.weight"], weights["down.bias"]))
            return x + F.linear(inner, weights["up.weight"], weights["up.bias"])

        return add


@pytest.fixture(scope="module")
def brute_force(trained: Path, tiny_base: Callable[..., Path]) -> BruteForce:
    return BruteForce(trained, tiny_base("bert"))


def rows_of(file: Path) -> tuple[list[str], np.ndarray]:
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [row["text"] for row in rows], np.array([row["label"] == "positive" for row in rows], dtype=int)


def sites_off(span: tuple[int, int], places: tuple[str, ...], complement: bool) -> set[tuple[int, str]]:
    inside = range(span[0], span[1] + 1)
    return {(n, place) for n in range(N_LAYERS) for place in places if (n in inside) != complement}


@dataclass
class Ablated:
    """What a finished ablation left."""

    summary: dict
    spans: list[dict[str, str]]
    arrays: dict[str, np.ndarray]
    about: dict


@pytest.fixture
def ablate(program, trained, tmp_path) -> Callable[..., Ablated]:
    """``ablate(options...)``: run on the trained checkpoint into a fresh folder, read what it wrote."""

    def run(*options: object, run: Callable = program.undrawn) -> Ablated:
        outcome = run("ablate", trained, "--out", tmp_path / "out", "--json", *options)
        assert outcome.code == 0, outcome.stderr
        with open(tmp_path / "out" / "spans.csv", newline="") as file:
            spans = list(csv.DictReader(file))
        with np.load(tmp_path / "out" / "predictions.npz") as archive:  # no pickle inside
            arrays = dict(archive)
        return Ablated(json.loads(outcome.stdout), spans, arrays, json.loads(str(arrays.pop("about"))))

    return run


def check_spans(ablated: Ablated, logits: dict[tuple[int, int], np.ndarray], intact, labels, score) -> None:
    intact_score = score(labels, intact.argmax(1))
    assert list(ablated.spans[0]) == [
        "first", "last", "n_layers", "score", "delta_points", "n_examples", "ci_low_points", "ci_high_points",
        "p_value", "p_holm", "significant", "n_nonfinite", "bound_low_points", "interaction_points",
        "interaction_low_points", "interaction_high_points", "non_monotone",
    ]  # fmt: skip
    assert [(int(row["first"]), int(row["last"])) for row in ablated.spans] == SPANS
    for row, span in zip(ablated.spans, SPANS):
        expected = score(labels, logits[span].argmax(1))
        assert int(row["n_layers"]) == span[1] - span[0] + 1
        assert int(row["n_examples"]) == len(labels)
        assert float(row["score"]) == pytest.approx(expected, abs=1e-12)
        assert float(row["delta_points"]) == pytest.approx(100 * (expected - intact_score), abs=1e-9)
    assert ablated.summary["intact_score"] == pytest.approx(intact_score)


@pytest.mark.parametrize(
    ("options", "places", "complement", "pretrained", "split"),
    [
        pytest.param((), ("attention", "ffn"), False, False, "train", marks=pytest.mark.slow),
        (("--complement", "--sites", "ffn", "--layernorm", "pretrained"), ("ffn",), True, True, "validation"),
    ],
)
def test_every_example_under_every_variant(
    options, places, complement, pretrained, split, ablate, brute_force, tiny_task
):
    """`tests/probe/test_ablation.py` has further variants."""
    texts, labels = rows_of(tiny_task / f"{split}.jsonl")
    off = {span: sites_off(span, places, complement) for span in SPANS}
    wanted = {span: brute_force.logits(texts, sites, pretrained) for span, sites in off.items()}
    intact = brute_force.logits(texts, set(), pretrained)
    none = brute_force.logits(texts, sites_off((0, 2), places, False), pretrained)

    ablated = ablate("--split", split, *options)
    rows = [intact, *wanted.values(), *([none] if complement else [])]
    assert ablated.arrays["logits"].shape == (len(rows), len(texts), 2)
    assert_close_in_float32(ablated.arrays["logits"], rows, layers=3)
    assert np.array_equal(ablated.arrays["labels"], labels)
    assert ablated.arrays["spans"].tolist() == [
        [-1, -1],
        *map(list, SPANS),
        *([[-1, -1]] if complement else []),
    ]
    check_spans(ablated, wanted, intact, labels, accuracy_score)
    scores = {row["score"] for row in ablated.spans}
    assert len(scores) > 2, "the ablation should matter, or this test shows little"
    assert ablated.summary["removed_score"] == pytest.approx(accuracy_score(labels, none.argmax(1)))
    assert ablated.summary["majority_score"] == 0.5


def test_files_and_a_metric_of_their_own(ablate, brute_force, tiny_task):
    files = [tiny_task / f"{split}.jsonl" for split in ("validation", "train")]
    (texts, labels), (more, others) = map(rows_of, files)
    texts, labels = [*texts, *more], np.concatenate([labels, others])
    ablated = ablate("--data", files[0], "--data", files[1], "--metric", "mcc")
    assert np.array_equal(ablated.arrays["labels"], labels)
    wanted = {
        span: brute_force.logits(texts, sites_off(span, ("attention", "ffn"), False), False) for span in SPANS
    }
    check_spans(ablated, wanted, brute_force.logits(texts, set(), False), labels, matthews_corrcoef)
    assert ablated.summary["metric"] == "mcc"


# --- where things go


@pytest.fixture
def own(trained, tmp_path) -> Path:
    """A checkpoint that the test may write into."""
    return shutil.copytree(trained, tmp_path / "own")


@pytest.mark.slow
def test_streams(own, program):
    text = program("ablate", own)
    assert text.code == 0
    for part in ("intact", ALL_OFF, "majority class", "single-layer", "within 0.5", "within 1", "within 2",
                 str(own / "ablation" / "spans.csv")):  # fmt: skip
        assert part in text.stdout
    assert "%|" not in text.stdout  # the bar is for the terminal
    assert "ablate:" in text.stderr
    assert "tokens" in text.stderr
    machine = program("ablate", own, "--json")
    found = json.loads(machine.stdout)
    assert set(found) >= {"intact_score", "removed_score", "majority_score", "files"}
    assert machine.stderr.splitlines() == found["question"] != []  # the rest was there


@pytest.mark.slow
def test_one_folder_a_study(own, program, tiny_task, tmp_path):
    other = shutil.copy(tiny_task / "train.jsonl", tmp_path / "other.jsonl")
    for options in ((), ("--sites", "ffn"), ("--split", "train"), ("--max-examples", 8), ("--data", other)):
        assert program.undrawn("ablate", own, *options).code == 0
    assert len(list(own.glob("ablation*"))) == 5


def test_dry_run_counts_and_writes_nothing(own, program, tree):
    before = tree(own)
    outcome = program("ablate", own, "--dry-run", "--json")
    plan = json.loads(outcome.stdout)
    assert tree(own) == before
    assert (plan["layer_evaluations"], plan["n_variants"], plan["n_examples"]) == ([7, 13], 7, 64)
    assert (plan["parts_done"], plan["parts"]) == (0, 1)
    assert plan["seconds_left"] > plan["seconds_computing"] + 1 > 1  # it has to start, and to draw
    assert program.undrawn("ablate", own).code == 0
    before = tree(own)
    text = program("ablate", own, "--dry-run")
    assert (tree(own), text.stderr) == (before, "")
    for part in ("7 (6 spans)", "64", "21 per batch", "1 of 1"):
        assert part in text.stdout


# --- what is read


@pytest.mark.slow
def test_files_in_another_encoding(trained, program, tmp_path):
    rows = "text,label\nthe café was warm,positive\na dim thé,negative\n"
    found = []
    for encoding in ("utf-8", "latin-1"):
        file = tmp_path / f"{encoding}.csv"
        file.write_bytes(rows.encode(encoding))
        ablate = ("ablate", trained, "--data", file, "--out", tmp_path / encoding, "--encoding", encoding)
        assert program.undrawn(*ablate).code == 0
        found.append(json.loads((tmp_path / encoding / "manifest.json").read_text())["identity"]["data"])
    assert found[0] == found[1]
    refused = program("ablate", trained, "--data", tmp_path / "latin-1.csv", "--out", tmp_path / "x").refusal
    assert names(refused, f"{tmp_path / 'latin-1.csv'} line 2", "UTF-8", "--encoding", "latin-1")


def test_an_encoding_without_files_is_refused(trained, program):
    refused = program("ablate", trained, "--encoding", "latin-1").refusal
    assert names(refused, "--encoding latin-1", "--data", "checkpoint")


def test_an_empty_base_is_not_the_remembered_one(trained, program):
    refused = program("ablate", trained, "--base", "").refusal
    assert names(refused, "base ''", "--base")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak memory from /proc")
def test_the_memory_of_statistics_and_figures_is_counted(trained, tmp_path):
    """What a dry run says is near what the system has counted when the study is done, in new processes."""
    code = (
        "import sys; from adapter_probe.cli.main import main\n"
        "try:\n    main()\nfinally:\n"
        "    print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0], file=sys.stderr)\n"
    )

    def peak(*more: str) -> tuple[dict, int]:
        arguments = ["ablate", trained, "--out", tmp_path / "out", "--json", *more]
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout), 1024 * int(done.stderr.split()[-1])

    told, planning = peak("--dry-run")
    _, taken = peak()
    assert taken > 1.1 * planning, "a model so small that what follows is what matters"
    assert taken / 1.3 < told["peak_memory_bytes"] < 1.3 * taken
