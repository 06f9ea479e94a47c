"""The evaluation sets of TRL's trainers on preferences, as they have tokenised them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from adapter_probe.data.request_rows import REFERENCES, Request
from adapter_probe.errors import DataError
from adapter_probe.metrics import default_metric

if TYPE_CHECKING:
    from adapter_probe.checkpoints.opened_peft import OpenedPeft
    from adapter_probe.data.examples import Examples


@dataclass(frozen=True, eq=False)
class TokenisedPreferences:
    """Preferences as tokens.

    Attributes:
        prompts: tokens of the prompts; None where the answers contain them, as of a reward model.
        answers: tokens of the chosen and of the rejected answer of each row.
        reference: log-likelihoods of both answers by the reference model, if they are known.
    """

    prompts: tuple[list[int], ...] | None
    answers: tuple[tuple[list[int], list[int]], ...]
    reference: tuple[tuple[float, ...], ...]


def is_tokenised(names: Sequence[str]) -> bool:
    """Whether columns are those that TRL's trainers for preferences make."""
    return {"chosen_ids", "rejected_ids"} <= set(names)


def preferences_of(trainer: Any, data: Any) -> tuple[TokenisedPreferences, bool]:
    """The rows of a trainer's evaluation set, truncated as it truncates them.

    Returns:
        the rows, and whether their reference model is the trainer's own with all adapters off.
    """
    rows = list(data)
    prompts = tuple(list(row["prompt_ids"]) for row in rows) if "prompt_ids" in rows[0] else None
    kept = _kept(trainer) if prompts is not None else slice(None)
    answers = []
    for number, row in enumerate(rows):
        begin = [] if prompts is None else prompts[number]
        both = [[*begin, *row[name]][kept] for name in ("chosen_ids", "rejected_ids")]
        answers.append((both[0], both[1]))
    if prompts is None:
        return TokenisedPreferences(None, tuple(answers), ((),) * len(rows)), False
    if set(REFERENCES) <= set(rows[0]):
        reference = tuple(tuple(float(row[name]) for name in REFERENCES) for row in rows)
    else:
        reference = _computed(trainer) or ((),) * len(rows)
    return TokenisedPreferences(prompts, tuple(answers), reference), not reference[0]


def _kept(trainer: Any) -> slice:
    most = getattr(trainer.args, "max_length", None)
    ends = getattr(trainer.args, "truncation_mode", "keep_start") == "keep_end"
    return slice(None) if most is None else slice(-most, None) if ends else slice(None, most)


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
    from adapter_probe.data.requests import requests_with_fingerprint
    from adapter_probe.data.requests_encoding import encode_texts

    task, decode = opened.description.task, cast("Callable[..., str]", opened.tokenizer.decode)
    wanted = "regression" if given.prompts is None else "causal"
    if task.kind != wanted:
        raise DataError(
            "the trainer's evaluation set has preferences, which need a language model or a reward model "
            f"with one output; the model is of kind {task.kind}"
        )
    begins = [0] * len(given.answers) if given.prompts is None else list(map(len, given.prompts))
    requests = [
        Request(
            decode(both[0][:begin]), tuple(decode(one[begin:]) for one in both), framed=False, reference=own
        )
        for begin, both, own in zip(begins, given.answers, given.reference)
    ]
    rows = requests_with_fingerprint("preference", requests, "given")
    if given.prompts is None:
        task = replace(task, kind="pairwise", metric=default_metric("pairwise"))
        encoded, places = encoded_pairs([one for both in given.answers for one in both])
        return opened.with_task(task), Examples(rows, encoded, combine=Numbers(places))
    texts = [
        [(one[: max(begin, 1)], one[max(begin, 1) :]) for one in both]  # nothing comes before a first token
        for begin, both in zip(begins, given.answers)
    ]
    if bare := [number for number, both in enumerate(texts) if not all(scored for _, scored in both)]:
        raise DataError(
            f"row {bare[0] + 1} of the trainer's evaluation set has an answer without a token to score; "
            "leave it out, or raise the trainer's max_length"
        )
    return opened, Examples(rows, encode_texts(texts))
