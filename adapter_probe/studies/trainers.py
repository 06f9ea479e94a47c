"""Trainers in place of checkpoints: their models, evaluation sets and metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from adapter_probe.errors import DataError, listed, one_line
from adapter_probe.kinds.table import about_kind
from adapter_probe.metrics import BY_NAME

from .trainer_metric import HALF, MetricOfTrainer
from .trainer_preferences import OF_PREFERENCES, TokenisedPreferences, loader_of, preferences_of

if TYPE_CHECKING:
    from adapter_probe.checkpoints.opened_peft import OpenedPeft
    from adapter_probe.data.examples import Examples

    from .checkpoint_arguments import Subject

_FORMATS = ("", "arrow", "csv", "generator", "json", "pandas", "parquet", "text")  # names of data set loaders
_LIBRARIES = ("trl", "sentence_transformers")
_KNOWN = ("transformers", *_LIBRARIES)
_EVALUATES = ("evaluate", "evaluation_loop")
_EVENTS = ("on_prediction_step", "on_evaluate")
_COMPUTES = ("prediction_step", "compute_loss", "_compute_loss", "get_batch_loss_metrics")


def of_trainer(subject: Subject, trainer: Any) -> tuple[Subject, MetricOfTrainer | None]:
    """A trainer's model, and its examples where the user gives none; and its metric.

    Raises:
        DataError: it has no evaluation set, or evaluates what no study scores, or other weights than these.
    """
    optimiser = getattr(trainer, "optimizer", None)
    if any(group.get("train_mode") for group in getattr(optimiser, "param_groups", ())):
        name = type(getattr(optimiser, "optimizer", optimiser)).__name__
        raise DataError(
            f"the trainer's optimiser, {name}, has other weights in training than in evaluation; call "
            "trainer.optimizer.eval() first, as trainer.evaluate() does"
        )
    tokenizer = subject.tokenizer or getattr(trainer, "processing_class", None)
    given = replace(subject, checkpoint=trainer.model, tokenizer=tokenizer)
    if subject.task or not (isinstance(subject.data, tuple) and not subject.data):
        return given, None
    if subject.batches is None:
        kind = _refuse_other(trainer)
        data = _evaluation_set(trainer, kind)
        given = replace(given, name=subject.name or _name_of(data))
        found = preferences_of(trainer, data, kind)
        if isinstance(found, TokenisedPreferences):
            return replace(given, batches=found), None  # type: ignore[arg-type]
        if found is not None:
            return replace(given, data=found), None  # type: ignore[arg-type]
    batches = _batches_of(trainer) if subject.batches is None else list(subject.batches)
    given = replace(given, batches=batches)
    compute, key = trainer.compute_metrics, subject.metric
    if compute is None or subject.labels is not None or subject.read != "logits":
        return given, None
    if key is None or (isinstance(key, str) and key not in BY_NAME):
        return replace(given, metric=None), MetricOfTrainer(trainer, batches, key or "")
    return given, None


def _evaluation_set(trainer: Any, kind: str) -> Any:
    """The only evaluation set of a trainer."""
    data = getattr(trainer, "eval_dataset", None)
    if not isinstance(data, Mapping):
        return data
    if len(data) == 1:
        return next(iter(data.values()))
    name = next(iter(data), "NAME")
    one = f"ap.ablate(trainer, batches=trainer.get_eval_dataloader({name!r}))"
    if kind in OF_PREFERENCES:
        one = f"trainer.eval_dataset = trainer.eval_dataset[{name!r}]"
    raise DataError(f"the trainer has several evaluation sets, {listed(data)}; give one of them, {one}")


def as_evaluated(
    trainer: Any,
    metric: MetricOfTrainer | None,
    of_own_set: bool,
    subject: Subject,
    opened: OpenedPeft,
    examples: Examples | None,
) -> tuple[Subject, OpenedPeft, Examples | None]:
    """A trainer's open model and batches, if it has these, with its metric and what a study does otherwise.

    With `of_own_set` the examples are those that the trainer evaluates.
    """
    notes, unused = [], getattr(trainer, "compute_metrics", None) is not None and subject.metric is None
    if metric is not None:
        assert examples is not None, "a trainer's metric is of its batches"
        subject = replace(subject, metric=metric.of_model(opened, examples))
        notes.append(metric.said)
    asked = None if examples is None else examples.question
    if of_own_set and examples is not None and asked is not None:
        source = f"the evaluation set of a {type(trainer).__name__}"
        examples = replace(examples, question=replace(asked, source=source))
    if of_own_set or metric is not None:
        n_rows = len(subject.data) if asked is None else asked.n_rows  # type: ignore[arg-type]  # texts of the set
        notes += _differences_of(trainer, opened.description.task.kind, subject.batches, n_rows, of_own_set)
    if unused and metric is None:
        notes.append("the trainer's compute_metrics, which is of its own batches, is not used")
    return subject, replace(opened, notes=(*opened.notes, *notes)), examples


def _differences_of(trainer: Any, kind: str, batches: Any, n_examples: int, is_own_set: bool) -> list[str]:
    """What a trainer does in its own evaluation and a study does not, one sentence each."""
    args, preferences = trainer.args, batches is None or isinstance(batches, TokenisedPreferences)
    has_loss = preferences or about_kind(kind).is_language_model
    half = [f"{name}=True" for name in HALF if getattr(args, name, False)]
    found = []
    if is_own_set and getattr(args, "dataloader_drop_last", False):
        found.append("the last rows are left out where they fill no batch, as by the trainer")
    if half:
        found.append(f"the trainer evaluates in half precision ({', '.join(half)}), and this study does not")
    if own := _own_methods(trainer, _EVALUATES + _COMPUTES if has_loss else _EVALUATES):
        found.append(f"the trainer evaluates by {' and '.join(own)} of its own, which a study does not call")
    if preferences:
        return found + _differences_of_rewards(trainer, n_examples)
    if has_loss:
        found += _differences_of_losses(trainer, n_examples > len(batches) or args.eval_batch_size > 1)
    if is_own_set and _are_drawn_anew(trainer, batches[0]):
        found.append("the trainer draws its batches anew at every evaluation, and a study once for all spans")
    return found


def _own_methods(trainer: Any, names: Sequence[str]) -> list[str]:
    """Which methods of a trainer, and of its callbacks at evaluations, are not of the libraries."""
    callbacks = getattr(getattr(trainer, "callback_handler", None), "callbacks", ())
    methods = {name: getattr(trainer, name, None) for name in names} | {
        f"{type(one).__name__}.{name}": getattr(one, name, None) for one in callbacks for name in _EVENTS
    }
    return [name for name, one in methods.items() if one and _library_of(one) not in _KNOWN]


def _library_of(one: Any) -> str:
    return str(getattr(one, "__module__", "")).partition(".")[0]


def _are_drawn_anew(trainer: Any, first: Mapping[str, Any]) -> bool:
    """Whether an evaluation set gives other batches every time, as a collator that masks words does."""
    import torch
    from torch.utils._pytree import tree_leaves

    again = next(iter(loader_of(trainer)), first)
    pairs = zip(tree_leaves(dict(first)), tree_leaves(dict(again)))
    return not all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


def _differences_of_losses(trainer: Any, has_several: bool) -> list[str]:
    """How a language model's loss differs from the study's nll, with several texts in a batch or not."""
    args = trainer.args
    own = {
        "label_smoothing_factor": getattr(args, "label_smoothing_factor", 0),
        "compute_loss_func": getattr(trainer, "compute_loss_func", None),
        "loss_type='dft'": getattr(args, "loss_type", "") == "dft",
        "the routers' auxiliary loss": getattr(
            getattr(trainer.model, "config", None), "output_router_logits", False
        ),
    }
    names = [name for name, value in own.items() if value]
    found = [f"the trainer's eval_loss is by {name}, which the study's nll is without" for name in names]
    if has_several:
        found.append(
            "the trainer's eval_loss is a mean over the tokens of each batch, and the study's nll is one "
            "over the rows"
        )
    return found


def _differences_of_rewards(trainer: Any, n_rows: int) -> list[str]:
    """How the rewards of preferences and their means differ from the study's."""
    args, found = trainer.args, []
    if (beta := getattr(args, "beta", 1.0)) != 1.0:
        found.append(f"the trainer's rewards are {beta:g} times (beta) the log-likelihoods of the study")
    if alpha := getattr(args, "alpha", 0):
        found.append(f"the trainer's rewards are transformed (alpha={alpha:g}), and those of a study are not")
    if n_rows % getattr(args, "eval_batch_size", 1):
        found.append("the trainer averages its batches, the last of which is smaller, and a study the rows")
    if _library_of(type(trainer.data_collator)) not in _LIBRARIES:
        found.append("the trainer's own data_collator is not used")
    return found


