"""Trainers in place of checkpoints: their models, evaluation sets and metrics.

The evaluation sets of TRL's trainers on preferences are taken as they have tokenised them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from adapter_probe.data.request_rows import REFERENCES, Request, are_preferences
from adapter_probe.errors import DataError, listed, one_line
from adapter_probe.kinds.table import about_kind
from adapter_probe.metrics import BY_NAME, default_metric

from .trainer_metric import HALF, MetricOfTrainer

if TYPE_CHECKING:
    from adapter_probe.checkpoints.opened_peft import OpenedPeft
    from adapter_probe.data.examples import Examples

    from .checkpoint_arguments import Subject

NO_TAG = -100  # as in `adapter_probe.data.batches`, which imports torch
_FORMATS = ("", "arrow", "csv", "generator", "json", "pandas", "parquet", "text")  # names of data set loaders
_LIBRARIES = ("trl", "sentence_transformers")
_KNOWN = ("transformers", *_LIBRARIES)
_OF_PREFERENCES = ("DPOTrainer", "RewardTrainer", "CPOTrainer", "ORPOTrainer")
_LABELLED = {"chosen_input_ids", "chosen_labels", "rejected_input_ids", "rejected_labels"}
_IMAGES = {"image", "images"}
_EVALUATES = ("evaluate", "evaluation_loop")
_EVENTS = ("on_prediction_step", "on_evaluate")
_COMPUTES = ("prediction_step", "compute_loss", "_compute_loss", "get_batch_loss_metrics")


@dataclass(frozen=True, eq=False)
class TokenisedPreferences:
    """Preferences as tokens.

    Attributes:
        begins: of each row's two answers the number of tokens of the prompt at their start; None where the
            prompt is not told apart, as for a reward model.
        answers: tokens of the chosen and of the rejected answer of each row, after those of the prompt.
        reference: log-likelihoods of both answers by the reference model, if they are known.
        less_off: whether their reference model is the trainer's own with all adapters off.
    """

    begins: tuple[tuple[int, int], ...] | None
    answers: tuple[tuple[list[int], list[int]], ...]
    reference: tuple[tuple[float, ...], ...]
    less_off: bool = False


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
        if found := _of_preferences(given, trainer, data, kind):
            return found, None
    batches = _batches_of(trainer) if subject.batches is None else list(subject.batches)
    given = replace(given, batches=batches)
    compute, key = trainer.compute_metrics, subject.metric
    if compute is None or subject.labels is not None or subject.read != "logits":
        return given, None
    if key is None or (isinstance(key, str) and key not in BY_NAME):
        return replace(given, metric=None), MetricOfTrainer(trainer, batches, key or "")
    return given, None


def _evaluation_set(trainer: Any, kind: str) -> Any:
    """The only evaluation set of a trainer.

    Raises:
        DataError: it has several.
    """
    data = getattr(trainer, "eval_dataset", None)
    if not isinstance(data, Mapping):
        return data
    if len(data) == 1:
        return next(iter(data.values()))
    name = next(iter(data), "NAME")
    one = f"ap.ablate(trainer, batches=trainer.get_eval_dataloader({name!r}))"
    if kind in _OF_PREFERENCES:
        one = f"trainer.eval_dataset = trainer.eval_dataset[{name!r}]"
    raise DataError(f"the trainer has several evaluation sets, {listed(data)}; give one of them, {one}")


def _of_preferences(given: Subject, trainer: Any, data: Any, kind: str) -> Subject | None:
    """The arguments with the preferences of a trainer's evaluation set; None if it has other rows."""
    names = {*(getattr(data, "column_names", None) or ())}
    if kind in _OF_PREFERENCES and not names:  # a stream
        names = {*next(iter(data or ()), ())}
    if {"chosen_ids", "rejected_ids"} <= names:
        return replace(given, batches=_preferences_of(trainer, _evaluated(trainer, data)))
    if names >= _LABELLED:
        rows = _labelled_preferences(trainer, _evaluated(trainer, data))
        return replace(given, batches=rows)  # type: ignore[arg-type]
    if not are_preferences(names):
        return None
    if names & _IMAGES:
        raise DataError(
            f"the trainer's preferences have {listed(names & _IMAGES)}, which a study does not read; give "
            "data= (rows with prompt, chosen and rejected) of texts alone"
        )
    return replace(given, data=_evaluated(trainer, data))  # type: ignore[arg-type]


