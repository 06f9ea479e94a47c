"""The arguments of the functions that run studies, each declared once; see `adapter_probe.settings`.

The public functions, the commands and the tables of a suite's file take them from here. Nobody compares or
prints them, and without the methods for it the program starts faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

from adapter_probe.errors import AdapterProbeError, ModelError
from adapter_probe.jobs.resources import Machine, Resources
from adapter_probe.jobs.slurm_options import SlurmOptions
from adapter_probe.models.methods import AdapterVariant
from adapter_probe.models.peft_method import PeftConfig
from adapter_probe.probe.arguments import AblationSettings, Evaluation
from adapter_probe.settings import Settings, fixed, required, setting
from adapter_probe.training.settings import StepSettings, TrainingSettings

if TYPE_CHECKING:
    from adapter_probe.studies.example_files import ExampleSource

OnTrial = Callable[[dict[str, Any]], None]
"""Callback for finished trials; its argument is a dictionary with the columns of ``trials.csv``."""
STDS = tuple(float(f"1e{power}") for power in range(-7, 1))  # as in Houlsby et al. 2019, section 3.6
# Houlsby et al. 2019, sections 3.1 and 3.3, for a base of 12 layers.
ADAPTER_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
TOP_K = (0, 1, 2, 3, 5, 7, 9, 11, 12)
LEARNING_RATES = (3e-5, 3e-4, 3e-3)


@runtime_checkable
class Module(Protocol):
    """A model in memory: a `torch.nn.Module`, which is not imported here."""

    def named_modules(self) -> Any:
        """Its modules with their names."""


@runtime_checkable
class Trainer(Protocol):
    """A `transformers.Trainer`, which is not imported here."""

    def get_eval_dataloader(self) -> Any:
        """The batches that it evaluates on."""


@runtime_checkable
class Tokenizer(Protocol):
    """A tokenizer of transformers, which is not imported here."""

    def get_vocab(self) -> dict[str, int]:
        """Its tokens."""


_BASE = required(
    "pretrained base model: a folder or a Hugging Face Hub name.", panel="Data", metavar="BASE", shell=str
)
_TASK = (
    "name of a known task (cola, glue/mrpc, squad, ...), or a folder with train and validation files; of a "
    "language model also one file of training rows."
)
_TRIALS = required("output folder for trials, tables and figures.", panel="Output", metavar="FOLDER")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Shown(Settings):
    """What every function that takes its time has in common."""

    progress: bool = setting(True, "whether to show a progress bar.", shell=NoneType)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class _Given(Shown, Machine, Evaluation, AblationSettings):
    """The arguments of `ablate` that are given by name."""

    threads: int = setting(
        0, "number of CPU threads, for the whole process (with a cluster: of CPUs per job); 0 uses PyTorch's "
        "default.", panel="Running",
    )  # fmt: skip
    data: ExampleSource = setting(
        (), "file of labelled examples to use instead of the checkpoint's own task (the metrics kl and "
        "agreement need no labels). In Python also several "
        "files, a DataFrame, a list of rows (mappings from column to value), or a pair ``(texts, labels)``, "
        "in which a text may be a pair of texts; for kl and agreement also a list of texts. Data that is not "
        "a file is saved in a folder ``data/`` next to the results, under a name derived from its content.",
        panel="Data", shell=list[Path],
    )  # fmt: skip
    task: str = setting(
        "",
        "instead of data: tasks of lm-evaluation-harness (extra ``lm-eval``) by name, task file or folder "
        "(with a /); several tasks are groups of one study, scored together.",
        panel="Data", metavar="lm-eval:NAME[,NAME]",
    )  # fmt: skip
    metric: str | Callable[[Any, Any], float] | None = setting(
        None, "evaluation metric; by default that of the task. Without labels: kl, the divergence of the "
        "predictions from the intact model's, or agreement with them. In Python also a function from labels "
        "and predictions (class indices or regression values, ``[examples]`` each) to a score of which more "
        "is better; the bootstrap calls it 10,000 times per variant.",
        panel="Data",
    )  # fmt: skip
    against: ExampleSource = setting(
        (), "file of examples that measure another ability, such as one of the base model. They are scored "
        "under the same variants, and each span's drop on the task is compared with its change in this "
        "ability. In Python in any form that data accepts; see `Ablation.against`.",
        panel="Data", shell=list[Path],
    )  # fmt: skip
    out: str | Path | None = setting(
        None, "results folder; by default a folder inside the checkpoint, or NAME-ablation if it is on the "
        "Hub.", panel="Output", metavar="FOLDER",
    )  # fmt: skip
    lm_eval_json: str | Path | None = setting(
        None, "folder for the files of lm-evaluation-harness, results_*.json and samples_*.jsonl, of the "
        "intact model, of the model with all adapters off, and of the one without the longest span that is "
        "removable within 1 point.", panel="Output", metavar="FOLDER",
    )  # fmt: skip
    lm_eval_samples: str | Path | None = setting(
        None, "samples_*.jsonl of lm-evaluation-harness on the intact model; a line says how far its "
        "log-likelihoods are from those here.", panel="Data", metavar="FILE", place="file",
    )  # fmt: skip
    revision: str | None = setting(
        None, "commit, branch or tag of a checkpoint on the Hugging Face Hub.", panel="Data",
        metavar="REVISION",
    )  # fmt: skip
    tokenizer: Tokenizer | None = setting(None, "tokenizer of a model in memory.", shell=NoneType)
    batches: Any = setting(
        None, "instead of data, for a model in memory: the keyword arguments of its forward, in a list of "
        "mappings, a `DataLoader` or a `datasets.Dataset` with a format; images, sound or anything else.",
        shell=NoneType,
    )  # fmt: skip
    labels: Any = setting(
        None, "labels of the examples in batches, one per example: class numbers or names, or numbers of a "
        "regression; or a row per example: 0 or 1 for each label, targets, or tags of positions (-100 for "
        "none); by default the ``labels`` in them.", shell=NoneType,
    )  # fmt: skip
    read: str | Callable[[Any], Any] = setting(
        "logits", "with batches, the output of the model that is scored: its name, or a function from all "
        "outputs to ``[examples, outputs]``, or of tags to ``[examples, positions, tags]``.", shell=NoneType,
    )  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class Ablate(_Given):
    """The arguments of `adapter_probe.ablate`."""

    checkpoint: str | Path | Module | Trainer = field(
        metadata=required(
            "checkpoint folder, written by this project, `adapters`, PEFT or the paper's code; or a name on "
            "the Hugging Face Hub. In Python also a model in memory with PEFT's tuners, such as a "
            "`PeftModel` after training, with data and tokenizer.",
            metavar="CHECKPOINT", argument=True, place="checkpoint or name", shell=Path,
        )
    )  # fmt: skip


STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RunStrength(Ablate):
    """The arguments of `adapter_probe.strength`."""

    strengths: Sequence[float] = setting(
        STRENGTHS, "strengths to score: what the change of the adapters is multiplied by. 1, the adapter as "
        "it was trained, is always among them.", panel="Spans",
    )  # fmt: skip
    spans: str = setting(
        "whole", "spans that are scaled one at a time besides all layers together: none (whole), single "
        "layers (single), or as for ablate.", panel="Spans", metavar="SET", slug="{}", note="spans {}",
    )  # fmt: skip
    strength: float = fixed(0.0)
    complement: bool = fixed(False)
    against: ExampleSource = setting(
        (), "file of examples that measure another ability, such as one of the base model, scored at the "
        "same strengths. In Python in any form that data accepts; see `Strengths.against`.",
        panel="Data", shell=list[Path],
    )  # fmt: skip
    cluster: SlurmOptions | None = fixed(None)
    lm_eval_json: str | Path | None = fixed(None)
    lm_eval_samples: str | Path | None = fixed(None)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TaskOptions(Settings):
    """How a task's data is read and scored."""

    panel = "Data"

    metric: str | None = setting(
        None, "evaluation metric, which also selects the best epoch; by default the metric of the task."
    )
    max_length: int | None = setting(None, "truncate examples to this many tokens.")
    max_train: int | None = setting(None, "train on a fixed random subset of this many examples.")
    encoding: str = setting("utf-8", "text encoding of the data files, such as latin-1.")
    validation_share: float = setting(
        0.0, "fraction of the training rows to hold out for validation when there is no validation file."
    )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SweepSettings(StepSettings):
    """Training settings of a sweep: every combination of learning rate, epochs and seed is a trial."""

    learning_rates: Sequence[float] = setting(
        (3e-4,), "peak learning rates to try; the best is chosen on validation data (by the number of seeds "
        "that did not diverge, then by mean score).", text="3e-4",
    )  # fmt: skip
    epochs: Sequence[int] = setting((3,), "numbers of epochs to try, chosen in the same way.")
    seeds: int = setting(3, "number of runs per setting, with seeds 0, 1, ...", least=1)
    halving: bool = setting(
        False, "stop learning rates that are out of reach: after a third of the steps of the first seed, the "
        "better half of them goes on, and those as good as the best within the standard error of the "
        "validation score.",
    )  # fmt: skip


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
        (), "other methods, each as in `adapter_probe.train`: bitfit, lora:r=8, ia3, ...", shell=list[str],
        metavar="METHOD",
    )  # fmt: skip
    full: bool = setting(
        True, "whether to include full fine-tuning, the reference of the aggregate over tasks."
    )
    head_only: bool = setting(False, "whether to include a head on the frozen base model.")
    baseline: bool = setting(
        False, "whether to include a linear model of TF-IDF features, without pretraining (extra "
        "``baselines``), tuned by cross-validation on the training rows, once per task.",
    )  # fmt: skip
    init_std: float = setting(1e-2, "standard deviation of the adapters' initialisation.")
    learning_rates: Sequence[float] = setting(
        LEARNING_RATES, "peak learning rates to try; the best for each method is chosen on validation data "
        "(by the number of seeds that did not diverge, then by mean score).",
        panel="Training", text="3e-5,3e-4,3e-3",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class _Trials(Shown, Resources, TaskOptions):
    """What both sweeps take besides what they compare."""

    on_trial: OnTrial | None = setting(
        None, "called with every trial as soon as it has finished (on a cluster, when the jobs have been "
        "collected), for instance to log it to an experiment tracker. Its argument is a dictionary with the "
        "columns of ``trials.csv``. Trials that finished before the call are not reported; an exception in "
        "the function ends the sweep.", shell=NoneType,
    )  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class RunInitSweep(_Trials, InitSweepSettings):
    """The arguments of `adapter_probe.init_sweep`."""

    base: str | Path = field(metadata=_BASE)
    task: str | Path = field(metadata=required(_TASK, panel="Data", metavar="TASK", shell=str))
    out: str | Path = field(metadata=_TRIALS)
    data: str | Path | None = setting(
        None, "folder with the files of a named task.", panel="Data", metavar="FOLDER"
    )


@dataclass(frozen=True, eq=False, repr=False)
class RunTradeoff(_Trials, TradeoffSettings):
    """The arguments of `adapter_probe.tradeoff`."""

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
class RunSuite(Shown, Resources):
    """The arguments of `adapter_probe.suite`."""

    file: str | Path = field(
        metadata=required(
            "TOML file with the base, the tasks and the studies, see the guide to sweeps; paths in it are "
            "relative to its folder.", metavar="FILE", argument=True, place="file",
        )
    )  # fmt: skip
    out: str | Path = field(metadata=_TRIALS)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class _TrainGiven(Shown, TrainingSettings, AdapterVariant, TaskOptions):
    """The arguments of `train` that are given by name."""

    panel = "Training"
    error: ClassVar[type[AdapterProbeError]] = ModelError

    device: str = setting(
        "auto", "compute device: auto, cpu, cuda, cuda:1, ...", panel="Running", metavar="DEVICE"
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
    text: str | None = setting(None, "name of the text column.", panel="Data", metavar="COLUMN")
    text_b: str | None = setting(
        None, "name of the column with the second text of a pair.", panel="Data", metavar="COLUMN"
    )
    label: str | None = setting(None, "name of the label column.", panel="Data", metavar="COLUMN")
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


@dataclass(frozen=True, eq=False, repr=False)
class Train(_TrainGiven):
    """The arguments of `adapter_probe.train`."""

    base: str | Path = field(metadata=_BASE)
    out: str | Path = field(
        metadata=required("output folder of the checkpoint.", panel="Output", metavar="FOLDER")
    )
