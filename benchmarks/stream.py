"""Tasks that arrive one after another: adapters on one base in memory, against fine-tuning the whole model.

    python benchmarks/stream.py CHECKPOINT CHECKPOINT ... [--fine-tune FOLDER] [--examples 200] [--rounds 20]

The checkpoints are of adapters on one base, in the order in which their tasks arrive. After each arrival the
predictions of every earlier task are computed again and compared bit by bit. With `--fine-tune` one model is
fine-tuned whole on the same tasks in the same order, each training going on where the last one ended, and is
scored on every earlier task with that task's own head put back; trainings that lie in FOLDER are taken from
there. The result goes to ``benchmarks/results/stream.json``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from environments import HERE
from report import processor, store
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, PreTrainedModel

import adapter_probe as ap
from adapter_probe import metrics
from adapter_probe.checkpoints.base import n_outputs
from adapter_probe.checkpoints.files import DELTA, DESCRIPTION
from adapter_probe.checkpoints.native import Description, read_description
from adapter_probe.checkpoints.opened_peft import OpenedPeft
from adapter_probe.checkpoints.tokenizer import load_tokenizer
from adapter_probe.data.encoding import Encoded
from adapter_probe.data.examples import Reading
from adapter_probe.data.tasks import load_split
from adapter_probe.kinds.labels import largest_of
from adapter_probe.models.methods import FullFineTuning
from adapter_probe.probe.runners import alike
from adapter_probe.probe.switchable_model import inputs_of
from adapter_probe.training.checkpoint import train_checkpoint
from adapter_probe.training.request import TrainingRequest
from adapter_probe.training.settings import TrainingSettings

MEGABYTE = 1e6
TOKENS_AT_ONCE = 4096
Texts = list[str] | list[tuple[str, str]]


def main() -> None:
    """Measure, print, store."""
    options = parse()
    torch.set_num_threads(options.threads)
    record: dict[str, Any] = {"machine": {"processor": processor(), "threads": options.threads}}
    record["served"] = serve(options.checkpoints, options.examples, options.rounds)
    if options.fine_tune:
        record["fine_tuned"] = fine_tune(options)
    store(record, Path(options.results), "stream")
    print(markdown(record))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoints", nargs="+", type=Path)
    parser.add_argument("--fine-tune", type=Path)
    parser.add_argument("--max-train", type=int)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--examples", type=int, default=200, help="of each task, compared bit by bit")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", default=HERE / "results")
    return parser.parse_args()


def serve(folders: list[Path], n_examples: int, rounds: int) -> dict[str, Any]:
    """One base in memory under every checkpoint: what each adds, and whether it touches another."""
    abouts = [read_description(folder) for folder in folders]
    texts = [some_texts(about, n_examples) for about in abouts]
    start = time.perf_counter()
    model = ap.open(folders[0], device="cpu")
    opening = time.perf_counter() - start
    logits, seconds, held, changed = [], [], [], 0
    for number, folder in enumerate(folders):
        start = time.perf_counter()
        model.use(folder)
        seconds.append(time.perf_counter() - start)
        held.append(storages(model._opened))
        logits.append(model.logits(texts[number]))
        alone = ap.open(folder, device="cpu").logits(texts[number])
        changed += int((alone != logits[number]).any(axis=1).sum())
        for earlier in range(number):
            again = model.use(folders[earlier]).logits(texts[earlier])
            changed += int((again != logits[earlier]).any(axis=1).sum())
    rows = []
    for number, (folder, about) in enumerate(zip(folders, abouts)):
        others = set().union(*(own for other, own in enumerate(held) if other != number))
        own = sum(size for place, size in held[number].items() if place not in others)
        first_use = seconds[number] if number else None  # the first was opened with the base
        rows.append({
            "task": about.task.name, "score": about.scores[about.task.metric], "metric": about.task.metric,
            "bytes_on_disk": on_disk(folder), "bytes_in_memory": own, "seconds_first_use": first_use,
        })  # fmt: skip
    shared = {place: size for place, size in held[0].items() if place in held[1]}
    return {
        "tasks": rows,
        "examples_compared": sum(map(len, logits)),
        "predictions_changed": changed,
        "bytes_of_base_in_memory": sum(shared.values()),
        "seconds_to_open": opening,
        "seconds_to_return": seconds_to_return(model, folders, rounds),
    }


def some_texts(about: Description, n_examples: int) -> Texts:
    """The first validation examples of a checkpoint's task."""
    rows = load_split(about.task, "validation")
    texts = rows.texts if rows.texts_b is None else zip(rows.texts, rows.texts_b)
    return list(texts)[:n_examples]


def storages(opened: OpenedPeft) -> dict[int, int]:
    """Bytes of the memory that a model's tensors lie in, by place."""
    tensors = [*opened.model.parameters(), *opened.model.buffers()]
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}


def on_disk(folder: Path) -> int:
    """Bytes of a checkpoint's files."""
    return sum((folder / name).stat().st_size for name in (DELTA, DESCRIPTION))


