"""The model card of an adapter: scores as hub metadata, the heatmap, removable spans. Never imports torch."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapter_probe.analysis.score_changes import section_of, span_order
from adapter_probe.analysis.study_records import AblationRecord
from adapter_probe.argument_checks import as_tuple, checked
from adapter_probe.checkpoints.files import CONFIG, DESCRIPTION
from adapter_probe.data.tasks import TaskSpec, load_split
from adapter_probe.errors import DataError, ResultsError
from adapter_probe.figures.ablation_words import study_label, told_apart
from adapter_probe.figures.gallery import figures_of
from adapter_probe.figures.table_layouts import lay_out_removable
from adapter_probe.figures.tables import escape_markdown, markdown_text
from adapter_probe.figures.venues import PAPER, FigureOptions
from adapter_probe.hub_names import origin_of_folder
from adapter_probe.known_tasks import known_task
from adapter_probe.metrics import BY_NAME
from adapter_probe.results.atomic import make_folder, read_json, write_text
from adapter_probe.settings import as_points
from adapter_probe.version import __version__
from adapter_probe.wording import examples_text, is_distance, metric_name, named_score, task_label

from .ablation_study import Ablation
from .load import studies_of
from .study_base import DrawnStudy

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

DESCRIPTIONS = (DESCRIPTION, CONFIG)
"""Files by which a checkpoint is known: of this project, and of PEFT or AdapterHub."""

_TASK_TYPES = {
    "classification": "text-classification",
    "regression": "text-classification",
    "extractive": "question-answering",
    "causal": "text-generation",
    "tokens": "token-classification",
    "embedding": "sentence-similarity",
    "ranking": "text-ranking",
}


@checked
def model_card(
    folders: DrawnStudy | str | Path | Sequence[DrawnStudy | str | Path],
    out: str | Path | None = None,
    *,
    tolerance: float = 1.0,
) -> str:
    """A model card in Markdown, with the scores as ``model-index`` metadata.

    Args:
        folders: ablations: one or several, as studies or results folders, or checkpoints that contain them.
        out: output file, next to which the figures are written; None writes no file, and the card links to
            the figures in the results folders, relative to the checkpoint.
        tolerance: tolerated drop, in percentage points, marked by the black line of a heatmap.

    Returns:
        the text of the card.

    Raises:
        ResultsError: no ablation is found, results are damaged, or a file cannot be written.
    """
    given = [studies_of([one]) for one in as_tuple(folders)]  # of a checkpoint, other studies beside them too
    found = [[study.record for study in own if isinstance(study, Ablation)] for own in given]
    every = [record for own in found for record in own]
    records = list({(one.folder.resolve(), one.summary.task): one for one in every}.values())
    if not records or not all(found):
        raise ResultsError("--model-card describes ablations only; give their folders, or a checkpoint")
    options = FigureOptions(PAPER, formats=("png",), tolerance=as_points("--tolerance", tolerance))
    sections, titles = [], told_apart([study_label(record) for record in records], records)
    for index, (record, title) in enumerate(zip(records, titles)):
        drawing = next(figures_of([record], options))
        if out is None:
            picture = f"{os.path.relpath(record.folder, _checkpoint(records[0]))}/{drawing.stem}.png"
        else:
            folder, suffix = make_folder(Path(out).parent), f"-{index + 1}" if len(records) > 1 else ""
            drawing = replace(drawing, stem=f"{drawing.stem}{suffix}")
            picture = f"{drawing.stem}.png"
            drawing.write(folder, options)
        sections.append(_section(record, title, picture.replace(os.sep, "/"), drawing.caption))
    text = f"---\n{_metadata(records)}\n---\n\n# {_name(records[0])}\n\n" + "\n".join(sections)
    if out is not None:
        write_text(out, text)
    return text


def _section(record: AblationRecord, title: str, picture: str, caption: str) -> str:
    """The card's section on one ablation, as Markdown."""
    said = record.summary
    score = "undefined" if said.intact_score is None else named_score(said.intact_score, said.metric)
    begin = f"The intact model has {escape_markdown(score)}"
    if is_distance(said.metric):
        begin = "The outputs are compared with the intact model's, without labels,"
    part, how = "cell", ": the row is the first layer, the column the last"
    unit = "contiguous span of layers"
    if record.by_module:
        how = f": the row is the {record.unit}, the column the layer"
        unit = f"{record.unit} of one layer, or several together,"
    elif span_order(record.in_stacks[0].spans) is not None:
        part, how = "point", ""
    done = "are the only ones kept on" if said.study == "kept" else f"are {said.done}"
    alt = f"Change of the {metric_name(said.metric)} for every {unit} whose {record.parts} {done}"
    lines = [
        f"## Which {record.parts} the model needs: {escape_markdown(title)}",
        "",
        f"{begin} on {examples_text(said.n_examples, said.metric)}. Each "
        f"{part} of the figure is one {unit} whose {record.parts} {done}, without "
        f"retraining{how}.",
        "",
        f"![{alt}]({picture})",
        "",
        escape_markdown(caption),
        "",
    ]
    if said.warning:
        lines += [f"> {escape_markdown(said.warning)}", ""]
    elif record.removable is not None and not record.by_module and said.study == "ablated":
        lines += ["### The longest spans within a tolerance", ""]
        lines += [
            markdown_text(lay_out_removable(part.removable, part))
            for part in record.in_stacks
            if part.removable is not None
        ]
    return "\n".join([*lines, f"Measured with adapter-probe {__version__}.", ""])


