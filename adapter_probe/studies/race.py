"""The race of spans: the function `race`, its result, `Race`, and the span that `prune` removes by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from adapter_probe.ablation_settings import RaceSettings
from adapter_probe.analysis.deltas import section_of
from adapter_probe.analysis.race_tables import RaceSummary, race_rows, race_summary, race_table
from adapter_probe.analysis.study_records import RaceRecord, write_record
from adapter_probe.analysis.summary_text import plain_text
from adapter_probe.argument_checks import checked, taking
from adapter_probe.progress import activity, progress_bar
from adapter_probe.reads import recorded
from adapter_probe.results.fingerprints import to_plain
from adapter_probe.settings import Style

from .ablate import prepare, say_before
from .ablation_call import asked_of, opened_for, record_reads, refuse_other_settings, reopen
from .checkpoint_arguments import RunRace
from .study_base import StoredStudy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False, repr=False)
class Race(StoredStudy):
    """Verdicts on spans without all examples for all of them; what `adapter_probe.race` returns."""

    record: RaceRecord

    @property
    def spans(self) -> pd.DataFrame:
        """One row per span, ``spans.csv``.

        `first`, `last` and `n_layers`; `decision`: ``within`` or ``beyond`` the tolerance, ``assumed beyond``
        (not tried, since a shorter span inside is not within), ``not needed``, ``undefined``, and of
        ``least:K`` ``among the least`` or not; `n_examples`, how many examples the span was computed on;
        `score` and `delta_points` on these alone; `bound_low_points` and `bound_high_points`, between which
        `delta_points` on all examples lies: each of the two is right for all spans together with a
        probability of at least 1 - `risk`. There are neither tests nor bootstrap intervals.
        """
        return self.record.spans

    @property
    def summary(self) -> RaceSummary:
        """The answer, with what is certain about it and what it cost, ``race.json``."""
        return self.record.summary

    @property
    def identity(self) -> Mapping[str, object]:
        """Everything that determines the numbers: checkpoint, base, data, settings and those of the race."""
        return self.record.identity

    @checked
    def plot(self, ax: Axes | None = None, *, notes: bool = True, style: Style | None = None) -> Axes:
        """Draw the verdict on every span, and how many examples it took.

        Arguments as of `adapter_probe.Ablation.heatmap`; the notes are task, answer and certainty.
        """
        from adapter_probe.figures.race import race

        return self._on(race, ax, style, notes=notes)

    def rows(self) -> list[tuple[str, str]]:
        """The answer, its certainty and its cost, as pairs of text."""
        return [(plain_text(name), plain_text(said)) for name, said in race_rows(self.summary)]


@taking(RunRace)
def race(call: RunRace) -> Race:
    """Decide which spans of adapters can be switched off, without all examples for all spans.

    Examples are read in a random order, and every span is compared with the intact model until a bound that
    holds at every look says that its drop on all examples of the evaluation is within the tolerance, or
    beyond it. All verdicts are right with a probability of at least 1 - `risk` over that order. The same call
    resumes an interrupted race, and reads a finished one back.

    Raises:
        CheckpointError, ModelError: the checkpoint or its base cannot be opened.
        DataError: the examples cannot be read, do not fit the task, or have changed since training.
        ResultsError: the metric is no mean over examples, a setting is not allowed in a race, or the folder
            belongs to another run, is in use, or cannot be written.
    """
    settings = RaceSettings.of(call)
    with opened_for(call) as (call, opened, temporary):
        arguments, folder = asked_of(call, "-".join(["race", *settings.slugs().values()]), opened)[0]
        found = None if opened is not None else reopen(arguments, folder, Race)
        if found and section_of(found.identity, "race") == _asked(settings, found.summary.metric):
            return found
        refuse_other_settings([(arguments, folder)])
        from adapter_probe.probe.resumable import RaceRun

        with recorded() as reads:
            request = prepare("race", call, arguments, opened)
        asked = _asked(settings, request.metric)
        with RaceRun(request, settings, asked, folder) as run:
            say_before(run, [*request.checkpoint.notes, *request.remarks], call.progress)
            with progress_bar("race", run.n_evaluations, "evaluations", 0, call.progress) as bar:
                state = run.compute(bar.update)
            with activity("race: computing bounds", call.progress):
                table = race_table(state, run.intact)
                summary = race_summary(state, run.intact, run.layer_share, run.about(), run.chance_score())
                record = RaceRecord(folder, table, summary, run.identity, run.created_with)
                write_record(record)
        if opened is None:
            record_reads(arguments, reads, folder)
    return Race(record, _temporary=temporary)


def _asked(settings: RaceSettings, metric: str) -> Any:
    """What determines a race besides an ablation's identity."""
    return to_plain({**settings.to_json(), "metric": metric})
