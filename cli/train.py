"""`adapter-probe train`: train adapters or a baseline and save a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from adapter_probe.studies.summaries import aligned_columns, score_text

from . import options
from .console import command, show, show_json

Files = list[Path] | None


@command
def train(
    base: options.Base,
    out: Annotated[Path, typer.Option(help="Output folder of the checkpoint.")],
    task: Annotated[str | None, typer.Option(help=options.TaskHelp)] = None,
    data: Annotated[Path | None, typer.Option(help=options.DataHelp)] = None,
    train_file: Annotated[Files, typer.Option(help="File of training examples; repeatable.")] = None,
    validation_file: Annotated[Files, typer.Option(help="File of validation examples; repeatable.")] = None,
    text: Annotated[str | None, typer.Option(help="Name of the text column.")] = None,
    text_b: Annotated[
        str | None, typer.Option(help="Name of the column with the second text of a pair.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="Name of the label column.")] = None,
    kind: Annotated[
        Literal["classification", "regression", "extractive"] | None,
        typer.Option(help="Kind of task. Default: inferred from the data."),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="Metric that selects the best epoch. Default: the metric of the task.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Task name to record in the checkpoint.")] = None,
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
        int | None, typer.Option(help="Number of top layers to train (with --method top_layers).")
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
    from adapter_probe.studies.training import train as run

    done = run(
        base, out, task=task, data=data, train_file=train_file or (), validation_file=validation_file or (),
        text=text, text_b=text_b, label=label, kind=kind, metric=metric, name=name, max_length=max_length,
        max_train=max_train, encoding=encoding, validation_share=validation_share, method=method, size=size,
        init_std=init_std, activation=activation, train_pooler=train_pooler, sites=sites,
        placement=placement, interaction=interaction, norm=norm, hidden_layers=hidden_layers, k=k,
        learning_rate=learning_rate, epochs=epochs, batch_size=batch_size, warmup=warmup, seed=seed,
        dtype=dtype, device=device,
    )  # fmt: skip
    names = ("task", "metric", "score", "majority_score", "validation_scores", "checkpoint")
    outcome = {name: getattr(done, name) for name in names}
    show_json(outcome) if json else show(_text(outcome))


def _text(outcome: dict[str, Any]) -> str:
    metric, score, majority = outcome["metric"], outcome["score"], outcome["majority_score"]
    epochs = ", ".join(score_text(score, metric) for score in outcome["validation_scores"])
    no_better = majority is not None and (score is None or score <= majority)
    warning = "; the model scores no higher, so an ablation would not be informative" if no_better else ""
    return aligned_columns(
        [
            ("task", outcome["task"]),
            (f"best {metric}", f"{score_text(score, metric)} (epochs: {epochs})"),
            ("majority class", f"{score_text(majority, metric)}{warning}"),
            ("checkpoint", str(outcome["checkpoint"])),
        ]
    )
