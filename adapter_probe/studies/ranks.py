"""The function `ranks`, from its arguments to the tables in the results folder."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from adapter_probe import metrics
from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis.deltas import removed_row, row_scores
from adapter_probe.analysis.ranks import rank_summary, rank_table, spectra_table
from adapter_probe.analysis.removable import random_halves
from adapter_probe.analysis.strengths import joined
from adapter_probe.analysis.study_records import RankRecord
from adapter_probe.argument_checks import planned_by, taking
from adapter_probe.checkpoints.files import CONFIG, read_json_file
from adapter_probe.errors import AdapterProbeError, ResultsError, must_be
from adapter_probe.progress import activity
from adapter_probe.records import to_record
from adapter_probe.results import schema
from adapter_probe.results.atomic import claim_folder, write_csv, write_json
from adapter_probe.results.fingerprints import to_plain
from adapter_probe.results.sealing import begin_study, sealed
from adapter_probe.settings import as_points
from adapter_probe.wording import tolerance_text

from .ablate import Parts, computed, finished, planned
from .ablation_call import asked_of, opened_for
from .ablation_study import Ablation
from .checkpoint_arguments import RunRanks
from .load import load
from .rank_study import Ranks

if TYPE_CHECKING:
    from adapter_probe.probe.arguments import AblationArguments
    from adapter_probe.probe.request import AblationRequest

    from .cost_plan import AblationPlan
    from .model_in_memory import Given

USUAL = "ranks"
"""The results folder of a study with defaults, inside the checkpoint."""
_UNKNOWN = 16  # the rank of adapters whose configuration names none


@taking(RunRanks)
def plan(call: RunRanks) -> AblationPlan:
    """Estimate the time and memory of `ranks`, on a small batch; nothing is written.

    Raises:
        AdapterProbeError: see `ranks`.
    """

    def parts_of(given: AblationArguments, folder: Path) -> tuple[AblationArguments, Parts]:
        wanted = _ranks(call, None)
        return _at(given, wanted[-1]), _parts(given, folder, wanted)

    return planned(call, USUAL, parts_of)


@planned_by(plan)
@taking(RunRanks)
def ranks(call: RunRanks) -> Ranks:
    """Score a model against the directions that its adapters keep: how large a rank is needed?

    What an adapter changes in a map is a matrix, whose largest singular values with their vectors are its
    main directions. The adapters of all layers, and of every chosen span alone, keep so many of them, without
    retraining. The fewest that are needed are chosen on one half of the examples and judged on the other.

    Every rank has a subfolder with its ablation, so that the same call resumes an interrupted study and
    computes only the ranks that are added. ``ap.ranks.plan(...)`` with the same arguments estimates time and
    memory.

    Raises:
        CheckpointError, ModelError: the checkpoint or its base cannot be opened, or its adapters have no
            directions, or fewer than a rank.
        DataError: the examples cannot be read, do not fit the task, or have changed since training.
        ResultsError: a rank is not allowed, or the folder belongs to another study, is in use, or cannot be
            written.
    """
    within = as_points("--within", call.within)
    with opened_for(call) as (call, opened, temporary):
        wanted = _ranks(call, opened)
        ((arguments, folder),) = asked_of(call, USUAL, opened)
        parts = _parts(arguments, folder, wanted)
        with claim_folder(folder):
            spectra = _spectra_of(folder)
            found = None if opened is not None or spectra is None else finished(USUAL, call, [parts])
            if found is None:
                request, found = computed(USUAL, call, opened, _at(arguments, wanted[-1]), [parts])
                spectra = _measured(request)
            assert spectra is not None, "it is measured where it is not read"
            results = {float(rank): one.results for rank, one in zip(wanted, found[0])}
            with activity("ranks: computing intervals", call.progress):
                record = _write(folder, results, spectra, within)
    return Ranks(record, temporary)


def _ranks(call: RunRanks, opened: Given | None) -> list[int]:
    """The ranks to compute, ascending; by default the powers of two below that of the adapters."""
    if call.ranks:
        if wrong := [one for one in call.ranks if one != int(one)]:
            raise ResultsError(must_be("--ranks", "whole numbers", wrong[0]))
        return sorted(set(map(int, call.ranks)))
    own = _UNKNOWN
    if opened is not None:
        configs = getattr(opened.opened.model, "peft_config", {}).values()
        own = next((one.r for one in configs if isinstance(getattr(one, "r", None), int)), own)
    else:
        with suppress(AdapterProbeError):
            document = read_json_file(Path(str(call.checkpoint)) / CONFIG)
            pattern = document.get("rank_pattern")
            several = [one for one in pattern.values() if isinstance(one, int)] if pattern else []
            named = document.get("r", document.get("init_r"))
            own = max([named, *several]) if isinstance(named, int) else own
    return [2**n for n in range(max(1, own - 1).bit_length())]


def _at(arguments: AblationArguments, rank: int) -> AblationArguments:
    return replace(arguments, settings=replace(arguments.settings, rank=rank))


def _parts(arguments: AblationArguments, folder: Path, wanted: Sequence[int]) -> Parts:
    """The ablation of every rank, with its folder."""
    return [(_at(arguments, rank), folder / f"rank-{rank}") for rank in wanted]


def _spectra_of(folder: Path) -> pd.DataFrame | None:
    """The singular values of a finished study."""
    with suppress(ResultsError):
        study = load(folder) if (folder / schema.RANKS_CSV).is_file() else None
        return study.spectra if isinstance(study, Ranks) else None
    return None


def _measured(request: AblationRequest) -> pd.DataFrame:
    """The singular values of an open checkpoint's adapters."""
    from adapter_probe.replay.directions import directions

    found, seen, place = [], set(), 0
    # Bool [sites]: those that are truncated in some variant.
    chosen = np.logical_not(request.variants.masks.all(axis=0))
    for number, layer in enumerate(request.model.layers):
        names = {module: name for name, module in layer.module.named_modules()}
        parts = [part for part, some in zip(layer.parts, chosen[place:]) if some]
        place += len(layer.parts)
        for module in (module for part in parts for module in part):
            if module not in seen and (own := directions(module)) is not None:
                name = f"{layer.name}.{names[module]}".removeprefix("base_model.model.")
                found.append((number, name, own.values.numpy()))
            seen.add(module)
    return spectra_table(found)