def seconds_to_return(model: ap.Model, folders: list[Path], rounds: int) -> float:
    """Median seconds of going back to a checkpoint that was used before."""
    seconds = []
    for folder in folders * rounds:
        start = time.perf_counter()
        model.use(folder)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def fine_tune(options: argparse.Namespace) -> dict[str, Any]:
    """One model fine-tuned whole on each task in turn, scored on every task so far after each."""
    abouts = [read_description(folder) for folder in options.checkpoints]
    settings = TrainingSettings(
        epochs=options.epochs, learning_rate=options.learning_rate, dtype=options.dtype
    )
    base, trained = abouts[0].base.name, []
    for number, about in enumerate(abouts):
        folder = options.fine_tune / f"{number}-{about.task.name}"
        request = TrainingRequest(
            base, about.task, FullFineTuning(), settings, about.max_length, max_train=options.max_train
        )
        train_checkpoint(request, folder, torch.device("cpu"), lambda progress: None)
        print(f"{folder.name}: {read_description(folder).scores}", file=sys.stderr, flush=True)
        trained.append(folder)
        base = str(hand_on(folder, options.fine_tune / f"{number}-base"))
    scores = [[score_after(trained[j], trained[i]) for j in range(i + 1)] for i in range(len(trained))]
    return {
        "tasks": [about.task.name for about in abouts],
        "settings": {**settings.to_json(), "max_train": options.max_train},
        "scores": scores,
        "bytes_on_disk": [on_disk(folder) for folder in trained],
        "seconds_to_open": statistics.median(seconds_to_open(folder) for folder in trained),
    }


def hand_on(checkpoint: Path, folder: Path) -> Path:
    """The fine-tuned encoder as the base of the next task; pooler and head are the old task's and stay."""
    if not (folder / "config.json").exists():
        encoder = fine_tuned(checkpoint, checkpoint).base_model
        left = {name: t for name, t in encoder.state_dict().items() if not name.startswith("pooler.")}
        load_tokenizer(read_description(checkpoint).base.name).save_pretrained(folder)
        encoder.save_pretrained(folder, state_dict=left)
    return folder


def fine_tuned(head_of: Path, encoder_of: Path) -> PreTrainedModel:
    """A fine-tuned model, with the encoder as another task left it."""
    about, tensors = read_description(head_of), load_file(head_of / DELTA)
    model = AutoModelForSequenceClassification.from_pretrained(
        about.base.name, num_labels=n_outputs(about.task)
    ).eval()
    prefix = f"{model.base_model_prefix}."
    for name, tensor in load_file(encoder_of / DELTA).items():
        if name.startswith(prefix) and ".pooler." not in name:
            tensors[name] = tensor
    model.load_state_dict(tensors, strict=False)
    return model


@torch.no_grad()
def score_after(head_of: Path, encoder_of: Path) -> float:
    """A task's validation score with the encoder as a later task left it."""
    about, model = read_description(head_of), fine_tuned(head_of, encoder_of)
    examples = Reading(load_tokenizer(about.base.name), about.task, "validation", about.max_length).examples()
    assert isinstance(examples.encoded, Encoded)
    lengths, found = examples.encoded.lengths, {}
    for group in alike(lengths, np.arange(len(lengths)), TOKENS_AT_ONCE):
        inputs = inputs_of(model, examples.encoded, group, torch.device("cpu"))
        found |= dict(zip(group.tolist(), model(**inputs).logits.numpy()))
    logits = np.stack([found[item] for item in range(len(lengths))])
    predictions = largest_of(logits)
    return float(metrics.score(about.task.metric, predictions, examples.labels))


def seconds_to_open(folder: Path) -> float:
    """Seconds to read a whole model anew."""
    start = time.perf_counter()
    ap.open(folder, device="cpu")
    return time.perf_counter() - start


def markdown(record: dict[str, Any]) -> str:
    """The tables of the page."""
    served = record["served"]
    rows = [
        [
            row["task"],
            f"{100 * row['score']:.1f} {row['metric']}",
            megabytes(row["bytes_on_disk"]),
            megabytes(row["bytes_in_memory"]),
            "" if row["seconds_first_use"] is None else f"{1e3 * row['seconds_first_use']:.0f}",
        ]
        for row in served["tasks"]
    ]
    lines = table(["task", "score", "MB on disk", "MB in memory", "first use, ms"], rows)
    lines += ["", f"base in memory: {megabytes(served['bytes_of_base_in_memory'])} MB"]
    lines += [f"opened with the first task: {served['seconds_to_open']:.2f} s"]
    lines += [f"going back to a task: {1e6 * served['seconds_to_return']:.0f} microseconds"]
    changed, compared = served["predictions_changed"], served["examples_compared"]
    lines += [f"examples whose logits changed: {changed} (of {compared}, compared after every arrival)"]
    if tuned := record.get("fine_tuned"):
        names, scores = tuned["tasks"], tuned["scores"]
        rows = [[name, *(f"{100 * score:.1f}" for score in row)] for name, row in zip(names, scores)]
        lines += ["", *table(["after", *names], [row + [""] * (len(names) + 1 - len(row)) for row in rows])]
        lines += ["", f"MB on disk: {', '.join(map(megabytes, tuned['bytes_on_disk']))}"]
        lines += [f"to open one: {tuned['seconds_to_open']:.2f} s"]
    return "\n".join(lines)


def megabytes(size: int) -> str:
    """Bytes as megabytes."""
    return f"{size / MEGABYTE:.1f}"


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """Lines of Markdown."""
    ruled = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return [f"| {' | '.join(row)} |" for row in ruled]


if __name__ == "__main__":
    main()
