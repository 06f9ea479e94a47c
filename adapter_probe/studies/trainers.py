"""Trainers in place of checkpoints: their models, evaluation sets and metrics.

The evaluation sets of TRL's trainers on preferences are taken as they have tokenised them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
_SCORED = ("SFTTrainer", "DPOTrainer", "RewardTrainer", "CPOTrainer", "ORPOTrainer")
"""Trainers of TRL whose evaluation sets are scored; of the last two, in part."""


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
        DataError: it has no evaluation set, or evaluates what no study scores.
    """
    tokenizer = subject.tokenizer or getattr(trainer, "processing_class", None)
    given = replace(subject, checkpoint=trainer.model, tokenizer=tokenizer)
    if subject.task or not (isinstance(subject.data, tuple) and not subject.data):
        return given, None
    if subject.batches is None:
        _refuse_other(trainer)
        given = replace(given, name=subject.name or _name_of(getattr(trainer, "eval_dataset", None)))
        data = getattr(trainer, "eval_dataset", None)
        names = {*(getattr(data, "column_names", None) or ())} if not isinstance(data, Mapping) else set()
        if {"chosen_ids", "rejected_ids"} <= names and data is not None and len(data):
            return replace(given, batches=_preferences_of(trainer, _evaluated(trainer, data))), None
        if {"chosen_input_ids", "chosen_labels", "rejected_input_ids", "rejected_labels"} <= names:
            rows = _evaluated(trainer, data)
            return replace(given, batches=_labelled_preferences(trainer, rows)), None  # type: ignore[arg-type]
        if are_preferences(names):
            return replace(given, data=_evaluated(trainer, data)), None  # type: ignore[arg-type]
    batches = _batches_of(trainer) if subject.batches is None else list(subject.batches)
    given = replace(given, batches=batches)
    compute, key = trainer.compute_metrics, subject.metric
    if compute is None or subject.labels is not None or subject.read != "logits":
        return given, None
    if key is None or (isinstance(key, str) and key not in BY_NAME):
        return replace(given, metric=None), MetricOfTrainer(trainer, batches, key or "")
    return given, None


def _evaluated(trainer: Any, data: Any) -> list[Any]:
    """The rows of an evaluation set that a trainer reads: without the last ones if it drops their batch.

    Raises:
        DataError: none is left.
    """
    rows, size = list(data), getattr(trainer.args, "eval_batch_size", 1)
    if getattr(trainer.args, "dataloader_drop_last", False):
        rows = rows[: len(rows) // size * size]
    if not rows:
        dropped = " that fill a batch (dataloader_drop_last)" if len(data) else ""
        raise DataError(f"the trainer's evaluation set has no rows{dropped}")
    return rows


def differences_of(trainer: Any, kind: str, preferences: int) -> list[str]:
    """What a trainer's settings do in its own evaluation and a study does not, one sentence each.

    Args:
        trainer: the trainer.
        kind: the kind of task.
        preferences: number of preferences, where these are what the trainer evaluates.
    """
    args = trainer.args
    half = [f"{name}=True" for name in HALF if getattr(args, name, False)]
    found = []
    if getattr(args, "dataloader_drop_last", False):
        found.append("the last rows are left out where they fill no batch, as by the trainer")
    if half:
        found.append(f"the trainer evaluates in half precision ({', '.join(half)}), and this study does not")
    if preferences:
        return found + _differences_of_rewards(trainer, preferences)
    if about_kind(kind).is_language_model:
        found += _differences_of_losses(trainer)
    if getattr(trainer.data_collator, "mlm", False):
        found.append("the words are masked as the trainer's collator drew them once, for all variants alike")
    return found


def _differences_of_losses(trainer: Any) -> list[str]:
    """How a language model's loss differs from the study's nll."""
    args, library = trainer.args, type(trainer).compute_loss.__module__.split(".")[0]
    own = {
        "label_smoothing_factor": getattr(args, "label_smoothing_factor", 0),
        "compute_loss_func": getattr(trainer, "compute_loss_func", None),
        "a compute_loss of its own": library not in ("transformers", *_LIBRARIES),
        "loss_type='dft'": getattr(args, "loss_type", "") == "dft",
        "the routers' auxiliary loss": getattr(
            getattr(trainer.model, "config", None), "output_router_logits", False
        ),
    }
    names = [name for name, value in own.items() if value]
    found = [f"the trainer's eval_loss is by {name}, which the study's nll is without" for name in names]
    if getattr(args, "eval_batch_size", 1) > 1:
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
    if n_rows % getattr(args, "eval_batch_size", 1):
        found.append("the trainer averages its batches, the last of which is smaller, and a study the rows")
    if type(trainer.data_collator).__module__.split(".")[0] not in _LIBRARIES:
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
        DataError: it has none, or several sets.
    """
    if isinstance(data := getattr(trainer, "eval_dataset", None), Mapping):
        one = f"ap.ablate(trainer, batches=trainer.get_eval_dataloader({next(iter(data), 'NAME')!r}))"
        raise DataError(f"the trainer has several evaluation sets, {listed(data)}; give one of them, {one}")
    instead = "give data= (rows with texts) or batches= (what the model's forward takes)"
    try:
        batches = list(trainer.get_eval_dataloader())
    except ValueError as error:  # transformers' for a missing one, or one of texts
        raise DataError(f"the trainer gives no batches ({one_line(error)}); {instead}") from error
    if not batches:
        raise DataError(f"the trainer's evaluation set has no rows; {instead}")
    return batches


def _refuse_other(trainer: Any) -> None:
    """Refuse trainers of other libraries that evaluate what no study scores.

    Raises:
        DataError: it is one of them.
    """
    kinds = [one for one in type(trainer).__mro__ if one.__module__.split(".")[0] in _LIBRARIES]
    kind = next((one for one in kinds if "base" not in one.__module__.rpartition(".")[2]), None)
    if kind is None or kind.__name__ in _SCORED:
        return
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
        for batch in trainer.get_eval_dataloader():
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
