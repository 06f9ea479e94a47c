"""One training from Python: the function `train` and its outcome."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from adapter_probe.errors import ModelError
from adapter_probe.progress import progress_bar
from adapter_probe.spans import SiteChoice

from .checked import checked

if TYPE_CHECKING:
    from tqdm import tqdm

    from adapter_probe.models.methods import Adapters, InnerNorm, Interaction, Method, Placement
    from adapter_probe.training.loop import OnProgress, Progress

MethodName = Literal["adapters", "top_layers", "layernorm_only", "head_only", "full"]


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
    """

    checkpoint: Path
    task: str
    metric: str
    score: float | None
    validation_scores: tuple[float | None, ...]
    majority_score: float | None


@checked
def train(
    base: str | Path,
    out: str | Path,
    *,
    task: str | Path | None = None,
    data: str | Path | None = None,
    train_file: str | Path | Sequence[str | Path] = (),
    validation_file: str | Path | Sequence[str | Path] = (),
    text: str | None = None,
    text_b: str | None = None,
    label: str | None = None,
    kind: Literal["classification", "regression", "extractive"] | None = None,
    metric: str | None = None,
    name: str | None = None,
    max_length: int | None = None,
    max_train: int | None = None,
    encoding: str = "utf-8",
    validation_share: float = 0.0,
    method: MethodName = "adapters",
    size: int = 64,
    init_std: float = 1e-2,
    activation: str = "gelu",
    train_pooler: bool = False,
    sites: SiteChoice = "both",
    placement: Placement = "sequential",
    interaction: Interaction = "add",
    norm: InnerNorm = "none",
    hidden_layers: int = 1,
    k: int | None = None,
    learning_rate: float = 3e-4,
    epochs: int = 3,
    batch_size: int = 32,
    warmup: float = 0.1,
    seed: int = 0,
    dtype: Literal["float32", "bfloat16"] = "float32",
    device: str = "auto",
    progress: bool = True,
) -> Training:
    """Train bottleneck adapters, LayerNorms and head on a frozen base (Houlsby et al. 2019), or a baseline.

    The checkpoint of the epoch with the best validation score is kept. The same call resumes an interrupted
    training, and reads a finished one back.

    Args:
        base: pretrained base model: a folder or a Hugging Face Hub id.
        out: output folder of the checkpoint.
        task: name of a known task, or a folder with train and validation files.
        data: folder with the files of a named task, or of the task itself.
        train_file: file or files of training examples.
        validation_file: file or files of validation examples.
        text: name of the text column.
        text_b: name of the column with the second text of a pair.
        label: name of the label column.
        kind: kind of task; by default inferred from the data.
        metric: metric that selects the best epoch; by default the metric of the task.
        name: name of the task to record in the checkpoint.
        max_length: truncate examples to this many tokens.
        max_train: train on a fixed random subset of this many examples.
        encoding: text encoding of the data files.
        validation_share: fraction of the training rows to hold out for validation when there is no
            validation file.
        method: training method. The arguments from `size` to `hidden_layers` apply to adapters only.
        size: bottleneck size of the adapters.
        init_std: standard deviation of the initialisation, before truncation at two standard deviations.
        activation: activation function of the adapters: gelu, gelu_tanh, relu, swish or tanh.
        train_pooler: whether to also train the pooler of the base model.
        sites: sublayers to insert adapters after.
        placement: whether an adapter reads the output of its sublayer or, in parallel to it, the input.
        interaction: whether the adapter's output is added to the sublayer's output or multiplied with it.
        norm: normalisation inside the adapter.
        hidden_layers: number of hidden layers inside the adapter.
        k: number of top layers to train, for ``top_layers``.
        learning_rate: peak learning rate.
        epochs: number of passes over the training set.
        batch_size: training batch size.
        warmup: fraction of training steps used for warm-up.
        seed: random seed of the initialisation, data order and dropout.
        dtype: precision of the frozen base and of matrix products during training.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ...
        progress: whether to show a progress bar.

    Raises:
        CheckpointError, ModelError, DataError: the base, the data or the method cannot be used.
        TrainingError: a setting is out of range, or the loss diverged.
        ResultsError: the folder cannot be written, is in use, or belongs to another training.

    Warns:
        AdapterProbeWarning: the base's pooler was never trained, and the method keeps it frozen.
    """
    from adapter_probe.data.tasks import find_task, locate_task
    from adapter_probe.device import choose_device
    from adapter_probe.models.methods import Adapters
    from adapter_probe.training.checkpoint import train_checkpoint
    from adapter_probe.training.request import TrainingRequest
    from adapter_probe.training.settings import TrainingSettings

    adapters = Adapters(
        size, init_std, activation, train_pooler, sites, placement, interaction, norm, hidden_layers
    )
    chosen, where = _method(method, k, adapters), choose_device(device)
    settings = TrainingSettings(epochs, batch_size, learning_rate, warmup, seed, dtype)
    preset, folder = locate_task(task, data)
    spec = find_task(
        folder, train_file, validation_file, (), text, text_b, label, kind, metric, name,
        preset, encoding, validation_share,
    )  # fmt: skip
    request = TrainingRequest(str(base), spec, chosen, settings, max_length, max_train=max_train)
    with _bar(spec.metric, progress) as report:
        made = train_checkpoint(request, Path(out), where, report)
    scores, majority = made.training["validation_scores"], made.training.get("majority_score")
    return Training(Path(out), made.task.name, spec.metric, made.scores[spec.metric], tuple(scores), majority)


def _method(name: str, k: int | None, adapters: Adapters) -> Method:
    """The training method with this name.

    Raises:
        ModelError: there is none, `k` is given without `top_layers`, or `top_layers` without `k`.
    """
    from adapter_probe.models.methods import method_from_json

    if name not in get_args(MethodName):
        raise ModelError(f"--method {name} is not allowed; choose from {', '.join(get_args(MethodName))}")
    if (name == "top_layers") != (k is not None):
        needed = "--method top_layers requires --k, the number of layers to train"
        raise ModelError(needed if k is None else f"--k {k} is only allowed with --method top_layers")
    if name == adapters.name:
        return adapters
    return method_from_json({"name": name, **({} if k is None else {"k": k})})


@contextmanager
def _bar(metric: str, progress: bool) -> Iterator[OnProgress]:
    """Shows a bar from the first step on: only after all checks have passed and training has started."""
    from adapter_probe.training.checkpoint import best_score

    with ExitStack() as stack:
        bars: list[tqdm] = []

        def report(now: Progress) -> None:
            if not bars:
                bar = progress_bar("train", now.n_steps, "steps", now.step - 1, progress)
                bars.append(stack.enter_context(bar))
            best = best_score(now.epoch_scores)
            scores = "" if best is None else f", best {metric} {best:.3f}"
            bars[0].set_postfix_str(f"loss {now.loss:.3f}{scores}", refresh=False)
            bars[0].update(now.step - bars[0].n)

        yield report
