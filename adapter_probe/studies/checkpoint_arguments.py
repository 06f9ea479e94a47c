"""The arguments of the functions that take a checkpoint, each declared once; see `adapter_probe.settings`.

These are `ablate` and `prune`, and what the arguments of other studies begin with. Nobody compares or
prints them, and without the methods for it the program starts faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from adapter_probe.ablation_settings import AblationSettings, as_strength
from adapter_probe.argument_checks import words_of
from adapter_probe.checkpoints.files import refuse_full
from adapter_probe.data.generating import Generation, Prompting
from adapter_probe.errors import AdapterProbeError, ResultsError
from adapter_probe.jobs.resources import Machine, SlurmOptions
from adapter_probe.probe.ablation_arguments import Evaluation
from adapter_probe.python_words import in_callers_words, in_words_of
from adapter_probe.settings import (
    Basis,
    Columned,
    Dequantised,
    Encoded,
    Labelled,
    OnBase,
    OnDevice,
    OneOfSeveral,
    fixed,
    required,
    setting,
)

if TYPE_CHECKING:
    from adapter_probe.spans import Span

    from .ablation_study import Ablation
    from .example_files import ExampleSource


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


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Subject(Columned, Evaluation, OneOfSeveral):
    """What a study is about: a checkpoint or a model in memory, and examples."""

    checkpoint: str | Path | Module | Trainer = field(
        kw_only=False,
        metadata=required(
            "checkpoint folder, written by this project, `adapters`, PEFT or the paper's code, or a whole "
            "fine-tuned model, with its base; or a name on the Hugging Face Hub, such as user/my-lora or, of "
            "a commit, branch or tag, user/my-lora@v1.0. In Python also a model in memory with PEFT's "
            "tuners, such as a `PeftModel` after training, with data and tokenizer.",
            metavar="CHECKPOINT", argument=True, place="checkpoint or name", shell=Path,
        )
    )  # fmt: skip
    base: str | Path | Module | None = setting(  # type: ignore[assignment]
        None, "base model, if it differs from the recorded one: a folder or a Hugging Face Hub name. For a "
        "whole fine-tuned model, the one that it was trained from: its layers are switched between the two. "
        "In Python also a model in memory, for one in memory.", panel="Data", metavar="BASE", shell=str,
    )  # fmt: skip
    data: ExampleSource = setting(
        (), "file of labelled examples to use instead of the checkpoint's own task. In Python also several "
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
        "is better; the bootstrap calls it 10,000 times per variant, or as often as two minutes allow. With "
        "generate, a function from the accepted answers (a list per text) and the texts to one number per "
        "text.",
        panel="Data",
    )  # fmt: skip
    against: ExampleSource = setting(
        (), "file of examples that measure another ability, such as one of the base model. They are scored "
        "for the same spans, and each span's drop on the task is compared with its change in this "
        "ability. In Python in any form that data accepts; see `Ablation.against`.",
        panel="Data", shell=list[Path],
    )  # fmt: skip
    tokenizer: Tokenizer | None = setting(None, "tokenizer of a model in memory.", shell=NoneType)
    name: str = setting(
        "", "of a model in memory, what its task is called in figures, tables and captions, such as SST-2; "
        "by default a trainer's data set, or the model's class.", shell=NoneType,
    )  # fmt: skip
    batches: Any = setting(
        None, "instead of data, for a model in memory: the keyword arguments of its forward, in a list of "
        "mappings, a `DataLoader` or a tokenised `datasets.Dataset`; images, sound or anything else.",
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


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Ablate(Subject, Machine, AblationSettings):
    """The arguments of `adapter_probe.ablate`."""

    rank: int = fixed(0)
    out: str | Path | None = setting(
        None, "results folder; by default a folder inside the checkpoint, or NAME-ablation if it is on the "
        "Hub.", panel="Output", metavar="FOLDER",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OnOneMachine(Ablate):
    """What studies besides `adapter_probe.ablate` do not take."""

    complement: bool = fixed(False)
    cluster: SlurmOptions | None = fixed(None)


def spans_of_degrees(done: str) -> Any:
    """The spans of a study of several strengths or ranks, which begins with all layers together."""
    return setting(
        "whole", f"spans that are {done} one at a time besides all layers together: none (whole), single "
        "layers (single), all, prefix, suffix, or a range of lengths such as 1..4.",
        panel="Spans", metavar="SET", slug="{}", note="spans {}",
    )  # fmt: skip


CHECKPOINT = required("checkpoint folder.", metavar="CHECKPOINT", argument=True, place="checkpoint")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Prune(Columned, OnDevice, Encoded, Prompting, Generation, Labelled, Dequantised, OneOfSeveral, OnBase):
    """The arguments of `adapter_probe.prune`."""

    panel = "Spans"
    error: ClassVar[type[AdapterProbeError]] = ResultsError

    checkpoint: str | Path = field(metadata=CHECKPOINT)
    out: str | Path = field(
        metadata=required("output folder of the new checkpoint.", panel="Output", metavar="FOLDER")
    )
    span: Span | tuple[int, int] | int | str | None = setting(
        None, "layers whose adapters are removed, such as 0-4, in a model with an encoder and a decoder "
        "'encoder 0-4'. In Python also a layer, or the first and the last one.", metavar="FIRST-LAST",
        shell=str,
    )  # fmt: skip
    within: float | None = setting(
        None, "remove the longest span whose drop is at most this many percentage points in an ablation.",
        metavar="POINTS",
    )  # fmt: skip
    sites: str = setting(
        "both", "which adapters of the span to remove: both, or of a checkpoint of PEFT attention, ffn, or "
        "names of tuned modules, as for ablate.", metavar="NAMES",
    )  # fmt: skip
    strength: float | str | Path | Sequence[float] | Mapping[str, float] = setting(
        0.0, "multiply what the span's adapters change by this number instead of removing them; or, instead "
        "of a span, by a number for every layer, such as 1,1,0.5, or by those of a JSON file of patterns, "
        'such as {"*.down_proj": 0.5}.', metavar="S|LIST|FILE", shell=str,
    )  # fmt: skip
    rank: int | None = setting(
        None, "keep this many of the largest directions of the span's adapters, by default of those of all "
        "layers, instead of removing them.", metavar="K", least=1,
    )  # fmt: skip
    basis: Basis = setting(
        "estimate",
        "whether the measured drop has to be within, or a one-sided 95% bound that allows for the choice.",
    )
    ablation: Ablation | str | Path | None = setting(
        None, "results folder of the ablation whose drops are held against the tolerance; by default the one "
        "inside the checkpoint. In Python also the study.", metavar="FOLDER",
        shell=Path, place="ablation",
    )  # fmt: skip
    data: str | Path | Sequence[str | Path] = setting(
        (), "file of labelled examples to use instead of the checkpoint's own task; required for checkpoints "
        "of other libraries, which record no task.", panel="Data", shell=list[Path], place="file",
    )  # fmt: skip

    def __post_init__(self) -> None:  # what costs nothing is checked before anything is loaded
        super().__post_init__()
        object.__setattr__(self, "strength", as_strength(self.strength))
        several = isinstance(self.strength, str)
        given = [name for name in ("span", "within", "rank") if getattr(self, name) is not None]
        for wrong, words in (
            (several and given,
             "several strengths say what becomes of every layer; give --strength without --span, --within "
             "and --rank"),
            ("rank" in given and (self.strength or "within" in given),
             f"--rank {self.rank} says what is kept, so it is given without --strength and --within"),
            (given and "within" not in given and (self.ablation is not None or self.basis != "estimate"),
             "--ablation and --basis choose a span by --within POINTS; omit them with --span and --rank"),
            (not several and "rank" not in given and len(given) != 1,
             "give one of --span FIRST-LAST, --within POINTS and, for every layer, --strength LIST"),
        ):  # fmt: skip
            if wrong:
                raise ResultsError(words)
        if self.within is not None and isinstance(by := self.chosen_by, str | Path):
            from .load import holds_results  # which imports pandas

            if not holds_results(Path(by)):
                raise ResultsError(
                    f"{by} contains no finished ablation; run `adapter-probe ablate {Path(by).parent}` "
                    "first, give its folder with --ablation, or give --span"
                )
        refuse_full(Path(self.out))

    @property
    def chosen_by(self) -> Ablation | str | Path:
        """The ablation that the span is chosen by: the given one, or the one inside the checkpoint."""
        from adapter_probe.checkpoints.adapter_folder import choose_adapter

        files = [self.data] if isinstance(self.data, str | Path) else list(self.data)
        own = f"ablation-data-{Path(files[0]).stem}" if files else "ablation"
        return self.ablation or choose_adapter(Path(self.checkpoint), self.adapter) / own


def in_words_of_ablate(notes: Sequence[str]) -> tuple[str, ...]:
    """Notes on a checkpoint for the caller of another function: `ablate` takes what they name."""
    with in_words_of(*words_of(Ablate, __name__)):
        return tuple(map(in_callers_words, notes))
