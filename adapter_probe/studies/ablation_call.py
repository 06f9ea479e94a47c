"""What a call of `ablate` asks for, and its study, if it is finished and none of its inputs has changed.

Opening a checkpoint means loading torch, reading weights and encoding texts, only to find that the identity
of the results is unchanged. The same follows from the bytes: identical files, read with identical arguments
by identical code and libraries, have the same identity. A finished run therefore records the hash of every
file that its readers reported (see `adapter_probe.reads`), and the next run compares the hashes. If anything
differs or cannot be determined, the checkpoint is opened as usual and the identities are compared field by
field.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from adapter_probe.ablation_settings import AblationSettings
from adapter_probe.analysis.deltas import section_of
from adapter_probe.analysis.study_records import AblationRecord
from adapter_probe.checkpoints.adapter_folder import choose_adapter, fetch_checkpoint, name_in_cache
from adapter_probe.checkpoints.files import base_files, checkpoint_files, folder_of_base
from adapter_probe.custom_metric import CustomMetric
from adapter_probe.data.generating import Generation, Prompting
from adapter_probe.data.lm_eval_tasks import PREFIX, is_task
from adapter_probe.data.readers import uncompressed
from adapter_probe.data.rows import categories_of, one_table, token_rows
from adapter_probe.errors import (
    AdapterProbeError,
    CheckpointError,
    DataError,
    ModelError,
    ResultsError,
    must_be,
)
from adapter_probe.hub_names import is_hub_name, is_missing, name_and_revision
from adapter_probe.metrics import COMPARISONS
from adapter_probe.probe.arguments import PREDICTIONS_VERSION, AblationArguments
from adapter_probe.progress import activity
from adapter_probe.reads import Reads
from adapter_probe.results import schema
from adapter_probe.results.atomic import leftover_files, make_folder
from adapter_probe.results.fingerprints import code_identity, hash_files, hash_json, refuse_changes
from adapter_probe.results.manifests import MADE_FROM, read_note, write_note
from adapter_probe.results.rundir import PARTS, read_manifest

from .checkpoint_arguments import Ablate, Called, Trainer
from .example_files import as_files, check_files, of_columns, with_collections
from .load import load
from .study_base import StoredStudy
from .trainers import TokenisedPreferences, differences_of, examples_of_preferences, of_trainer

if TYPE_CHECKING:
    import torch

    from adapter_probe.checkpoints.opened_peft import OpenedPeft
    from adapter_probe.data.examples import Examples

StudyT = TypeVar("StudyT", bound=StoredStudy)
USUAL = "ablation"
"""The results folder of an ablation with defaults, inside the checkpoint."""
AGAINST_PREFIX = "against-"
"""Prefix of the subfolder that holds the same variants scored on other data."""
_IN_MEMORY = ("tokenizer", "name", "batches", "labels", "read")
"""Arguments that a checkpoint on disk cannot follow."""
_OF_TEXTS = ("columns", "max_examples", "label_names", "split", "encoding", *vars(Prompting()))
"""Arguments that batches cannot follow."""
_ON_DISK = ("cluster", "adapter", "dequantise", "device_map")
"""Arguments that a model in memory cannot follow."""


class Given(NamedTuple):
    """A model in memory, and its examples where they are batches.

    Attributes:
        examples: the examples, or None for those that the arguments name.
    """

    opened: OpenedPeft
    examples: Examples | None = None

    def with_name(self, name: str) -> Given:
        """The same with a task of this name."""
        return self._replace(opened=self.opened.with_task(replace(self.opened.description.task, name=name)))

    def of_source(self, source: str) -> Given:
        """The same with a question that names where the examples are from."""
        if self.examples is None or self.examples.question is None:
            return self
        question = replace(self.examples.question, source=source)
        return self._replace(examples=replace(self.examples, question=question))

    def with_note(self, note: str) -> Given:
        """The same with a remark on how it was read."""
        return self._replace(opened=replace(self.opened, notes=(*self.opened.notes, note)))


def asked_of(
    call: Ablate, usual: str, opened: Given | None, rows: Path | None = None
) -> list[tuple[AblationArguments, Path]]:
    """The arguments of an ablation with its results folder, and then those on the data of `against`, if any.

    Args:
        call: what the user gave.
        usual: name of the results folder with settings at their defaults.
        opened: of a model in memory, what `opened_for` gives.
        rows: where examples in memory are saved; by default beside the results.
    """
    checkpoint = Path(str(call.checkpoint))
    if rows is None:
        rows = _usual_folder(str(checkpoint), usual).parent if call.out is None else Path(call.out)
    place = rows if opened else checkpoint
    causal = opened is not None and opened.opened.description.task.kind == "causal"
    own = as_files(call.data, rows, place, call.metric in COMPARISONS, causal)
    files = with_collections(own, call.split)
    if call.columns:
        files = of_columns(files, call.columns, rows, call.encoding)
    others = as_files(call.against, rows, place, causal=causal)
    if call.columns and others:
        others = of_columns(others, call.columns, rows, call.encoding, or_new=True)
    if call.task and not is_task(call.task):
        wanted = must_be("--task", f"{PREFIX}NAME", call.task)
        raise DataError(f"{wanted}; data files are given with --data")
    if call.task and files:
        raise DataError(f"--data {files[0]} and --task {call.task} cannot be combined; give one of them")
    metric = CustomMetric(call.metric) if callable(call.metric) else call.metric
    arguments = AblationArguments.of(
        call, checkpoint=str(checkpoint), settings=AblationSettings.of(call), metric=metric,
        data=(call.task,) if call.task else files, categories=categories_of(call.data),
    )  # fmt: skip
    check_files(checkpoint, call.encoding, *arguments.data, *others)
    folder = _folder_of(arguments, call.out, usual)
    if not others:
        return [(arguments, folder)]
    usually = {**vars(Prompting()), **vars(Generation()), "split": "validation", "metric": None}
    other = replace(arguments, data=tuple(others), **usually)
    return [(arguments, folder), (other, folder / f"{AGAINST_PREFIX}{uncompressed(others[0]).stem}")]


def refuse_other_settings(parts: Sequence[tuple[AblationArguments, Path]]) -> None:
    """Refuse folders of ablations with other settings, which is known before a checkpoint is opened.

    Raises:
        ResultsError: a folder has one.
    """
    for arguments, folder in parts:
        if (path := folder / schema.MANIFEST).is_file():
            refuse_changes(
                {"settings": section_of(read_manifest(path)["identity"], "settings")},
                {"settings": arguments.settings.to_json()},
                f"{folder} contains the results of another run",
                ". Choose another --out or remove the folder",
            )


@contextmanager
def opened_for(call: Called) -> Iterator[tuple[Called, Given | None, TemporaryDirectory[str] | Path | None]]:
    """The arguments with a checkpoint's folder, and a model in memory, which is left as it was.

    Returns:
        the arguments; of a model in memory, which has a name and a results folder in them, or with several
        adapters, the open model; and its results folder, which may be a temporary one.

    Raises:
        ModelError, CheckpointError: see `open_in_memory`; or there is no such checkpoint.
        DataError: there is no data, or batches and labels are not the model's.
        ResultsError: an argument needs a checkpoint on disk.
    """
    given = [one.name for one in fields(call) if one.init and one.name in ("data", "against")]
    call = replace(call, **{name: one_table(getattr(call, name), call.split) for name in given})
    if not isinstance(call.checkpoint, (str, Path)):
        with without_autocast(), _in_memory(call) as found:
            yield found
        return
    for one in fields(Ablate):
        if one.name in _IN_MEMORY and getattr(call, one.name) != one.default:
            raise DataError(
                f"{one.name}= applies only to a model in memory, and {call.checkpoint} is on disk"
            )
    names = [name.strip() for name in (call.adapter or "").split(",")]
    if len(names) == 1:
        yield _on_disk(call), None, None
        return
    call = _on_disk(replace(call, adapter=None))
    if call.cluster is not None:
        raise CheckpointError("--slurm takes one adapter of a checkpoint; give one name with --adapter")
    from adapter_probe.checkpoints.opening import open_several

    base = None if call.base is None else str(call.base)
    yield call, Given(open_several(Path(str(call.checkpoint)), names, base, call.dequantise)), None


@contextmanager
def _in_memory(call: Called) -> Iterator[tuple[Called, Given, TemporaryDirectory[str] | Path]]:
    from adapter_probe.checkpoints.in_memory import left_as_it_was

    metric, unused = None, False
    if isinstance(trainer := call.checkpoint, Trainer):
        with left_as_it_was(trainer.model):  # type: ignore[attr-defined]  # making batches may leave hooks
            call, metric = of_trainer(call, trainer)
        unused = getattr(trainer, "compute_metrics", None) is not None and metric is None is call.metric
    model: Any = call.checkpoint
    if flag := next((one for one in _ON_DISK if getattr(call, one)), ""):
        raise ResultsError(f"{flag} needs a checkpoint on disk; save the model and give its folder")
    if call.batches is None and (rows := token_rows(call.data)) is not None:
        call = replace(call, data=(), batches=rows)
    texts = bool(call.task) or not (isinstance(call.data, tuple) and not call.data)
    if texts == (call.batches is not None):
        given = (
            "both data and batches are given; give one of them"
            if texts
            else "a model in memory has no data of its own; give data= or batches="
        )
        raise DataError(given)
    with left_as_it_was(model):
        opened = _given(call, model)
        if metric is not None:
            assert opened.examples is not None, "a trainer's metric is of its batches"
            call = replace(call, metric=metric.of_model(opened.opened, opened.examples))
            opened = opened.with_note(metric.said)
        if isinstance(trainer, Trainer) and call.batches is not None:
            opened = opened.of_source(f"the evaluation set of a {type(trainer).__name__}")
            for note in differences_of(trainer, opened.opened.description.task.kind):
                opened = opened.with_note(note)
        if call.name:
            opened = opened.with_name(call.name)
        if unused:
            opened = opened.with_note(
                "the trainer's compute_metrics, which is of its own batches, is not used"
            )
        temporary = TemporaryDirectory(prefix="adapter-probe-") if call.out is None else Path(call.out)
        folder = make_folder(temporary if isinstance(temporary, Path) else temporary.name)
        device = str(device_of(model))
        yield (
            replace(call, checkpoint=str(opened.opened.folder), base=None, out=folder, device=device),
            opened,
            temporary,
        )


def _given(call: Ablate, model: Any) -> Given:
    """The model, with its examples where they are batches."""
    if call.batches is None:
        if call.labels is not None or call.read != "logits":
            raise DataError("labels and read apply only to batches; the labels of texts are in data")
        return Given(open_given(model, call.device, call.base, call.tokenizer))
    for one in fields(Ablate):
        if one.name in _OF_TEXTS and getattr(call, one.name) != one.default:
            raise DataError(f"{one.name} needs texts; omit it with batches, which are taken as they are")
    if call.precision == "mixed":
        raise ResultsError("precision 'mixed' needs texts; give float32, float64 or bfloat16 with batches")
    if isinstance(call.batches, TokenisedPreferences):
        opened = open_given(model, call.device, call.base, call.tokenizer)
        return Given(*examples_of_preferences(opened, call.batches))
    if isinstance(call.against, (str, Path)) or len(call.against):
        raise ResultsError("against needs texts; omit it with batches")
    from adapter_probe.probe.batches import examples_of

    opened = open_given(model, call.device, call.base, texts=False)
    examples, task = examples_of(opened.model, call.batches, call.labels, call.read)
    return Given(opened.with_task(task), examples)


@contextmanager
def without_autocast() -> Iterator[None]:
    """Inside, arithmetic has the precision of the model, whatever the user's code around has set."""
    import torch

    with ExitStack() as plain:
        for kind in ("cpu", "cuda", "mps", "xpu"):
            if torch.is_autocast_enabled(kind):
                plain.enter_context(torch.autocast(kind, enabled=False))
        yield


