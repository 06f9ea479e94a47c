"""Preferences of TRL's trainers, taken as they have tokenised them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from adapter_probe.data.request_rows import REFERENCES, Request, are_preferences
from adapter_probe.errors import DataError
from adapter_probe.metrics import default_metric

if TYPE_CHECKING:
    from adapter_probe.checkpoints.opened_peft import OpenedPeft
    from adapter_probe.data.examples import Examples

NO_TAG = -100  # as in `adapter_probe.data.batches`, which imports torch
OF_PREFERENCES = ("DPOTrainer", "RewardTrainer", "CPOTrainer", "ORPOTrainer")
_LABELLED = {"chosen_input_ids", "chosen_labels", "rejected_input_ids", "rejected_labels"}


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


def preferences_of(trainer: Any, data: Any, kind: str) -> TokenisedPreferences | list[Any] | None:
    """The preferences of a trainer's evaluation set, as texts where it has no tokens; None if it has none.

    Raises:
        DataError: the trainer compares what a study does not score.
    """
    names = {*(getattr(data, "column_names", None) or ())}
    if kind in OF_PREFERENCES and not names:  # a stream
        names = {*next(iter(data or ()), ())}
    if {"chosen_ids", "rejected_ids"} <= names:
        return _preferences_of(trainer, _evaluated(trainer, data))
    if names >= _LABELLED:
        return _labelled_preferences(trainer, _evaluated(trainer, data))
    if not are_preferences(names) or "input_ids" in names:  # of which the trainer reads other columns
        return None
    if kind:
        raise DataError(
            f"the preferences of this {type(trainer).__name__} are not those of a decoder of texts; give "
            "data= (rows with prompt, chosen and rejected)"
        )
    return _evaluated(trainer, data)


def loader_of(trainer: Any) -> Any:
    """The batches of a trainer's only evaluation set, which may have a name."""
    data = getattr(trainer, "eval_dataset", None)
    return trainer.get_eval_dataloader(*(data if isinstance(data, Mapping) else ()))


def _evaluated(trainer: Any, data: Any) -> list[Any]:
    """The rows of an evaluation set that a trainer reads: without the last ones if it drops their batch."""
    rows, size = list(data), getattr(trainer.args, "eval_batch_size", 1)
    drops = getattr(trainer.args, "dataloader_drop_last", False)
    if drops:
        rows = rows[: len(rows) // size * size]
    if not rows:
        dropped = " that fill a batch (dataloader_drop_last)" if drops else ""
        raise DataError(f"the trainer's evaluation set has no rows{dropped}")
    return rows


def _labelled_preferences(trainer: Any, rows: list[Any]) -> TokenisedPreferences:
    """The rows of a trainer without a reference model, CPOTrainer, as it has tokenised them."""
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
    """The rows of a trainer's evaluation set, truncated as it truncates them."""
    if (alpha := getattr(trainer.args, "ld_alpha", None)) is not None:
        raise DataError(
            f"ld_alpha={alpha} of the trainer weights the tokens of an answer, which a study does not; give "
            "data= (rows with prompt, chosen and rejected)"
        )
    rows = list(data)
    prompts = [list(row["prompt_ids"]) for row in rows] if "prompt_ids" in rows[0] else None
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
        for batch in loader_of(trainer):
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
    requests = []
    for begin, both, own in zip(begins, given.answers, given.reference):
        texts = tuple(decode(one[at:]) for one, at in zip(both, begin))
        requests.append(Request(decode(both[0][: begin[0]]), texts, framed=False, reference=own))
    rows = requests_with_fingerprint("preference", requests, "given")
    asked = "reward" if given.begins is None else "log-likelihood"
    asked = f"{asked} of chosen above that of rejected, as the trainer has tokenised and cut them"
    question = Question(asked, len(requests), len(requests), GIVEN_BATCHES)
    if given.begins is None:
        task = replace(task, kind="pairwise", metric=default_metric("pairwise"))
        encoded, places = encoded_pairs([one for both in given.answers for one in both])
        return opened.with_task(task), Examples(rows, encoded, combine=Numbers(places), question=question)
    parts = [
        [(one[: max(at, 1)], one[max(at, 1) :]) for one, at in zip(both, begin)]  # a first token has no score
        for begin, both in zip(begins, given.answers)
    ]
    if bare := [number for number, both in enumerate(parts) if not all(scored for _, scored in both)]:
        raise DataError(
            f"row {bare[0] + 1} of the trainer's evaluation set has an answer without a token to score; "
            "leave it out, or raise the trainer's max_length"
        )
    return opened, Examples(rows, encode_texts(parts), question=question)
