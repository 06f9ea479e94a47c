"""One training from Python: the function `train` and its outcome."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from adapter_probe.argument_checks import taking
from adapter_probe.errors import ModelError
from adapter_probe.progress import print_message, progress_bar
from adapter_probe.python_words import in_callers_words
from adapter_probe.settings import flag_of
from adapter_probe.wording import named_score

from .training_arguments import Train

if TYPE_CHECKING:
    import torch
    from tqdm import tqdm

    from adapter_probe.models.methods import Method
    from adapter_probe.training.loop import OnProgress, Progress


@dataclass(frozen=True)
class Training:
    """A finished training; what `adapter_probe.train` returns.

    Attributes:
        checkpoint: folder of the checkpoint.
        task: name of the task.
        metric: metric of the scores.
        score: best score on the validation set, a fraction; None if it is undefined after every epoch.
        validation_scores: score after each epoch; None where undefined.
        majority_score: score of always predicting the most frequent class; None where it is undefined.
        question: what is trained on, and what the score is of, one line each.
    """

    checkpoint: Path
    task: str
    metric: str
    score: float | None
    validation_scores: tuple[float | None, ...]
    majority_score: float | None
    question: tuple[str, ...] = ()


@taking(Train)
def train(call: Train) -> Training:
    """Train bottleneck adapters, LayerNorms and head on a frozen base (Houlsby et al. 2019), or a baseline.

    The checkpoint of the epoch with the best validation score is kept. The same call resumes an interrupted
    training, and reads a finished one back.

    Raises:
        CheckpointError, ModelError, DataError: the base, the data or the method cannot be used.
        TrainingError: a setting is out of range, or the loss diverged.
        ResultsError: the folder cannot be written, is in use, or belongs to another training.

    Warns:
        AdapterProbeWarning: the base's pooler was never trained, and the method keeps it frozen.
    """
    from adapter_probe.data.forms import columns_named
    from adapter_probe.data.tasks import find_task, locate_task
    from adapter_probe.device import choose_device, use_threads
    from adapter_probe.models.methods import Adapters
    from adapter_probe.training.checkpoint import train_checkpoint
    from adapter_probe.training.peft_methods import method_of
    from adapter_probe.training.request import TrainingRequest
    from adapter_probe.training.settings import TrainingSettings

    use_threads(call.threads)
    name, k = call.method, call.k
    if (name == "top_layers") != (k is not None):
        needed = "--method top_layers requires --k, the number of layers to train"
        raise ModelError(needed if k is None else f"--k {k} is only allowed with --method top_layers")
    method: Method = Adapters.of(call)
    if name != method.name:
        default, given = vars(Adapters()), vars(method)
        method = method_of(name) if k is None else method_of(name, k=k)
        if changed := [one for one, value in given.items() if value != default[one]]:
            raise ModelError(f"{flag_of(changed[0])} applies only to --method adapters; leave it out")
    where = choose_device(call.device)
    settings = TrainingSettings.of(call)
    preset, folder = locate_task(call.task, call.data)
    spec = find_task(
        folder, train=call.train_file, validation=call.validation_file, kind=call.kind, metric=call.metric,
        name=call.name, preset=preset, encoding=call.encoding, validation_share=call.validation_share,
        reads=columns_named(call.columns),
    )  # fmt: skip
    request = TrainingRequest(
        str(call.base), spec, method, settings, call.max_length, max_train=call.max_train
    )
    with _bar(spec.metric, call.progress, where if settings.dtype == "bfloat16" else None) as report:
        say = partial(print_message, enabled=call.progress)
        made = train_checkpoint(request, Path(call.out), where, report, say)
    scores, majority = made.training["validation_scores"], made.training.get("majority_score")
    best = made.scores[spec.metric]
    question = tuple(map(in_callers_words, made.training.get("question") or ()))
    return Training(Path(call.out), made.task.name, spec.metric, best, tuple(scores), majority, question)


@contextmanager
def _bar(metric: str, progress: bool, in_bfloat16: torch.device | None) -> Iterator[OnProgress]:
    """Shows a bar from the first step on: only after all checks have passed and training has started."""
    from adapter_probe.device import say_slow_bfloat16
    from adapter_probe.training.checkpoint import best_score

    with ExitStack() as stack:
        bars: list[tqdm] = []

        def report(now: Progress) -> None:
            if not bars:
                if progress and in_bfloat16 and (slow := say_slow_bfloat16(in_bfloat16, "--dtype float32")):
                    print_message(slow)
                bar = progress_bar("train", now.n_steps, "steps", now.step - 1, progress)
                bars.append(stack.enter_context(bar))
            best = best_score(now.epoch_scores, metric)
            scores = "" if best is None else f", best {named_score(best, metric)}"
            bars[0].set_postfix_str(f"loss {now.loss:.3f}{scores}", refresh=False)
            bars[0].update(now.step - bars[0].n)

        yield report
