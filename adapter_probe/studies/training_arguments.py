"""The arguments of training, sweeps and suites, each declared once; see `adapter_probe.settings`.

The public functions, the commands and the tables of a suite's file take them from here; see
`adapter_probe.studies.checkpoint_arguments`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from adapter_probe.errors import AdapterProbeError, ModelError
from adapter_probe.jobs.resources import Resources
from adapter_probe.models.methods import AdapterVariant, PeftConfig
from adapter_probe.settings import Columned, Encoded, OnDevice, required, setting
from adapter_probe.training.settings import SweepSettings, TrainingSettings

STDS = tuple(float(f"1e{power}") for power in range(-7, 1))  # as in Houlsby et al. 2019, section 3.6
# Houlsby et al. 2019, sections 3.1 and 3.3, for a base of 12 layers.
ADAPTER_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
TOP_K = (0, 1, 2, 3, 5, 7, 9, 11, 12)
LEARNING_RATES = (3e-5, 3e-4, 3e-3)

_BASE = required(
    "pretrained base model: a folder or a Hugging Face Hub name.", panel="Data", metavar="BASE", shell=str
)
_TASK = (
    "name of a known task (cola, glue/mrpc, squad, ...), or a folder with train and validation files; of a "
    "language model also one file of training rows."
)
_TRIALS = required("output folder for trials, tables and figures.", panel="Output", metavar="FOLDER")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TaskOptions(Columned, Encoded):
    """How a task's data is read and scored."""

    panel = "Data"

    metric: str | None = setting(
        None, "evaluation metric, which also selects the best epoch; by default the metric of the task."
    )
    max_length: int | None = setting(None, "truncate examples to this many tokens.")
    max_train: int | None = setting(None, "train on a fixed random subset of this many examples.")
    validation_share: float = setting(
        0.0, "fraction of the training rows to hold out for validation when there is no validation file."
    )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class InitSweepSettings(SweepSettings):
    """What an initialisation sweep tries."""

    panel = "Sweep"

    stds: Sequence[float] = setting(
        STDS, "standard deviations of the normal distribution that weights are drawn from. That of adapters "
        "is truncated at two standard deviations, so the realised one is 0.88 of the nominal one; of a LoRA "
        "it is that of the matrix A, while B is zero. In a shell: numbers "
        "separated by commas, or a range of decades.", text="1e-7:1", metavar="LIST",
    )  # fmt: skip
    method: str | Mapping | PeftConfig = setting(
        "adapters", "what is initialised: adapters, or a LoRA, such as lora:r=8 or dora:r=8.", shell=str,
        metavar="METHOD",
    )  # fmt: skip
    inits: Sequence[str] | None = setting(
        None, "PEFT's initialisations of a LoRA to compare with, as categories beside the curve: kaiming, "
        "gaussian, orthogonal, olora, pissa, pissa_niter_4, ...; empty for none.",
        text="kaiming,gaussian,orthogonal,olora,pissa", metavar="LIST",
    )  # fmt: skip
    size: int = setting(64, "bottleneck size of the adapters.")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TradeoffSettings(SweepSettings):
    """What a trade-off compares."""

    panel = "Methods"

    sizes: Sequence[int] = setting(ADAPTER_SIZES, "bottleneck sizes of the adapters; empty for none.")
    top_k: Sequence[int] | None = setting(
        None, "numbers of top layers to fine-tune; by default those of the paper that the base has.",
        text=",".join(map(str, TOP_K)),
    )  # fmt: skip
    layernorm: bool = setting(True, "whether to include training of only the LayerNorms and the head.")
    lora_ranks: Sequence[int] = setting(
        (),
        "ranks of LoRA; PEFT's other settings are at their defaults, as with the method lora:r=8.",
    )
    method: Sequence[str | Mapping | PeftConfig] = setting(
        (), "other methods: bitfit, and any of PEFT, as in lora:r=8, dora:r=8 or ia3.", shell=list[str],
        metavar="METHOD",
    )  # fmt: skip
    full: bool = setting(
        True, "whether to include full fine-tuning, the reference of the aggregate over tasks."
    )
    head_only: bool = setting(False, "whether to include a head on the frozen base model.")
    init_std: float = setting(1e-2, "standard deviation of the adapters' initialisation.")
    learning_rates: Sequence[float] = setting(
        LEARNING_RATES, "peak learning rates to try; the best for each method is chosen on validation data "
        "(by the number of seeds that did not diverge, then by mean score).",
        panel="Training", text="3e-5,3e-4,3e-3",
    )  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class RunInitSweep(Resources, TaskOptions, InitSweepSettings):
    """Retrain adapters or a LoRA with weaker and stronger initialisations (Houlsby et al. 2019, Figure 6).

    Every trial is kept: the same command resumes an interrupted sweep, and a wider range only adds the
    missing trials.

    Example: adapter-probe init-sweep --base bert-base-uncased --task cola --data cola/ --out sweep
    """

    base: str | Path = field(metadata=_BASE)
    task: str | Path = field(metadata=required(_TASK, panel="Data", metavar="TASK", shell=str))
    out: str | Path = field(metadata=_TRIALS)
    data: str | Path | None = setting(
        None, "folder with the files of a named task.", panel="Data", metavar="FOLDER"
    )


