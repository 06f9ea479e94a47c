"""Files of lm-evaluation-harness: its `results_*.json` and `samples_*.jsonl`, written and compared with.

The fields are those of lm-eval 0.4.12. Whether a continuation is what greedy decoding gives is known only for
the metric that needs it, and is ``None`` in the samples of the others.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis.study_records import AblationRecord
from adapter_probe.data.generating import Prompting
from adapter_probe.data.lm_eval_tasks import THEIR_NAMES
from adapter_probe.data.requests import Requests
from adapter_probe.errors import DataError, one_line, shown
from adapter_probe.metrics import LOSSES, continuation_sizes, score
from adapter_probe.predictions import predictions_from_likelihoods
from adapter_probe.results.atomic import make_folder, write_json, write_text
from adapter_probe.version import __version__
from adapter_probe.wording import ALL_OFF

from .request import AblationRequest

_NOT_GIVEN = "N/A"


@dataclass(frozen=True)
class SamplesCheck:
    """The intact model's log-likelihoods beside those in a harness's samples.

    Attributes:
        n_found: those of them that are in the file, with the same prompt and continuations.
        largest_difference: of the log-likelihoods of a continuation, in nats.
        metric: the harness's name of the score.
        theirs, ours: the mean of that score over the rows that were found; NaN where the file lacks it.
    """

    n_rows: int
    n_found: int
    largest_difference: float
    metric: str
    theirs: float
    ours: float

    def __str__(self) -> str:
        said = (
            f"{self.n_found:,} of {self.n_rows:,} rows are in the samples; their log-likelihoods differ by "
            f"at most {self.largest_difference:.2g} nats"
        )
        if math.isnan(self.theirs):
            return said
        return f"{said}; {self.metric} is {self.theirs:.6g} there and {self.ours:.6g} here"


def harness_rows(request: AblationRequest) -> Requests:
    """The rows of a language model.

    Raises:
        DataError: the request has others, or texts are written.
    """
    rows = request.examples.rows
    if not isinstance(rows, Requests):
        raise DataError(
            "--lm-eval-json and --lm-eval-samples require the rows of a language model; the task of "
            f"{request.checkpoint.folder} is {request.checkpoint.description.task.kind}"
        )
    if rows.generation is not None:
        raise DataError(
            "--lm-eval-json and --lm-eval-samples hold log-likelihoods; what the model writes is in "
            "generations.jsonl"
        )
    return rows


def write_lm_eval(
    study: AblationRecord,
    results: AblationResults,
    rows: Requests,
    name: str,
    prompting: Prompting,
    template: str | None,
    out: str | Path,
) -> list[Path]:
    """Write the harness's files: intact, without adapters, and without the longest removable span.

    Args:
        study, results: an ablation of a language model.
        name: name of the checkpoint.
        template: the chat template, if it was used.
        out: the folder, as the harness's `output_path`: each model has a folder in it.

    Returns:
        the files with the scores.

    Raises:
        DataError: the harness has no metric for these rows.
        ResultsError: a file cannot be written.
    """
    stamp = time.strftime("%Y-%m-%dT%H-%M-%S.000000")
    if results.differences is not None or results.metric not in _names(rows):
        raise DataError(
            f"--lm-eval-json: lm-evaluation-harness has no metric {results.metric}; for these rows it has "
            f"{', '.join(_names(rows)) or 'none'}"
        )
    written = []
    for variant, model in _models(study, results, name):
        folder = make_folder(Path(out, _sanitised(model)))
        scored = {task: list(_samples(results, rows, variant, kept)) for task, kept in _tasks(study, rows)}
        hashes = {
            task: _sha256(
                "".join(one["doc_hash"] + one["prompt_hash"] + one["target_hash"] for one in samples)
            )
            for task, samples in scored.items()
        }
        made = {
            **_aggregated(study, results, rows, variant, prompting),
            **_about(study, model, prompting, template),
            "task_hashes": hashes,
        }  # fmt: skip
        written.append(folder / f"results_{stamp}.json")
        write_json(written[-1], made)
        for task, samples in scored.items():
            lines = (json.dumps(sample, ensure_ascii=False, default=str) + "\n" for sample in samples)
            write_text(folder / f"samples_{task}_{stamp}.jsonl", "".join(lines))
    return written


def compare_samples(results: AblationResults, rows: Requests, path: str | Path) -> SamplesCheck:
    """Hold the intact model's log-likelihoods against those of a harness's ``samples_*.jsonl``.

    Raises:
        DataError: the file is not one, or has none of the rows.
    """
    theirs = dict(_read_samples(Path(path)))
    largest, found, scores = 0.0, 0, []
    sums, name = results.outputs[_intact(results)], _names(rows).get(results.metric, "")
    items = _items(results, rows, _intact(results)).get(results.metric)
    for number, row in enumerate(rows.rows):
        if (sample := theirs.get(_texts(rows, row))) is None:
            continue
        found += 1
        own = sums[number, : len(row.choices)].astype(np.float64)
        largest = max(largest, float(np.abs(own - np.array(sample[0])).max()))
        if items is not None and isinstance(sample[1].get(name), (int, float)):
            scores.append((float(sample[1][name]), float(items[number])))
    if not found:
        raise DataError(
            f"--lm-eval-samples {path}: none of the {len(rows):,} rows is in it with the same prompt and "
            f"continuations; the first row's text is {shown(_texts(rows, rows.rows[0])[0][0])}"
        )
    mean = np.mean(scores, axis=0).tolist() if scores else [math.nan, math.nan]
    return SamplesCheck(len(rows), found, largest, name, *mean)


def _read_samples(
    path: Path,
) -> Iterator[tuple[tuple[tuple[str, ...], ...], tuple[list[float], dict[str, Any]]]]:
    """Texts, log-likelihoods and the whole record of every sample."""
    try:
        lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")  # and not at U+2028
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--lm-eval-samples {path}: cannot be read ({one_line(error)})") from error
    for number, line in enumerate(lines, 1):
        try:
            sample = json.loads(line)
            asked = sample["arguments"]
            pairs = [tuple(map(str, one.values())) for one in asked.values()]
            values = [one[0][0] if isinstance(one[0], list) else one[0] for one in sample["resps"]]
            yield tuple(pairs), ([float(value) for value in values], sample)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise DataError(
                f"--lm-eval-samples {path} line {number}: no sample of log-likelihoods of "
                f"lm-evaluation-harness ({one_line(error)})"
            ) from error


def _texts(rows: Requests, row: Any) -> tuple[tuple[str, ...], ...]:
    """The harness's arguments for a row."""
    if rows.form == "text":
        return ((row.choices[0],),)
    return tuple((row.context, row.delimiter + choice) for choice in row.choices)


