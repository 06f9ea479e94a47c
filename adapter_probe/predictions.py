"""Predictions from a model's outputs, for any number of variants at once.

The scores of predictions are in `adapter_probe.metrics`. Answers to questions are spans of a text, which are
decoded in `adapter_probe.data.answers`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from adapter_probe.formulas import NO_CLASS, finite_or_nan
from adapter_probe.metrics import LOSSES, check_kind

_ENTITY = re.compile(r"[BIES](?:-(?P<type>.+))?")


def predictions_from_logits(logits: np.ndarray, kind: str) -> np.ndarray:
    """Predictions from the outputs of the head.

    Args:
        logits: ``[..., examples, labels]``; a regression head has a single output.
        kind: classification or regression, each of one label. A question's answer is no function of one row
            of logits; see `adapter_probe.data.answers`.

    Returns:
        int64 ``[..., examples]``, the index of the largest logit (the first of equals), or `NO_CLASS` where a
        logit is NaN or infinite; for regression float64 ``[..., examples]``, the output itself, or NaN.
    """
    logits = np.asarray(logits)
    if check_kind(kind) == "classification":
        classes = logits.argmax(axis=-1).astype(np.int64, copy=False)
        return np.where(np.isfinite(logits).all(axis=-1), classes, NO_CLASS)
    if kind == "extractive":
        raise ValueError("answers are decoded from a window's start and end logits, not from one row of them")
    if logits.shape[-1] != 1:
        raise ValueError(f"a regression head has 1 output, got {logits.shape[-1]}")
    return finite_or_nan(logits[..., 0].astype(np.float64))


def labels_from_logits(logits: np.ndarray) -> np.ndarray:
    """Which of several labels hold: 1 where the sigmoid of a logit is above 0.5, else 0; int64, as given.

    `NO_CLASS` where the logit is NaN or infinite.
    """
    return np.where(np.isfinite(logits), logits > 0, NO_CLASS).astype(np.int64, copy=False)


def entity_types(tags: Sequence[str]) -> tuple[str, ...]:
    """The types of entities in tags such as ``B-PER``, sorted; empty unless all tags are of this form.

    They are what the package seqeval reads: ``O``, or ``B-``, ``I-``, ``E-`` or ``S-`` before the type, which
    is ``_`` where there is none.
    """
    found = [_ENTITY.fullmatch(tag) for tag in tags if tag != "O"]
    return () if None in found else tuple(sorted({one["type"] or "_" for one in found if one}))


def differences_from_logits(
    metric: str, logits: np.ndarray, intact: np.ndarray, there: np.ndarray | None = None
) -> np.ndarray:
    """How far a classifier's outputs, or log-likelihoods of choices, are from the intact model's, by example.

    Args:
        metric: ``kl`` or ``agreement``.
        logits: ``[..., examples, labels]``.
        intact: ``[examples, labels]``, the intact model's.
        there: bool ``[examples, labels]``, which choices an example has; None for all.

    Returns:
        float64 ``[..., examples]``: the Kullback-Leibler divergence of the variant's distribution over the
        classes from the intact model's, KL(intact || variant) in nats, or 1 where the likeliest class is the
        same and 0 elsewhere; NaN where a logit is NaN or infinite.
    """
    finite = np.isfinite(logits).all(axis=-1) & np.isfinite(intact).all(axis=-1)
    if there is not None:
        logits, intact = np.where(there, logits, -np.inf), np.where(there, intact, -np.inf)
    if metric == "agreement":
        return np.where(finite, logits.argmax(axis=-1) == intact.argmax(axis=-1), np.nan)
    with np.errstate(invalid="ignore"):
        own, other = (_log_softmax(values.astype(np.float64)) for values in (intact, logits))
        divergence = np.sum(np.exp(own) * (own - other), axis=-1, where=True if there is None else there)
    return np.where(finite, np.maximum(divergence, 0.0), np.nan)  # rounding may leave less than 0


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def predictions_from_likelihoods(metric: str, sums: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Predictions of a language model, from the log-likelihoods of continuations.

    Args:
        sums: ``[..., examples, continuations]``, summed log-likelihoods, nats.
        sizes: int ``[examples, continuations]``, what the sums are divided by before they are compared; 0
            where an example has no such continuation.

    Returns:
        int64 ``[..., examples]``, the most likely choice (the first of equals), or `NO_CLASS` if the
        log-likelihood of a choice is NaN or infinite; for a loss float64, the negative log-likelihood or NaN.
    """
    if metric in LOSSES:
        return finite_or_nan(-sums[..., 0].astype(np.float64))
    there = sizes > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        compared = np.where(there, sums.astype(np.float64) / sizes, -np.inf)
    finite = (np.isfinite(sums) | ~there).all(axis=-1)
    return np.where(finite, compared.argmax(axis=-1), NO_CLASS).astype(np.int64, copy=False)


def scores_of_pairs(metric: str, outputs: np.ndarray, reference: np.ndarray | None = None) -> np.ndarray:
    """Scores of examples with two outputs, of which the first should be the larger one.

    Args:
        metric: ``margin``, or ``pairwise_accuracy``.
        outputs: ``[..., examples, 2]``: log-likelihoods of a chosen and a rejected answer, their rewards, or
            similarities.
        reference: ``[examples, 2]``, what is subtracted: a reference model's log-likelihoods, so that the
            margin is the difference of DPO's implicit rewards divided by beta (Rafailov et al. 2023, eq. 7).

    Returns:
        float64 ``[..., examples]``: the first less the second one, or 1 where that is above 0, 1/2 where it
        is 0 and 0 below; NaN where an output is NaN or infinite.
    """
    values = outputs.astype(np.float64) - (0.0 if reference is None else reference)
    with np.errstate(invalid="ignore"):
        margins = finite_or_nan(values[..., 0] - values[..., 1])
    return margins if metric == "margin" else (1 + np.sign(margins)) / 2