@dataclass(frozen=True, eq=False, repr=False)
class RunTradeoff(Resources, TaskOptions, TradeoffSettings):
    """Compare the scores of adapters of many sizes, top-k fine-tuning, LayerNorm-only and full tuning.

    The learning rate and number of epochs of each method are chosen on validation data (Houlsby et al. 2019,
    Figures 1, 3, 4 and 5). Every trial is kept: the same command resumes an interrupted study, and a wider
    grid only adds the missing trials.

    Example: adapter-probe tradeoff --base bert-base-uncased --task cola --data cola/ --out tradeoff
    """

    base: str | Path = field(metadata=_BASE)
    task: str | Path | Sequence[str | Path] = field(
        metadata=required(
            f"One or several tasks, each the {_TASK}", panel="Data", metavar="TASK", shell=list[str]
        )
    )
    out: str | Path = field(metadata=_TRIALS)
    data: str | Path | Sequence[str | Path] | None = setting(
        None, "folders with the files of the tasks, one per task and in the same order.",
        panel="Data", metavar="FOLDER", shell=list[Path],
    )  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class RunSuite(Resources):
    """The arguments of `adapter_probe.suite`."""

    file: str | Path = field(
        metadata=required(
            "TOML file with the base, the tasks and the studies, see the guide to sweeps; paths in it are "
            "relative to its folder.", metavar="FILE", argument=True, place="file",
        )
    )  # fmt: skip
    out: str | Path = field(metadata=_TRIALS)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Train(OnDevice, TrainingSettings, AdapterVariant, TaskOptions):
    """The arguments of `adapter_probe.train`."""

    panel = "Training"
    error: ClassVar[type[AdapterProbeError]] = ModelError

    base: str | Path = field(metadata=_BASE)
    out: str | Path = field(
        metadata=required("output folder of the checkpoint.", panel="Output", metavar="FOLDER")
    )
    task: str | Path | None = setting(None, _TASK, panel="Data", metavar="TASK", shell=str)
    data: str | Path | None = setting(
        None, "folder with the files of a named task, or of the task itself.", panel="Data", metavar="FOLDER"
    )
    train_file: str | Path | Sequence[str | Path] = setting(
        (), "file of training examples. In Python also several files.", panel="Data", shell=list[Path]
    )
    validation_file: str | Path | Sequence[str | Path] = setting(
        (), "file of validation examples. In Python also several files.", panel="Data", shell=list[Path]
    )
    kind: Literal["classification", "regression", "extractive", "causal", "tokens", "multilabel"] | None = (
        setting(None, "kind of task; by default inferred from the data.", panel="Data")
    )
    name: str | None = setting(None, "name of the task to record in the checkpoint.", panel="Data")
    method: str | Mapping | PeftConfig = setting(
        "adapters", "training method: adapters, top_layers, layernorm_only, bitfit, head_only or full; or "
        "any of PEFT, as in lora:r=8, dora:r=8, ia3 or vera:r=64,target_modules=query+value, as peft: with "
        "JSON, or as a folder with an adapter_config.json. The options of adapters apply to adapters only. "
        "In Python also a mapping or PEFT's own configuration, such as ``peft.LoraConfig(r=8)``.",
        shell=str, metavar="METHOD",
    )  # fmt: skip
    k: int | None = setting(None, "number of top layers to train, with the method top_layers.")
    size: int = setting(64, "bottleneck size of the adapters.", panel="Adapters")
    init_std: float = setting(
        1e-2, "standard deviation of the initialisation, before truncation at two standard deviations.",
        panel="Adapters",
    )  # fmt: skip