def _names(rows: Requests) -> dict[str, str]:
    """The harness's names of the metrics of these rows, by our names."""
    names = {ours: theirs for theirs, ours in THEIR_NAMES.get(rows.form, {}).items()}
    return {ours: theirs for ours, theirs in names.items() if not rows.metrics or ours in rows.metrics}


def _intact(results: AblationResults) -> int:
    return int(np.argmax(results.masks.all(axis=1)))


def _models(study: AblationRecord, results: AblationResults, name: str) -> Iterator[tuple[int, str]]:
    """The variants that are written, each with a name of the model."""
    yield _intact(results), name
    said = study.summary
    whole = said.switched is None and said.removed == ALL_OFF
    done = "all-adapters-off" if whole else said.removed.replace(" ", "-")
    yield int(np.argmin(results.masks.sum(axis=1))), f"{name}-{done}"
    table = study.removable
    if table is None or study.summary.study != "ablated":
        return
    wanted = table[(table["tolerance_points"] == 1) & (table["basis"] == "estimate")].dropna(subset=["first"])
    for row in wanted.to_dict("records"):
        first, last, stack = int(row["first"]), int(row["last"]), str(row.get("stack", ""))
        same = (results.spans == [first, last]).all(axis=1)
        if results.stacks is not None and stack:
            same &= results.stacks == stack
        if same.any():
            of = f"{stack}-".replace(" ", "-") if stack else ""
            yield int(same.argmax()), f"{name}-without-{of}layers-{first}-{last}"


def _tasks(study: AblationRecord, rows: Requests) -> list[tuple[str, np.ndarray]]:
    """The tasks with the numbers of their rows, int ``[rows]``."""
    groups = [row.group for row in rows.rows]
    if rows.documents and any(groups):
        return [(name, np.flatnonzero(np.array(groups) == name)) for name in dict.fromkeys(groups)]
    name = rows.documents[0].name if rows.documents else Path(str(study.summary.data or "rows")).stem
    return [(name, np.arange(len(groups)))]


def _items(results: AblationResults, rows: Requests, variant: int) -> dict[str, np.ndarray]:
    """What each row scores by every metric of its form, as the harness logs it: float64 ``[rows]``."""
    assert results.counts is not None, "only language models have these rows"
    found: dict[str, np.ndarray] = {}
    gold = np.array([row.gold for row in rows.rows])
    for ours in _names(rows):
        if ours == "greedy_accuracy":
            if results.greedy is not None:
                found[ours] = results.greedy[variant].astype(np.float64)
            continue
        sizes = continuation_sizes(ours, results.counts)
        predictions = predictions_from_likelihoods(ours, results.outputs[variant], sizes)
        found[ours] = -predictions if ours in LOSSES else (predictions == gold).astype(np.float64)
    return found