def _name_of(data: Any) -> str:
    """The name of a data set of `datasets` that was loaded by one: its configuration's, or its own."""
    about = getattr(data, "info", None)
    name, part = (getattr(about, key, None) or "" for key in ("dataset_name", "config_name"))
    return "" if name in _FORMATS else str(part if part not in ("", "default") else name)


def _batches_of(trainer: Any) -> list[Any]:
    """The batches of a trainer's evaluation set."""
    instead = "give data= (rows with texts) or batches= (what the model's forward takes)"
    try:
        batches = list(loader_of(trainer))
    except ValueError as error:  # transformers' for a missing one, or one of texts
        raise DataError(f"the trainer gives no batches ({one_line(error)}); {instead}") from error
    if not batches:
        raise DataError(f"the trainer's evaluation set has no rows; {instead}")
    return batches


def _refuse_other(trainer: Any) -> str:
    """The name of the class of another library that a trainer is of, if a study scores what it evaluates."""
    kinds = [one for one in type(trainer).__mro__ if _library_of(one) in _LIBRARIES]
    kind = next((one for one in kinds if "base" not in one.__module__.rpartition(".")[2]), None)
    if kind is None or kind.__name__ in ("SFTTrainer", *OF_PREFERENCES):
        return "" if kind is None else kind.__name__
    name = type(trainer).__name__
    raise DataError(
        f"what a {name} evaluates is not what a study scores; give data= as well: rows with prompt, chosen "
        "and rejected (preferences), prompt and completion, or prompt and answer with generate=True"
    )
