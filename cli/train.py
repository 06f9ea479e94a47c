"""`adapter-probe train`: train adapters or a baseline and save a checkpoint."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from adapter_probe.device import choose_device
from adapter_probe.progress import progress_bar
from adapter_probe.studies.summaries import columns, score_text

from . import options
from .console import command, show, show_json

if TYPE_CHECKING:
    import torch
    from tqdm import tqdm

    from adapter_probe.checkpoints.description import Description
    from adapter_probe.models.methods import Adapters, Method
    from adapter_probe.training.loop import Progress
    from adapter_probe.training.request import TrainingRequest

Files = list[Path] | None


@command
def train(
    base: options.Base,
    out: Annotated[Path, typer.Option(help="Output folder of the checkpoint.", show_default=False)],
    task: Annotated[str | None, typer.Option(help=options.TaskHelp, show_default=False)] = None,
    data: Annotated[Path | None, typer.Option(help=options.DataHelp, show_default=False)] = None,
    train_file: Annotated[
        Files, typer.Option(help="File of training examples; repeatable.", show_default=False)
    ] = None,
    validation_file: Annotated[
        Files, typer.Option(help="File of validation examples; repeatable.", show_default=False)
    ] = None,
    text: Annotated[str | None, typer.Option(help="Name of the text column.", show_default=False)] = None,
    text_b: Annotated[
        str | None,
        typer.Option(help="Name of the column with the second text of a pair.", show_default=False),
    ] = None,
    label: Annotated[str | None, typer.Option(help="Name of the label column.", show_default=False)] = None,
    kind: Annotated[
        Literal["classification", "regression", "extractive"] | None,
        typer.Option(help="Kind of task. Default: inferred from the data.", show_default=False),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="Metric that selects the best epoch. Default: the metric of the task.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Task name to record in the checkpoint.", show_default=False)
    ] = None,
    max_length: options.MaxLength = None,
    max_train: options.MaxTrain = None,
    encoding: options.Encoding = "utf-8",
    validation_share: options.ValidationShare = 0.0,
    method: Annotated[
        Literal["adapters", "top_layers", "layernorm_only", "head_only", "full"],
        typer.Option(
            help="Training method. The options from --size to --hidden-layers apply to adapters only."
        ),
    ] = "adapters",
    size: Annotated[int, typer.Option(help="Bottleneck size of the adapters.")] = 64,
    init_std: Annotated[
        float,
        typer.Option(
            help="Standard deviation of the initialisation, before truncation at two standard deviations."
        ),
    ] = 1e-2,
    activation: Annotated[
        Literal["gelu", "gelu_tanh", "relu", "swish", "tanh"],
        typer.Option(help="Activation function of the adapters."),
    ] = "gelu",
    train_pooler: Annotated[
        bool, typer.Option("--train-pooler", help="Also train the pooler of the base model.")
    ] = False,
    sites: Annotated[
        Literal["both", "attention", "ffn"], typer.Option(help="Sublayers to insert adapters after.")
    ] = "both",
    placement: Annotated[
        Literal["sequential", "parallel"],
        typer.Option(
            help="Whether an adapter reads the output of its sublayer or, in parallel to it, the input."
        ),
    ] = "sequential",
    interaction: Annotated[
        Literal["add", "multiply"],
        typer.Option(help="How the adapter's output is combined with the sublayer's output."),
    ] = "add",
    norm: Annotated[
        Literal["none", "layernorm", "batchnorm"], typer.Option(help="Normalisation inside the adapter.")
    ] = "none",
    hidden_layers: Annotated[int, typer.Option(help="Number of hidden layers inside the adapter.")] = 1,
    k: Annotated[
        int | None,
        typer.Option(help="Number of top layers to train (with --method top_layers).", show_default=False),
    ] = None,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 3e-4,
    epochs: Annotated[int, typer.Option(help="Number of passes over the training set.")] = 3,
    batch_size: options.BatchSize = 32,
    warmup: options.Warmup = 0.1,
    seed: Annotated[int, typer.Option(help="Random seed of the initialisation, data order and dropout.")] = 0,
    dtype: Annotated[
        Literal["float32", "bfloat16"],
        typer.Option(help="Precision of the frozen base and of matrix products during training."),
    ] = "float32",
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Train bottleneck adapters, LayerNorms and head on a frozen base (Houlsby et al. 2019), or a baseline.

    The checkpoint of the epoch with the best validation score is kept. Run the same command again to resume
    an interrupted training.
    """
    from adapter_probe.data.tasks import find_task, locate_task
    from adapter_probe.models.methods import Adapters
    from adapter_probe.training.request import TrainingRequest
    from adapter_probe.training.settings import TrainingSettings

    chosen = _method(
        method, k, Adapters(size, init_std, activation, train_pooler, sites, placement, interaction, norm,
                            hidden_layers)
    )  # fmt: skip
    settings = TrainingSettings(epochs, batch_size, learning_rate, warmup, seed, dtype)
    preset, folder = locate_task(task, data)
    spec = find_task(
        folder,
        train_file or (),
        validation_file or (),
        (),
        text,
        text_b,
        label,
        kind,
        metric,
        name,
        preset,
        encoding,
        validation_share,
    )
    description = run_training(
        TrainingRequest(base, spec, chosen, settings, max_length, max_train=max_train),
        out,
        choose_device(device),
    )
    outcome = _outcome(description, out)
    show_json(outcome) if json else show(_text(outcome))