def _samples(
    results: AblationResults, rows: Requests, variant: int, kept: np.ndarray
) -> Iterator[dict[str, Any]]:
    items = _items(results, rows, variant)
    greedy = results.greedy
    for number in kept.tolist():
        row = rows.rows[number]
        texts, sums = _texts(rows, row), results.outputs[variant, number, : len(row.choices)].tolist()
        said = "None" if greedy is None else str(bool(greedy[variant, number]))
        resps = [[str(one)] if rows.form == "text" else [[str(one), said]] for one in sums]
        doc: Any = {"context": row.context, "choices": list(row.choices), "gold": row.gold}
        target: Any = row.gold if rows.form == "choice" else row.choices[0]
        if rows.documents:
            doc, target = rows.documents[number].doc, rows.documents[number].target
        yield {
            "doc_id": rows.documents[number].number - 1 if rows.documents else number,
            "doc": doc,
            "target": str(target),
            "arguments": {
                f"gen_args_{i}": {f"arg_{j}": text for j, text in enumerate(pair)}
                for i, pair in enumerate(texts)
            },
            "resps": resps,
            "filtered_resps": [one[0] for one in resps],
            "filter": "none",
            "metrics": [_names(rows)[ours] for ours in items],
            "doc_hash": _sha256(json.dumps(doc, indent=2, ensure_ascii=False, default=str)),
            "prompt_hash": _sha256(texts[0][0]),
            "target_hash": _sha256(str(target)),
            **{_names(rows)[ours]: float(values[number]) for ours, values in items.items()},
        }


def _aggregated(
    study: AblationRecord, results: AblationResults, rows: Requests, variant: int, prompting: Prompting
) -> dict[str, Any]:
    """The scores of every task, and what the harness says of it."""
    items = _items(results, rows, variant)
    counts = results.counts
    assert counts is not None, "only language models have these rows"
    made: dict[str, dict[str, Any]] = {
        name: {}
        for name in ("results", "group_subtasks", "configs", "versions", "n-shot", "higher_is_better")
    }
    made["n-samples"] = {}
    for task, kept in _tasks(study, rows):
        own: dict[str, Any] = {"name": task, "alias": task, "sample_len": len(kept)}
        for ours, values in items.items():
            theirs, part = _names(rows)[ours], values[kept]
            if ours in LOSSES:
                sizes = continuation_sizes(ours, counts)[kept, 0]
                own[f"{theirs},none"] = float(score(ours, -part, sizes))
                error: float | str = _NOT_GIVEN
            else:
                own[f"{theirs},none"] = float(part.mean())
                error = float(part.std(ddof=1) / math.sqrt(len(part))) if len(part) > 1 else _NOT_GIVEN
            own[f"{theirs}_stderr,none"] = error
        about = rows.documents[int(kept[0])] if rows.documents else None
        shots = prompting.num_fewshot if about is None else about.num_fewshot
        made["results"][task] = own
        made["configs"][task] = {"task": task, "num_fewshot": shots} if about is None else about.config
        made["versions"][task] = None if about is None else about.version
        made["n-shot"][task] = shots or 0
        made["higher_is_better"][task] = {_names(rows)[ours]: ours not in LOSSES for ours in items}
        made["n-samples"][task] = {"original": len(kept), "effective": len(kept)}
    return made


def _about(study: AblationRecord, name: str, prompting: Prompting, template: str | None) -> dict[str, Any]:
    """What the harness says of model and run, as far as it applies."""
    versions: Mapping[str, Any] = study.created_with or {}
    said = prompting.system_instruction
    return {
        "config": {"model": "adapter-probe", "model_args": {"peft": name}, "batch_size": None, "device": None,
                   "limit": None, "bootstrap_iters": 0, "gen_kwargs": None, "fewshot_seed": 1234},
        "git_hash": None, "date": time.time(), "adapter_probe_version": __version__,
        "transformers_version": versions.get("transformers"), "lm_eval_version": None,
        "model_source": "adapter-probe", "model_name": name,
        "model_name_sanitized": _sanitised(name),
        "system_instruction": said, "system_instruction_sha": _sha256(said) if said else None,
        "fewshot_as_multiturn": prompting.as_multiturn, "chat_template": template,
        "chat_template_sha": _sha256(template) if template else None,
    }  # fmt: skip


def _sanitised(name: str) -> str:
    """A model's name as the harness makes a folder's of it."""
    return re.sub(r"[\"<>:/|\\?*\[\]]+", "__", name)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
