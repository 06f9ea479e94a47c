"""`adapter-probe report`: one page to explore results in, drawn again from disk without torch."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adapter_probe.errors import DataError, ResultsError

from .console import command, say, show

if TYPE_CHECKING:
    from adapter_probe.data.tasks import TaskSpec
    from adapter_probe.figures.report.ablation import Ablation
    from adapter_probe.figures.report.examples import Texts

# As the checkpoints package writes them; that package loads torch, which this command does without.
DESCRIPTION, DELTA = "adapter_probe.json", "delta.safetensors"
_ADAPTER = re.compile(r"\.layer\.(\d+)\.(attention\.)?output\.adapter\.")
_NO_PARAMETER = ("running_mean", "running_var", "num_batches_tracked")


@command
def report(
    results: Annotated[
        list[Path],
        typer.Argument(
            help="Folders of ablations and sweeps, or checkpoints with ablations inside.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file.")] = Path("report.html"),
    examples: Annotated[
        bool,
        typer.Option(
            "--examples", help="Put the texts that flip into the page; leave them out where data is private."
        ),
    ] = False,
    checkpoint: Annotated[
        list[Path] | None,
        typer.Option(
            help="Checkpoint of an ablation that does not lie inside or beside it; repeatable.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help="File with the examples, if the ablation was given files of its own; repeatable.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    tolerance: Annotated[float, typer.Option(help="Points of drop at which the slider begins.")] = 1.0,
) -> None:
    """Write one HTML file in which to explore results: it holds everything and loads nothing.

    Heatmaps with every span's numbers, a slider that says which layers can go at what cost, layer shares,
    sweeps and trade-offs with their runs, and the settings that made them.
    """
    from adapter_probe.figures.report.ablation import read_ablation
    from adapter_probe.figures.report.page import write_report
    from adapter_probe.figures.report.sweeps import read_sweep
    from adapter_probe.results.schema import find_results, is_ablation, is_sweep

    if not 0 <= tolerance <= 100:
        raise ResultsError(f"tolerance {tolerance} is not allowed; give 0 to 100 points")
    folders = find_results(results)
    ablations = [read_ablation(folder) for folder in folders if is_ablation(folder)]
    _refuse_strangers(checkpoint or (), ablations)
    ablations = [_complete(ablation, checkpoint or (), data or (), examples) for ablation in ablations]
    sweeps = [read_sweep(folder) for folder in folders if is_sweep(folder)]
    show(str(write_report(out, ablations, sweeps, tolerance=tolerance)))
    if shown := sum(len(ablation.texts.texts) for ablation in ablations if ablation.texts):
        say(f"the page holds the texts that flip, out of {shown:,}; share it only where the data may go")


def _delta_of(ablation: Ablation) -> str | None:
    """The hash of the weights that were ablated, where the folder says so."""
    value: Any = ablation.manifest
    for name in ("identity", "checkpoint", "delta_sha256"):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, str) else None


def _refuse_strangers(checkpoints: Sequence[Path], ablations: Sequence[Ablation]) -> None:
    """Refuse a checkpoint that is none of those that were ablated.

    Raises:
        ResultsError: it is not.
    """
    deltas = {_delta_of(ablation) for ablation in ablations}
    for folder in checkpoints:
        record = _description(folder)
        if record is None:
            raise ResultsError(f"--checkpoint {folder} is not a checkpoint: it has no {DESCRIPTION}")
        if None not in deltas and record.get("delta_sha256") not in deltas:
            raise ResultsError(f"--checkpoint {folder} is not what was ablated in any of the folders given")


def _description(folder: Path) -> dict[str, Any] | None:
    from adapter_probe.results.atomic import read_json

    path = folder / DESCRIPTION
    return read_json(path) if path.is_file() else None


def _complete(
    ablation: Ablation, checkpoints: Sequence[Path], data: Sequence[Path], with_texts: bool
) -> Ablation:
    """The ablation with what its checkpoint says and, if wanted, with its texts.

    Raises:
        ResultsError: texts are wanted and their checkpoint is not found, or there are no predictions.
        DataError: the texts cannot be read, or are not those that were predicted.
    """
    from adapter_probe.figures.report.ablation import CheckpointFacts

    folder = _checkpoint_of(ablation, checkpoints)
    if folder is None:
        if with_texts:
            raise ResultsError(
                f"--examples: the checkpoint of {ablation.folder} is neither around nor beside it; "
                "name it with --checkpoint"
            )
        return ablation
    record = _description(folder) or {}
    _refuse_changed(ablation, folder, record)
    facts = CheckpointFacts(record, _adapter_parameters(folder))
    texts = _texts(ablation, record, folder / DESCRIPTION, data) if with_texts else None
    return replace(ablation, checkpoint=facts, texts=texts)


def _refuse_changed(ablation: Ablation, folder: Path, record: dict[str, Any]) -> None:
    """Refuse a checkpoint that was ablated with another method, or on another base; what is unknown passes.

    Raises:
        ResultsError: something changed.
    """
    from adapter_probe.checkpoints.identity import checkpoint_identity
    from adapter_probe.results.identity import describe_changes, list_changes

    old, new = {}, {}
    for section, facts in checkpoint_identity(record).items():
        then = ablation.manifest.get("identity", {}).get(section, {})
        shared = {name for name, value in facts.items() if value and then.get(name)}
        old[section] = {name: then[name] for name in shared}
        new[section] = {name: facts[name] for name in shared}
    if changes := describe_changes(old, new):
        raise ResultsError(f"{folder} has changed since {ablation.folder} was made: {list_changes(changes)}")


def _checkpoint_of(ablation: Ablation, checkpoints: Sequence[Path]) -> Path | None:
    """The checkpoint that was ablated: one that was given, the folder around the results, or one beside."""
    parent, wanted = ablation.folder.resolve().parent, _delta_of(ablation)
    beside = sorted(path for path in parent.iterdir() if path.is_dir())
    for folder in (*checkpoints, parent, *(beside if wanted else ())):
        record = _description(folder)
        if record is not None and wanted in (None, record.get("delta_sha256")):
            return folder
    return None


def _adapter_parameters(folder: Path) -> tuple[tuple[int, int], ...] | None:
    """Parameters in the adapters of every layer, `[layers]` of (after attention, after feed-forward).

    Read off the shapes in the file's head; no weights are loaded. None if there are no adapters to count.
    """
    from safetensors import SafetensorError, safe_open

    counts: dict[int, list[int]] = {}
    try:
        with safe_open(folder / DELTA, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 (a safetensors file is no mapping)
                found = _ADAPTER.search(name)
                if found and not name.endswith(_NO_PARAMETER):
                    pair = counts.setdefault(int(found[1]), [0, 0])
                    pair[not found[2]] += math.prod(file.get_slice(name).get_shape())
    except (OSError, SafetensorError):
        return None
    n_layers = 1 + max(counts, default=-1)
    return tuple((*counts.get(layer, (0, 0)),) for layer in range(n_layers)) or None  # type: ignore[misc]


def _texts(ablation: Ablation, record: dict[str, Any], source: Path, data: Sequence[Path]) -> Texts | None:
    """The texts of an ablation's examples, known to be the ones by their labels and number.

    Raises:
        ResultsError: the folder has no predictions.
        DataError: the texts cannot be read, or are others.
    """
    from adapter_probe.data.tasks import TaskSpec

    results = ablation.results
    if results is None:
        raise ResultsError(
            f"--examples: {ablation.folder} has no predictions, so nothing says which examples flip"
        )
    if results.kind == "regression":
        say(f"{ablation.folder}: no example of a regression flips, so there are no texts to show")
        return None
    spec = TaskSpec.from_json(record.get("task"), str(source))
    name, n_examples = results.settings.get("split", "validation"), len(results.labels)
    wanted = results.identity.get("data", {}).get("fingerprint")
    for choice in _choices(spec, name, data):
        fingerprint, texts = _load_texts(choice, name, n_examples)
        if fingerprint == wanted:
            return texts
    raise DataError(
        f"--examples: the {name} rows of task {spec.name!r} are not those of {ablation.folder}: they have "
        "changed, or the ablation was given files of its own; name these with --data"
    )


def _load_texts(spec: TaskSpec, split: str, n_examples: int) -> tuple[str, Texts]:
    """The texts of a split, or of its fixed subset of this size, and the fingerprint of these rows."""
    from adapter_probe.data.tasks import load_questions, load_split
    from adapter_probe.figures.report.examples import Texts

    if spec.kind != "extractive":
        rows = load_split(spec, split, n_examples)
        return rows.fingerprint, Texts(rows.texts, rows.texts_b)
    asked = load_questions(spec, split, n_examples)
    truths = tuple(" / ".join(dict.fromkeys(a.text for a in answers)) for answers in asked.answers)
    contexts = tuple(asked.contexts[paragraph] for paragraph in asked.paragraph.tolist())
    return asked.fingerprint, Texts(asked.questions, contexts, truths)


def _choices(spec: TaskSpec, split: str, data: Sequence[Path]) -> list[TaskSpec]:
    """The task with the files that were given, then as the checkpoint remembers it."""
    given = [replace(spec, files={split: tuple(str(path.resolve()) for path in data)})] if data else []
    return [*given, *([spec] if split in spec.files else [])]