def _loader_of(trainer: Any) -> Any:
    """The batches of a trainer's only evaluation set, which may have a name."""
    data = getattr(trainer, "eval_dataset", None)
    return trainer.get_eval_dataloader(*(data if isinstance(data, Mapping) else ()))


def _evaluated(trainer: Any, data: Any) -> list[Any]:
    """The rows of an evaluation set that a trainer reads: without the last ones if it drops their batch.

    Raises:
        DataError: none is left.
    """
    rows, size = list(data), getattr(trainer.args, "eval_batch_size", 1)
    drops = getattr(trainer.args, "dataloader_drop_last", False)
    if drops:
        rows = rows[: len(rows) // size * size]
    if not rows:
        dropped = " that fill a batch (dataloader_drop_last)" if drops else ""
        raise DataError(f"the trainer's evaluation set has no rows{dropped}")
    return rows


def differences_of(trainer: Any, kind: str, batches: Any, n_examples: int, is_own_set: bool) -> list[str]:
    """What a trainer does in its own evaluation and a study does not, one sentence each.

    Args:
        trainer: the trainer.
        kind: the kind of task.
        batches: what is read of its evaluation set; None for texts.
        n_examples: how many examples these are.
        is_own_set: whether they are those that the trainer evaluates.
    """
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

    again = next(iter(_loader_of(trainer)), first)
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
    """The batches of a trainer's evaluation set.

    Raises:
        DataError: it has none.
    """
    instead = "give data= (rows with texts) or batches= (what the model's forward takes)"
    try:
        batches = list(_loader_of(trainer))
    except ValueError as error:  # transformers' for a missing one, or one of texts
        raise DataError(f"the trainer gives no batches ({one_line(error)}); {instead}") from error
    if not batches:
        raise DataError(f"the trainer's evaluation set has no rows; {instead}")
    return batches


def _refuse_other(trainer: Any) -> str:
    """The name of the class of another library that a trainer is of, if a study scores what it evaluates.

    Raises:
        DataError: no study does.
    """
    kinds = [one for one in type(trainer).__mro__ if _library_of(one) in _LIBRARIES]
    kind = next((one for one in kinds if "base" not in one.__module__.rpartition(".")[2]), None)
    if kind is None or kind.__name__ in ("SFTTrainer", *_OF_PREFERENCES):
        return "" if kind is None else kind.__name__
    name = type(trainer).__name__
    if kind.__module__.startswith("sentence_transformers"):
        raise DataError(
            f"a {name} trains a model of sentence-transformers, which is studied from its folder; save it "
            "(trainer.model.save_pretrained(FOLDER)) and give ap.ablate(FOLDER, data=...)"
        )
    raise DataError(
        f"what a {name} evaluates is not what a study scores; give data= as well: rows with prompt, chosen "
        "and rejected (preferences), prompt and completion, or prompt and answer with generate=True"
    )


def _labelled_preferences(trainer: Any, rows: list[Any]) -> TokenisedPreferences:
    """The rows of a trainer without a reference model, CPOTrainer, as it has tokenised them.

    Raises:
        DataError: the trainer compares means over tokens.
    """
    name, loss = type(trainer).__name__, getattr(trainer, "loss_type", "")
    if loss not in ("sigmoid", "hinge"):
        of = f" with loss_type={loss!r}" if loss else ""
        raise DataError(
            f"a {name}{of} compares the mean log-likelihoods of a token, and a study the sums over answers; "
            "give data= (rows with prompt, chosen and rejected) for these"
        )
    answers, begins = [], []
    for row in rows:
        answers.append((list(row["chosen_input_ids"]), list(row["rejected_input_ids"])))
        both = [row["chosen_labels"], row["rejected_labels"]]
        begins.append(tuple(next((n for n, x in enumerate(one) if x != NO_TAG), len(one)) for one in both))
    return TokenisedPreferences(tuple(begins), tuple(answers), ((),) * len(rows))  # type: ignore[arg-type]


def _preferences_of(trainer: Any, data: Any) -> TokenisedPreferences:
    """The rows of a trainer's evaluation set, truncated as it truncates them.

    Raises:
        DataError: it weights the tokens of an answer.
    """
    if (alpha := getattr(trainer.args, "ld_alpha", None)) is not None:
        raise DataError(
            f"ld_alpha={alpha} of the trainer weights the tokens of an answer, which a study does not; give "
            "data= (rows with prompt, chosen and rejected)"
        )
    rows = list(data)
    prompts = tuple(list(row["prompt_ids"]) for row in rows) if "prompt_ids" in rows[0] else None
    most = None if prompts is None else getattr(trainer.args, "max_length", None)
    ends = getattr(trainer.args, "truncation_mode", "keep_start") == "keep_end"
    begins, answers = [], []
    for number, row in enumerate(rows):
        prompt = [] if prompts is None else prompts[number]
        both = [[*prompt, *row[name]] for name in ("chosen_ids", "rejected_ids")]
        cuts = [max(0, len(one) - most) if ends and most is not None else 0 for one in both]
        left, right = (max(0, len(prompt) - cut) for cut in cuts)
        chosen, rejected = (one[cut:][:most] for one, cut in zip(both, cuts))
        begins.append((left, right))
        answers.append((chosen, rejected))
    if prompts is None:
        return TokenisedPreferences(None, tuple(answers), ((),) * len(rows))
    if set(REFERENCES) <= set(rows[0]):
        reference = tuple(tuple(float(row[name]) for name in REFERENCES) for row in rows)
    else:
        reference = _computed(trainer) or ((),) * len(rows)
    return TokenisedPreferences(tuple(begins), tuple(answers), reference, not reference[0])


def _computed(trainer: Any) -> tuple[tuple[float, ...], ...]:
    """The log-likelihoods by a trainer's reference model, or adapter; nothing if it has neither."""
    import torch

    from adapter_probe.checkpoints.in_memory import left_as_it_was

    adapters = getattr(trainer.model, "peft_config", {})
    if getattr(trainer, "ref_model", None) is None and "ref" not in adapters:
        return ()
    found: list[tuple[float, ...]] = []
    with left_as_it_was(trainer.model), torch.no_grad(), nullcontext(trainer.model.eval()):
        for batch in _loader_of(trainer):
            both = trainer.compute_ref_log_probs(trainer.ref_model or trainer.model, batch)
            found += zip(*(one.double().tolist() for one in both))
    return tuple(found)


def examples_of_preferences(opened: OpenedPeft, given: TokenisedPreferences) -> tuple[OpenedPeft, Examples]:
    """The rows as the examples of a model in memory, and the model with their task.

    Raises:
        DataError: the model is neither a language model nor a reward model, or an answer has no token.
    """
    from adapter_probe.data.combining import Numbers
    from adapter_probe.data.examples import Examples, encoded_pairs
    from adapter_probe.data.question import Question
    from adapter_probe.data.requests import requests_with_fingerprint
    from adapter_probe.data.requests_encoding import encode_texts
    from adapter_probe.data.task_of_files import GIVEN_BATCHES

    task, decode = opened.description.task, cast("Callable[..., str]", opened.tokenizer.decode)
    wanted = "regression" if given.begins is None else "causal"
    if task.kind != wanted:
        raise DataError(
            "the trainer's evaluation set has preferences, which need a language model or a reward model "
            f"with one output; the model is of kind {task.kind}"
        )
    begins = given.begins or ((0, 0),) * len(given.answers)
    requests = [
        Request(
            decode(both[0][: begin[0]]), tuple(decode(one[at:]) for one, at in zip(both, begin)),
            framed=False, reference=own,
        )
        for begin, both, own in zip(begins, given.answers, given.reference)
    ]  # fmt: skip
    rows = requests_with_fingerprint("preference", requests, "given")
    asked = "reward" if given.begins is None else "log-likelihood"
    asked = f"{asked} of chosen above that of rejected, as the trainer has tokenised and cut them"
    question = Question(asked, len(requests), len(requests), GIVEN_BATCHES)
    if given.begins is None:
        task = replace(task, kind="pairwise", metric=default_metric("pairwise"))
        encoded, places = encoded_pairs([one for both in given.answers for one in both])
        return opened.with_task(task), Examples(rows, encoded, combine=Numbers(places), question=question)
    texts = [
        [(one[: max(at, 1)], one[max(at, 1) :]) for one, at in zip(both, begin)]  # a first token has no score
        for begin, both in zip(begins, given.answers)
    ]
    if bare := [number for number, both in enumerate(texts) if not all(scored for _, scored in both)]:
        raise DataError(
            f"row {bare[0] + 1} of the trainer's evaluation set has an answer without a token to score; "
            "leave it out, or raise the trainer's max_length"
        )
    return opened, Examples(rows, encode_texts(texts), question=question)