def _metadata(records: Sequence[AblationRecord]) -> str:
    """The card's YAML: base, library, and the intact scores as hub metadata."""
    from huggingface_hub import ModelCardData

    described, library = _described(records[0])
    said = [record for record in records if record.summary.intact_score is not None]
    said = [record for record in said if not is_distance(record.summary.metric)]
    scores = [_score(record) for record in said]
    scores = [one for number, one in enumerate(scores) if one not in scores[:number]]
    on_hub = dict.fromkeys(one.dataset_type for one in scores if one.dataset_type != one.dataset_name)
    card = ModelCardData(
        model_name=_name(records[0]),
        base_model=_hub_id(described) or records[0].summary.base,
        library_name=library,
        datasets=list(on_hub) or None,
        metrics=list(dict.fromkeys(one.metric_type for one in scores)) or None,
        pipeline_tag=scores[0].task_type if scores else None,
        tags=["adapter-probe", "adapters"],
        eval_results=scores or None,
    )
    return str(card.to_yaml())


def _score(record: AblationRecord) -> EvalResult:
    """The intact model's score."""
    from huggingface_hub import EvalResult

    said, preset = record.summary, known_task(record.summary.task)
    known = BY_NAME.get(said.metric)
    name = said.data or task_label(said.task)
    dataset, config, split = name, None, None if said.data else said.split
    if preset is not None and _is_own_split(record):
        dataset, config = preset.collection, preset.config or preset.name
        split = preset.validation if said.split == "validation" else said.split
    return EvalResult(
        task_type=_TASK_TYPES.get(said.kind, "text-classification"),
        dataset_type=dataset,
        dataset_name=name,
        dataset_config=config,
        dataset_split=split,
        metric_type=(known and known.hub) or said.metric,
        metric_name=metric_name(said.metric),
        metric_value=None if said.intact_score is None else round(said.intact_score, 6),
    )


def _is_own_split(record: AblationRecord) -> bool:
    """Whether the score is on a split of the checkpoint's own task, not on other data (`--data`).

    The task records the fingerprint of the whole split; for that of a subset, its rows are read again.
    """
    task, data, said = _described(record)[0].get("task"), section_of(record.identity, "data"), record.summary
    if not (isinstance(task, Mapping) and data) or task.get("validation_share"):
        return False
    if data.get("fingerprint") == task["fingerprints"].get(said.split):
        return True
    try:
        rows = load_split(TaskSpec.from_json(task), said.split, said.n_examples, expect_fingerprint=True)
    except DataError:  # the files have moved or changed
        return False
    return data.get("fingerprint") == rows.fingerprint


def _checkpoint(record: AblationRecord) -> Path:
    return record.folder.resolve().parent


def _name(record: AblationRecord) -> str:
    """The checkpoint's folder; the results folder if that is not inside a checkpoint."""
    folder = _checkpoint(record)
    inside = any((folder / name).is_file() for name in DESCRIPTIONS)
    return (folder if inside else record.folder.resolve()).name


def _described(record: AblationRecord) -> tuple[Mapping[str, Any], str]:
    """The checkpoint's description and the library that opens it; empty when the file is missing."""
    for name in DESCRIPTIONS:
        if (path := _checkpoint(record) / name).is_file():
            described = read_json(path)
            others = "peft" if "peft_type" in described else "adapter-transformers"
            return described, "adapter-probe" if name == DESCRIPTION else others
    return {}, "adapter-probe"


def _hub_id(described: Mapping[str, Any]) -> str | None:
    """The base's name on the hub; of a local folder, which is meaningless to others, what it comes from."""
    base = described.get("base")
    name = base.get("name") if isinstance(base, Mapping) else described.get("base_model_name_or_path")
    if not isinstance(name, str) or Path(name).is_dir():
        return origin_of_folder(name) if isinstance(name, str) else None
    return name if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) else None