def _write(
    folder: Path, results: Mapping[float, AblationResults], spectra: pd.DataFrame, within: float
) -> RankRecord:
    """Write the study into its folder.

    Raises:
        ResultsError: the folder holds another study.
    """
    identity: dict[str, Any] = {**next(iter(results.values())).identity}
    identity["settings"] = {k: v for k, v in identity["settings"].items() if k != "rank"}
    study: dict[str, Any] = {"schema": 1, "study": "ranks", "identity": to_plain(identity)}
    begin_study(folder, study)
    largest = int(spectra["direction"].max())
    below = {rank: one for rank, one in results.items() if rank < largest} or dict(results)
    whole, variants = joined(below)
    table = rank_table(whole, variants, spectra, largest)
    summary = rank_summary(whole, variants, spectra, largest, within)
    with sealed(folder, schema.RANK_FILES):
        write_csv(folder / schema.RANKS_CSV, table)
        write_csv(folder / schema.SPECTRA_CSV, spectra)
        write_json(folder / schema.SUMMARY, to_record(summary))
    return RankRecord(folder, table, spectra, summary, study)


@dataclass(frozen=True, eq=False)
class ChosenRank:
    """A rank that was chosen on one half of the examples.

    Attributes:
        rank: it.
        study: the ablation with it.
        n_examples: on how many examples it was chosen.
        measured: int ``[examples]``, the others.
    """

    rank: int
    study: Ablation
    n_examples: int
    measured: np.ndarray


def chosen_rank(given: Ranks | str | Path, within: float) -> ChosenRank:
    """The smallest rank of a study that costs at most `within` points on one half of the examples.

    Raises:
        ResultsError: it is no study of ranks, has too few examples, or none costs so little.
    """
    study = given if isinstance(given, Ranks) else load(given)
    if not isinstance(study, Ranks):
        raise ResultsError(f"{given} contains no study of ranks; run `adapter-probe ranks` first")
    for rank in sorted(set(study.table["rank"])):
        place = study.folder / f"rank-{rank}"
        part = load(place) if place.is_dir() else None
        if not isinstance(part, Ablation):  # of all directions
            continue
        chosen, measured = random_halves(part.results)
        if not len(chosen):
            raise ResultsError(f"{study.folder} has too few examples to choose a rank on half of them")
        half = part.results.of_examples(chosen)
        before, after = row_scores(half)[[0, removed_row(half)]]
        points = float(metrics.to_points(half.metric, after - before))
        if math.isfinite(points) and points >= -within:
            return ChosenRank(int(rank), part, len(chosen), measured)
    limit = tolerance_text(within, study.summary.metric)
    raise ResultsError(
        f"{study.folder}: of the ranks that were tried, none costs at most {limit} on the half of the "
        "examples that it is chosen on; give a larger --within, or run `adapter-probe ranks` with more "
        "--ranks"
    )
