"""Studies that score a model at several values of one setting, such as the strength of its adapters.

Every value has a subfolder with its ablation, so that the same call resumes an interrupted study and computes
only the values that are added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from adapter_probe.ablation_settings import AblationSettings
from adapter_probe.analysis.summary_text import plain_text, score_text
from adapter_probe.argument_checks import checked
from adapter_probe.errors import ResultsError
from adapter_probe.jobs.resources import Machine
from adapter_probe.progress import activity, print_message
from adapter_probe.settings import Style
from adapter_probe.wording import examples_text, metric_name

from .checkpoint_arguments import Subject
from .study_base import StoredStudy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from adapter_probe.ablation_results import AblationResults
    from adapter_probe.analysis.study_records import DegreeRecord, RankRecord, StrengthRecord
    from adapter_probe.probe.ablation_arguments import AblationArguments
    from adapter_probe.probe.request import AblationRequest

    from .checkpoint_arguments import Ablate
    from .cost_plan import AblationPlan
    from .opened import Opened


class DegreeStudy(StoredStudy):
    """Base class of these studies, which have a table of scores by value and a summary with a verdict."""

    record: StrengthRecord | RankRecord

    @checked
    def plot(self, ax: Axes | None = None, *, style: Style | None = None) -> Axes:
        """Draw the score against the strength of the adapters, or against the directions that they keep.

        Arguments as of `adapter_probe.Ablation.heatmap`.
        """
        from adapter_probe.figures.strengths import strengths

        return self._on(strengths, ax, style)

    def facts(self) -> dict[str, Any]:
        """See `StoredStudy.facts`."""
        from adapter_probe.results.schema import plain_rows

        verdict, points = self.record.summary.verdict, plain_rows(self.record.table)
        return {**super().facts(), "verdict": verdict, "points": points}

    def rows(self) -> list[tuple[str, str]]:
        """The answer, what was evaluated, and the score at every value, as pairs of texts."""
        said = self.record.summary
        counted = f"{examples_text(said.n_examples, said.metric)}, {metric_name(said.metric)}"
        about = f"{said.task}, {said.data}, {counted}"
        return [(self._asked(), plain_text(said.verdict)), ("task", about), *self._scores().items()]

    def _asked(self) -> str:
        """What the row of the answer is called."""
        return self.record.asked.lower()

    def _scores(self) -> dict[str, str]:
        whole, name = self.record.table[self.record.table["whole"]], self.record.degree
        scores = [score_text(score, self.record.summary.metric) for score in whole["score"]]
        return {f"{name} {value:g}": score for value, score in zip(whole[name], scores)}


@dataclass(frozen=True)
class Degrees:
    """How a study of several values is run.

    Attributes:
        setting: the field of `AblationSettings` that has the values.
        usual: name of the study, and of its results folder with settings at their defaults.
        command: name of the function.
        values: from the arguments, and what is opened, the values in ascending order.
        opening: from these the one with which the checkpoint is opened.
        record: the study's record from its folder, its identity, the ablations by value, the request that
            they were computed with (None where all were there), and the study that was in the folder.
    """

    setting: str
    usual: str
    command: str
    values: Callable[[Any, Opened], Sequence[float]]
    opening: Callable[[Sequence[float]], float]
    record: Callable[
        [Path, dict[str, Any], Mapping[float, AblationResults], AblationRequest | None, Any], DegreeRecord
    ]

    def plan(self, call: Ablate) -> AblationPlan:
        """See `ablate.plan`."""
        from .ablate import planned

        def parts_of(opened: Opened, arguments: AblationArguments, folder: Path) -> Any:
            values = self.values(call, opened)
            return self._at(arguments, self.opening(values)), self._parts(arguments, folder, values)

        return planned(call, self.command, self.usual, parts_of)

    def run(self, call: Ablate) -> tuple[list[Any], TemporaryDirectory[str] | Path | None]:
        """The records of the study, and of that on the data of `against`; the folder of a model in memory."""
        from adapter_probe.results.atomic import claim_folder

        from .ablate import computed
        from .asked import asked_of
        from .load import holds_results, load
        from .opened import opened_for
        from .reopened import finished

        subject, machine, settings = Subject.of(call), Machine.of(call), AblationSettings.of(call)
        with opened_for(subject, machine, call.out) as opened:
            values = self.values(call, opened)
            asked = asked_of(opened, settings, self.usual)
            groups = [self._parts(arguments, folder, values) for arguments, folder in asked]
            with claim_folder(asked[0][1]):
                previous: list[Any] = []
                with suppress(ResultsError):
                    previous = [load(folder) for _, folder in asked if holds_results(folder)]
                alike = [one for one in previous if isinstance(one, DegreeStudy)]
                there = opened.model is None and len(alike) == len(asked)
                found = finished(self.command, opened, groups) if there else None
                for line in alike[0].question if found else ():
                    print_message(line, machine.progress)
                request = None
                if found is None:
                    opening = self._at(asked[0][0], self.opening(values))
                    request, found = computed(self.command, opened, opening, groups, self._begin)
                with activity(f"{self.command}: computing intervals", machine.progress):
                    records = [
                        self._write(folder, {v: one.results for v, one in zip(values, own)}, request, old)
                        for (_, folder), own, old in zip(asked, found, alike if there else [None, None])
                    ]
        return records, opened.temporary

    def _at(self, arguments: AblationArguments, value: float) -> AblationArguments:
        changed: dict[str, Any] = {self.setting: value}
        return replace(arguments, settings=replace(arguments.settings, **changed))

    def _parts(
        self, arguments: AblationArguments, folder: Path, values: Sequence[float]
    ) -> list[tuple[AblationArguments, Path]]:
        """The ablation of every value, with its folder."""
        return [(self._at(arguments, v), folder / f"{self.setting}-{v:g}") for v in values]

    def _write(
        self,
        folder: Path,
        results: Mapping[float, AblationResults],
        request: AblationRequest | None,
        previous: Any,
    ) -> DegreeRecord:
        """Write the study into its folder."""
        from adapter_probe.analysis.study_records import write_record

        study = self._begin(folder, next(iter(results.values())).identity)
        record = self.record(folder, study, results, request, previous)
        write_record(record)
        return record

    def _begin(self, folder: Path, identity: Mapping[str, Any]) -> dict[str, Any]:
        """Claim the folder for the study, before anything is computed; refuse that of another one."""
        from adapter_probe.results.atomic import make_folder
        from adapter_probe.results.fingerprints import to_plain
        from adapter_probe.results.manifests import begin_study

        settings = {k: v for k, v in identity["settings"].items() if k != self.setting}
        plain = to_plain({**identity, "settings": settings})
        study: dict[str, Any] = {"schema": 1, "study": self.usual, "identity": plain}
        begin_study(make_folder(folder), study)
        return study