def open_given(
    model: torch.nn.Module, device: str, base: Any = None, tokenizer: Any = None, *, texts: bool = True
) -> OpenedPeft:
    """Open a model in memory on the device that it is on; a fine-tuned one with its base.

    Raises:
        ModelError: it reads texts and there is no tokenizer, or the device is another one.
        CheckpointError: see `open_in_memory`.
    """
    from adapter_probe.checkpoints.in_memory import open_in_memory
    from adapter_probe.device import choose_device

    if texts and tokenizer is None:
        raise ModelError("a model in memory has no tokenizer of its own; give tokenizer=")
    own = device_of(model)
    asked = own if device == "auto" else choose_device(device)
    if (asked.type, asked.index or 0) != (own.type, own.index or 0):
        raise ModelError(f"the model is on {own}, where it runs; move it there, or omit device={device!r}")
    return open_in_memory(model, tokenizer, base)


def device_of(model: torch.nn.Module) -> torch.device:
    """The device of a model's first weights."""
    import torch

    return next((p.device for p in model.parameters() if p.device.type != "meta"), torch.device("cpu"))


def _on_disk(call: Called) -> Called:
    """The arguments with the folder of a checkpoint that is named on the hub."""
    name = str(call.checkpoint)
    if call.base is not None and not isinstance(call.base, (str, Path)):
        raise DataError(f"base= is a model in memory, and {name} is on disk; give the folder of its base")
    if is_hub_name(name):
        with activity(f"ablate: looking for {name}", call.progress):
            place = fetch_checkpoint(*name_and_revision(name), call.adapter)
            return replace(call, checkpoint=choose_adapter(place, call.adapter), adapter=None)
    if is_missing(name):
        raise CheckpointError(f"checkpoint {name}: no such folder")
    return replace(call, checkpoint=choose_adapter(Path(name), call.adapter), adapter=None)


