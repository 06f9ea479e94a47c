"""Scores against the directions that adapters keep: the function `ranks` and its result, `Ranks`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapter_probe.argument_checks import checked, planned_by, taking
from adapter_probe.checkpoints.files import CONFIG, read_json_file
from adapter_probe.errors import AdapterProbeError, ResultsError, must_be
from adapter_probe.settings import OutsideChoice, Style, as_points, fixed, setting

from .checkpoint_arguments import OnOneMachine, spans_of_degrees
from .degrees import Degrees, DegreeStudy

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from adapter_probe.ablation_results import AblationResults
    from adapter_probe.analysis.ranks import RankSummary
    from adapter_probe.analysis.study_records import RankRecord
    from adapter_probe.probe.request import AblationRequest

    from .cost_plan import AblationPlan
    from .example_files import ExampleSource
    from .opened import Opened

_UNKNOWN = 16  # the rank of adapters whose configuration names none


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RunRanks(OnOneMachine):
    """Score the model with the largest directions of its adapters only: how large a rank is needed?

    What an adapter adds to a linear layer is a matrix; its directions are its singular vectors, the largest
    first. All adapters, and with --spans those of spans of layers alone, keep so many of them, without
    retraining. The fewest that cost at most --within points are chosen on one half of the examples and judged
    on the other.

    Writes ranks.csv, spectra.csv and ranks and spectra as .pdf, .svg and .png into the results folder. Run
    the same command again to resume an interrupted run, or with more ranks to add them.

    Example: adapter-probe ranks my-lora --data reviews.csv
    """

    ranks: Sequence[int] = setting(
        (), "numbers of directions to keep; by default 1, 2, 4, ... below the rank of the adapters. All of "
        "them, the adapter as it was trained, are always among them.", panel="Spans", least=1,
    )  # fmt: skip
    spans: str = spans_of_degrees("truncated")
    within: float = setting(
        1.0, "percentage points that the needed directions may cost.", panel="Spans", metavar="POINTS"
    )
    strength: float = fixed(0.0)
    outside: OutsideChoice = fixed("finetuned")
    against: ExampleSource = fixed(())


@dataclass(frozen=True, eq=False, repr=False)
class Ranks(DegreeStudy):
    """Scores against the directions that adapters keep; what `adapter_probe.ranks` returns."""

    record: RankRecord

    @property
    def table(self) -> pd.DataFrame:
        """One row per rank and span, ``ranks.csv``.

        `rank`, how many directions every tuned matrix keeps; of several stacks of layers `stack`, in which
        layers are numbered, of a map of modules `module`, both ``all`` of all together; `first`, `last`,
        `n_layers`, the span whose adapters are truncated; `whole`, whether it is of all that the study
        truncates; `score` (a fraction, in the metric's own units); `delta_points`, score minus that with all
        directions, in points, so that a loss is negative, with its 95% interval `ci_low_points`,
        `ci_high_points`; `energy`, the share of the squared singular values of what is truncated that is
        kept; `n_examples`.
        """
        return self.record.ranks

    @property
    def spectra(self) -> pd.DataFrame:
        """The singular values of every tuned weight matrix, ``spectra.csv``.

        `stack` of several stacks, `layer`, `site` (what the study truncates as one), `module`, `expert` (0 of
        a map alone), `direction` (from 1), `value`.
        """
        return self.record.spectra

    @property
    def effective_ranks(self) -> pd.DataFrame:
        """The effective rank of every tuned weight matrix, by `layer` and `module`; of experts, the mean."""
        from adapter_probe.analysis.ranks import effective_rank

        groups = self.spectra.groupby(["layer", "module", "expert"], sort=False)["value"]
        found = groups.apply(lambda values: effective_rank(values.to_numpy(float)))
        return found.groupby(["layer", "module"], sort=False).mean().rename("effective_rank").reset_index()

    @property
    def summary(self) -> RankSummary:
        """How many directions are needed, ``summary.json``."""
        return self.record.summary

    @checked
    def plot_spectra(self, ax: Axes | None = None, *, style: Style | None = None) -> Axes:
        """Draw the singular values of every layer's change; arguments as of `plot`."""
        from adapter_probe.figures.strengths import spectra

        return self._on(spectra, ax, style)

    def _asked(self) -> str:
        return "directions needed"

    def _scores(self) -> dict[str, str]:
        said, scores = self.summary, super()._scores()
        shares = self.table.loc[self.table["whole"], "energy"]
        kept = {
            n: f"{own}, {100 * share:.0f}% of the energy" for (n, own), share in zip(scores.items(), shares)
        }
        return {
            "effective rank": f"{said.effective:.1f} of {said.largest}, the mean of the tuned matrices",
            **kept,
        }


def _ranks(call: RunRanks, opened: Opened) -> list[int]:
    """The ranks to compute, ascending; by default the powers of two below that of the adapters."""
    if call.ranks:
        if wrong := [one for one in call.ranks if one != int(one)]:
            raise ResultsError(must_be("--ranks", "whole numbers", wrong[0]))
        return sorted(set(map(int, call.ranks)))
    from adapter_probe.checkpoints.adapter_folder import choose_adapter, only_adapter

    own = _UNKNOWN
    if opened.model is not None:
        configs = getattr(opened.model.model, "peft_config", {}).values()
        own = next((one.r for one in configs if isinstance(getattr(one, "r", None), int)), own)
    else:
        with suppress(AdapterProbeError):
            first = (opened.subject.adapter or "").partition(",")[0].strip()
            folder = choose_adapter(Path(str(opened.subject.checkpoint)), first or None)
            folder = folder if (folder / CONFIG).is_file() else only_adapter(folder) or folder
            document = read_json_file(folder / CONFIG)
            pattern = document.get("rank_pattern")
            several = [one for one in pattern.values() if isinstance(one, int)] if pattern else []
            if isinstance(mlx := document.get("lora_parameters"), dict):  # of MLX-LM
                document = {"r": mlx.get("rank")}
            named = document.get("r", document.get("init_r"))
            own = max([named, *several]) if isinstance(named, int) else own
    return [2**n for n in range(max(1, own - 1).bit_length())]


def _measured(request: AblationRequest) -> pd.DataFrame:
    """The singular values of an open checkpoint's adapters."""
    import numpy as np

    from adapter_probe.analysis.ranks import spectra_table
    from adapter_probe.replay.directions import directions

    found, seen, place = [], set(), 0
    # Bool [sites]: those that are truncated in some variant.
    chosen = np.logical_not(request.variants.masks.all(axis=0))
    numbers = [(one.name, number) for one in request.model.stacks for number in range(one.n_layers)]
    for number, layer in zip(numbers, request.model.layers):
        names = {module: name for name, module in layer.module.named_modules()}
        sites = zip(request.variants.sites, layer.parts, chosen[place:])
        place += len(layer.parts)
        for site, module in ((site.name, module) for site, part, some in sites if some for module in part):
            if module not in seen and (own := directions(module)) is not None:
                name = f"{layer.name}.{names[module]}".removeprefix("base_model.model.")
                found.append((*number, site, name, own.values.numpy()))
            seen.add(module)
    return spectra_table(found)


def _record(
    folder: Path,
    study: dict[str, Any],
    results: Mapping[float, AblationResults],
    request: AblationRequest | None,
    previous: Ranks,
    within: float,
) -> RankRecord:
    from adapter_probe.analysis.ranks import rank_summary, rank_table
    from adapter_probe.analysis.strengths import joined
    from adapter_probe.analysis.study_records import RankRecord

    spectra = previous.spectra if request is None else _measured(request)
    largest = int(spectra["direction"].max())
    whole, variants = joined({rank: one for rank, one in results.items() if rank < largest} or results)
    table = rank_table(whole, variants, spectra, largest)
    return RankRecord(folder, table, spectra, rank_summary(whole, variants, spectra, largest, within), study)


def _degrees(call: RunRanks) -> Degrees:
    record = partial(_record, within=as_points("--within", call.within))
    return Degrees("rank", "ranks", "ranks", _ranks, lambda ranks: ranks[-1], record)


@taking(RunRanks)
def plan(call: RunRanks) -> AblationPlan:
    """Estimate the time and memory of `ranks`, on a small batch; nothing is written.

    Raises:
        AdapterProbeError: see `ranks`.
    """
    return _degrees(call).plan(call)


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
    (record,), temporary = _degrees(call).run(call)
    return Ranks(record, _temporary=temporary)