def _method(name: str, k: int | None, adapters: Adapters) -> Method:
    """The training method with this name.

    Raises:
        ModelError: `k` is given without `top_layers`, or `top_layers` without `k`.
    """
    from adapter_probe.errors import ModelError
    from adapter_probe.models.methods import method_from_json

    if (name == "top_layers") != (k is not None):
        needed = "--method top_layers requires --k, the number of layers to train"
        raise ModelError(needed if k is None else f"--k {k} is only allowed with --method top_layers")
    if name == "adapters":
        return adapters
    return method_from_json({"name": name, **({} if k is None else {"k": k})})


def run_training(request: TrainingRequest, out: Path, device: torch.device) -> Description:
    """Train, showing a progress bar."""
    from adapter_probe.training.checkpoint import best_score, train_checkpoint

    metric = request.task.metric
    with ExitStack() as stack:
        bars: list[tqdm] = []

        def report(now: Progress) -> None:
            if not bars:  # only after all checks have passed and training has started
                bars.append(stack.enter_context(progress_bar("train", now.n_steps, "steps", now.step - 1)))
            bar = bars[0]
            best = best_score(now.epoch_scores)
            scores = "" if best is None else f", best {metric} {best:.3f}"
            bar.set_postfix_str(f"loss {now.loss:.3f}{scores}", refresh=False)
            bar.update(now.step - bar.n)

        return train_checkpoint(request, out, device, report)


def _outcome(description: Description, out: Path) -> dict[str, Any]:
    return {
        "task": description.task.name,
        "metric": description.task.metric,
        "score": description.scores[description.task.metric],
        "majority_score": description.training.get("majority_score"),
        "validation_scores": description.training["validation_scores"],
        "checkpoint": str(out),
    }


def _text(outcome: dict[str, Any]) -> str:
    metric, score, majority = outcome["metric"], outcome["score"], outcome["majority_score"]
    epochs = ", ".join(score_text(score, metric) for score in outcome["validation_scores"])
    no_better = majority is not None and (score is None or score <= majority)
    warning = "; the model scores no higher, so an ablation would not be informative" if no_better else ""
    return columns(
        [
            ("task", outcome["task"]),
            (f"best {metric}", f"{score_text(score, metric)} (epochs: {epochs})"),
            ("majority class", f"{score_text(majority, metric)}{warning}"),
            ("checkpoint", outcome["checkpoint"]),
        ]
    )