def _folder_of(arguments: AblationArguments, out: str | Path | None, name: str) -> Path:
    """The results folder: `out`, or the usual one with settings that are not defaults added to its name."""
    if out is not None:
        return Path(out)
    said, data = arguments.slugs(), arguments.data
    if data:
        said["data"] = f"data-{uncompressed(data[0]).stem}"
    if arguments.metric in COMPARISONS:
        said["metric"] = str(arguments.metric)
    named = ("split", "data", *vars(Prompting()), *vars(Generation()), "max_examples", "metric")
    last = [said[one] for one in named if one in said]
    usual, slugs = _usual_folder(arguments.checkpoint, name), arguments.settings.slugs()
    if name != USUAL and slugs.get("spans") == "whole":  # the default of a study of strengths
        del slugs["spans"]
    return usual.with_name("-".join([usual.name, *slugs.values(), *last]))


def _usual_folder(checkpoint: str, usual: str) -> Path:
    """The results folder of a study with defaults: in the checkpoint, but not in the hub's cache."""
    name = name_in_cache(Path(checkpoint))
    return Path(checkpoint) / usual if name is None else Path.cwd() / f"{name}-{usual}"


def reopen(arguments: AblationArguments, folder: Path, kind: type[StudyT]) -> StudyT | None:
    """A finished study of this kind, if no byte of it or of its inputs has changed.

    Returns:
        None if the study is not finished, if anything has changed or cannot be determined, or if a writer
        was killed in the folder, so that the run, which claims the folder, removes its leftovers.
    """
    said, asked = read_note(folder, MADE_FROM), _recorded_arguments(arguments)
    if not said or leftover_files(folder):
        return None
    if asked is None or (said.get("asked"), said.get("code")) != (asked, code_identity()):
        return None
    try:
        checkpoint = Path(arguments.checkpoint)
        files = {f"checkpoint/{name}": path for name, path in checkpoint_files(checkpoint).items()}
        if (base := folder_of_base(*said["base"])) is not None:
            files |= {f"base/{name}": path for name, path in base_files(base).items()}
        files = files | {
            name: Path(name.removeprefix("data/")) for name in said["sha256"] if name.startswith("data/")
        }
        if files.keys() != said["sha256"].keys() or hash_files(files) != said["sha256"]:
            return None
        read_manifest(folder / schema.MANIFEST)
        study = load(folder) if _hash_of_results(folder) == said["kept"] else None
        return study if isinstance(study, kind) else None
    except (AdapterProbeError, OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError):
        return None  # resuming the run repairs or reports it


