"""The function `race`, from its arguments to the tables in the results folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from adapter_probe.ablation_settings import RaceSettings
from adapter_probe.analysis.deltas import section_of
from adapter_probe.analysis.race_tables import race_summary, race_table
from adapter_probe.analysis.study_records import RaceRecord
from adapter_probe.argument_checks import taking
from adapter_probe.progress import activity, print_message, progress_bar
from adapter_probe.reads import recorded
from adapter_probe.records import to_record
from adapter_probe.results import schema
from adapter_probe.results.ablation_files import write_spans
from adapter_probe.results.atomic import write_json
from adapter_probe.results.fingerprints import to_plain
from adapter_probe.results.sealing import sealed

from .ablation_call import asked_of, opened_for, record_reads, refuse_other_settings, reopen
from .checkpoint_arguments import RunRace
from .race_study import Race

if TYPE_CHECKING:
    from adapter_probe.probe.racing import RaceRun


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
        from adapter_probe.device import choose_device, use_threads
        from adapter_probe.probe.racing import RaceRun
        from adapter_probe.probe.request import prepare_ablation

        with activity(f"race: opening {arguments.checkpoint}", call.progress), recorded() as reads:
            use_threads(call.threads)
            request = prepare_ablation(arguments, choose_device(call.device), *(opened or ()))
        asked = _asked(settings, request.metric)
        with RaceRun(request, settings, asked, folder) as run:
            remarks = [*request.checkpoint.notes, *request.remarks]
            record = _run(run, remarks, call.progress)
        if opened is None:
            record_reads(arguments, reads, folder)
    return Race(record, temporary)


def _asked(settings: RaceSettings, metric: str) -> Any:
    """What determines a race besides an ablation's identity."""
    return to_plain({**settings.to_json(), "metric": metric})


def _run(run: RaceRun, remarks: Sequence[str], progress: bool) -> RaceRecord:
    """Run a race to its end and write its tables."""
    for remark in remarks:
        print_message(remark, progress)
    for damaged in run.damaged:
        print_message(f"{damaged} is damaged or belongs to another run; computing it again", progress)
    with progress_bar("race", run.n_evaluations, "evaluations", 0, progress) as bar:
        state = run.compute(bar.update)
    with activity("race: computing bounds", progress):
        table = race_table(state, run.intact)
        summary = race_summary(state, run.intact, run.layer_share, run.about(), run.chance_score())
        with sealed(run.path, schema.RACE_FILES):
            write_spans(run.path, table)
            write_json(run.path / schema.RACE, to_record(summary))
    return RaceRecord(run.path, table, summary, run.identity, run.created_with)
