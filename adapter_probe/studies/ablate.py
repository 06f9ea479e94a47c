"""The span ablation in four steps: open the model, read the examples, run the variants, compute statistics.

What a call is about is in `opened`, which ablations it asks for in `asked`, and what is there already in
`reopened`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from adapter_probe.ablation_settings import AblationSettings
from adapter_probe.analysis.study_records import ablation_record, write_record
from adapter_probe.argument_checks import planned_by, taking
from adapter_probe.custom_metric import CustomMetric
from adapter_probe.jobs.resources import Machine
from adapter_probe.probe.ablation_arguments import AblationArguments
from adapter_probe.progress import activity, print_message, progress_bar
from adapter_probe.reads import recorded
from adapter_probe.results.ablation_files import save_predictions, write_generations

from .ablation_study import Ablation
from .asked import USUAL, Parts, asked_of, refuse_other_settings
from .checkpoint_arguments import Ablate, Subject
from .cost_plan import AblationPlan, plan_ablation
from .opened import Opened, opened_for
from .reopened import finished, record_reads

if TYPE_CHECKING:
    from adapter_probe.probe.request import AblationRequest
    from adapter_probe.probe.resumable import AblationRun


Asked = tuple[AblationArguments, Parts]
"""The arguments with which a checkpoint is opened, and the ablations."""


@taking(Ablate)
def plan(call: Ablate) -> AblationPlan:
    """Estimate the time and memory of `ablate`, on a small batch and without `against`; nothing is written.

    Raises:
        AdapterProbeError: see `ablate`.
    """
    return planned(call, "ablate", USUAL, lambda _, arguments, folder: (arguments, [(arguments, folder)]))


def planned(
    call: Ablate, name: str, usual: str, parts_of: Callable[[Opened, AblationArguments, Path], Asked]
) -> AblationPlan:
    """The plan of a study that consists of one or more ablations.

    Args:
        call: what the user gave.
        name: name of the function.
        usual: name of the results folder with settings at their defaults.
        parts_of: from what is opened, the arguments and the results folder what is asked for.

    Raises:
        AdapterProbeError: see `ablate`.
    """
    began = time.perf_counter()
    subject, machine, settings = Subject.of(call), Machine.of(call), AblationSettings.of(call)
    with TemporaryDirectory() as folder_of_rows, opened_for(subject, machine, call.out) as opened:
        arguments, folder = asked_of(opened, settings, usual, Path(folder_of_rows))[0]
        opening, parts = parts_of(opened, arguments, folder)
        request = prepare(name, opened, opening)
        requests = [(replace(request, settings=one.settings), where) for one, where in parts]
        with activity(f"{name}: measuring the speed on a small batch", machine.progress):
            return plan_ablation(requests, folder, time.perf_counter() - began)


@planned_by(plan)
@taking(Ablate)
def ablate(call: Ablate) -> Ablation:
    """Switch adapters off over every contiguous span of layers, or some of them, without retraining.

    The results are written to a folder inside the checkpoint, or to `out`; those of a checkpoint on the
    Hugging Face Hub to ``NAME-ablation`` in the working directory. The same call resumes an
    interrupted run, and reads a finished one back. ``ap.ablate.plan(...)`` with the same arguments estimates
    time and memory.

    A model in memory is left as it was: modes, switches, gradients, hooks, precision and device. Its results
    stay in a temporary folder as long as the study exists, unless `Ablation.save` keeps them.

    Raises:
        CheckpointError, ModelError: the checkpoint or its base cannot be opened.
        DataError: the examples cannot be read, do not fit the task, or have changed since training.
        ResultsError: the folder belongs to another run, is in use, or cannot be written.
        TrainingError: jobs on the cluster failed.
        JobsDetached: the jobs were submitted, and `cluster` is set not to wait for them.
    """
    subject, machine, settings = Subject.of(call), Machine.of(call), AblationSettings.of(call)
    with opened_for(subject, machine, call.out) as opened:
        groups = [[one] for one in asked_of(opened, settings, USUAL)]
        found = finished("ablate", opened, groups)
        for line in found[0][0].question if found else ():
            print_message(line, machine.progress)
        if found is None:
            refuse_other_settings([one for group in groups for one in group])
            _, found = computed("ablate", opened, groups[0][0][0], groups)
        against = found[1][0] if len(found) > 1 else None
        return replace(found[0][0], against=against, _temporary=opened.temporary)


def prepare(name: str, opened: Opened, arguments: AblationArguments) -> AblationRequest:
    """The open checkpoint, or model in memory, with its examples, on the device."""
    from adapter_probe.device import choose_device, use_threads
    from adapter_probe.probe.request import prepare_ablation

    machine, model = opened.machine, opened.model
    with activity(f"{name}: opening {arguments.checkpoint}", machine.progress):
        if machine.cluster is None:
            use_threads(machine.threads)
        device = choose_device(machine.device if machine.cluster is None else "auto")
        request = prepare_ablation(arguments, device, model, opened.examples)
        loaded = model is not None or arguments.adapters
        if loaded and not arguments.settings.by_layer:  # which have no modules that are all off
            from adapter_probe.checkpoints.in_memory import refuse_other_off

            refuse_other_off(request.checkpoint.model, request.model, request.model.example)
    return _tried(replace(request, data=opened.subject.name) if opened.subject.name else request)


def _tried(request: AblationRequest) -> AblationRequest:
    """The request with a metric of the user's own that was called once, on what is right for all examples.

    What it raises, it raises before the model runs.
    """
    rows: Any = request.examples.rows
    metric = request.metric
    if request.score_texts is not None and not rows.documents:
        request.score_texts([[row.choices[0] for row in rows.rows]])
    if isinstance(metric, CustomMetric) and not metric.of_outputs:
        labels = request.examples.labels
        return replace(request, metric=metric.with_scale(labels, labels))
    return request


def computed(
    name: str,
    opened: Opened,
    opening: AblationArguments,
    groups: Sequence[Parts],
    begin: Callable[[Path, Mapping[str, Any]], object] | None = None,
) -> tuple[AblationRequest, list[list[Ablation]]]:
    """What one open model is asked for, and its ablations on the data and then on that of `against`.

    Before either of these, `begin` is called with the folder of its ablations and the identity of the first.
    """
    from adapter_probe.probe.request import on_other_data

    machine = opened.machine
    with recorded() as reads:
        request = first = prepare(name, opened, opening)
    if machine.cluster is not None:
        from adapter_probe.jobs.running import Resources
        from adapter_probe.jobs.shards import compute_in_shards

        compute_in_shards(opening, request, groups[0][0][1], Resources.of(machine), machine.cluster)
    found: list[list[Ablation]] = []
    for parts in groups:
        if found:
            with recorded(reads.of_model()) as reads:
                request = on_other_data(request, parts[0][0])
        studies: list[Ablation] = []
        if begin is not None:
            begin(parts[0][1].parent, replace(request, settings=parts[0][0].settings).identity)
        for one, folder in parts:
            title = name if name == "ablate" else f"{name} {one.settings.rank or one.settings.scale:g}"
            asked = replace(request, settings=one.settings)
            remarks = () if studies else request.question
            studies.append(_run(asked, folder, machine.progress, title, remarks))
            if opened.model is None:
                record_reads(one, reads, folder)
        found.append(studies)
    return first, found


def _run(
    request: AblationRequest, folder: Path, progress: bool, name: str, remarks: Sequence[str]
) -> Ablation:
    """Compute the missing parts of an ablation and write its tables.

    `remarks`: what to say first, of the checkpoint and of the rows, which are the same for several studies.
    """
    from adapter_probe.probe.resumable import AblationRun

    with AblationRun(request, folder) as run:
        for remark in remarks:  # so that they do not precede a refusal
            print_message(remark, progress)
        for damaged in run.damaged:
            print_message(f"{damaged} is damaged or belongs to another run; computing it again", progress)
        with _bar(run, request, progress, name) as report:
            run.compute(report)
        results = run.results()
        for note in run.notes:
            print_message(note, progress)
        with activity(f"{name}: computing intervals and tests of every span", progress):
            record = ablation_record(results, folder, run.created_with)
            others = [partial(save_predictions, folder, results)]
            if run.texts is not None:
                others.append(partial(write_generations, folder, results, run.texts))
            write_record(record, others)
    return Ablation(record, results)


@contextmanager
def _bar(run: AblationRun, request: AblationRequest, progress: bool, name: str) -> Iterator[Any]:
    total, done = run.tokens_total, run.tokens_done
    if done == total:
        yield lambda _: None
        return
    if request.settings.precision in ("mixed", "bfloat16"):
        from adapter_probe.device import say_slow_bfloat16

        if progress and (slow := say_slow_bfloat16(request.device, "--precision float32")):
            print_message(slow)
    with progress_bar(name, total, "tokens", done, progress) as bar:
        yield bar.update