def record_reads(arguments: AblationArguments, reads: Reads, folder: Path) -> None:
    """Record the inputs of a finished ablation, unless one of them was rewritten while it ran.

    Raises:
        ResultsError: the record cannot be written.
    """
    asked = _recorded_arguments(arguments)
    if asked is None or not reads.known or reads.rewritten:
        return
    sums = hash_files(reads.files)
    if not reads.rewritten:  # while it was hashed
        made_from = {"asked": asked, "code": code_identity(), "base": reads.base, "sha256": sums}
        write_note(folder, MADE_FROM, {**made_from, "kept": _hash_of_results(folder)})


def _recorded_arguments(arguments: AblationArguments) -> dict[str, Any] | None:
    """The arguments as plain JSON, without those that change no number: checkpoint path, rows per pass.

    None where the metric is a function, of which a name tells nothing.
    """
    if isinstance(arguments.metric, CustomMetric):
        return None
    settled = {**arguments.settled(), "code_schema": PREDICTIONS_VERSION[arguments.settings.precision]}
    return {
        name: value
        for name, value in settled.items()
        if name not in ("checkpoint", "tokens_per_pass", "device_map")
    }


def _hash_of_results(folder: Path) -> str:
    """The hash of the files of an ablation that are not drawn."""
    tables = [about["file"] for about in AblationRecord.files().values()]
    others = (schema.PREDICTIONS, schema.GENERATIONS, schema.GUARD)
    paths = [*sorted((folder / PARTS).glob("*")), *(folder / name for name in (*tables, *others))]
    return hash_json(hash_files({path.name: path for path in paths if path.is_file()}))
