"""From the variants' logits to what is kept of them: logits of labelled texts, answers, tags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from adapter_probe.ablation_results import AblationResults
from adapter_probe.data.answers import Answers, choose_windows, score_answers
from adapter_probe.data.requests_encoding import count_texts
from adapter_probe.data.tagged import count_tags
from adapter_probe.errors import CheckpointError
from adapter_probe.formulas import NO_CLASS
from adapter_probe.hub_names import name_of_base
from adapter_probe.kinds.table import scored_of
from adapter_probe.metrics import about, continuation_sizes
from adapter_probe.models.adapters.imported import ImportedMethod
from adapter_probe.replay.decoding import NOT_FINITE
from adapter_probe.spans import SITES, VariantSet

from .likelihoods import summed_windows
from .request import AblationRequest
from .written import score_texts, texts_of

Arrays = dict[str, np.ndarray]
"""By name, ``[variants, items, ...]``: an item is a text, or a question's window.

``logits`` float32 ``[variants, items, labels]``; of windows ``score``, ``start`` and ``end``, see `Answers`;
what language models and tags have, see `adapter_probe.probe.runners`.
"""


def nonfinite(arrays: Arrays) -> np.ndarray:
    """Bool ``[variants, items]``: where an output is NaN or infinite."""
    if "written" in arrays:
        return (arrays["written"] == NOT_FINITE).any(axis=-1)
    if "logits" in arrays:
        finite = np.isfinite(arrays["logits"]).all(axis=-1)
        if "differences" in arrays:
            finite &= np.isfinite(arrays["differences"]).all(axis=-1)
        return ~finite
    if "tags" in arrays:
        return (arrays["tags"] == NO_CLASS).any(axis=-1)
    return np.isnan(arrays["score"])  # of a window, see `Answers`


def refuse_nonfinite_intact(request: AblationRequest, arrays: Arrays) -> None:
    """Make sure that the intact model, the first variant, has finite outputs.

    Raises:
        CheckpointError: it has not.
    """
    bad = nonfinite(arrays)[0]
    if bad.any():
        raise CheckpointError(
            f"the intact model's outputs are NaN or infinite for {bad.sum()} of {len(bad)} examples in "
            f"precision {request.settings.precision!r}, so there is no score to compare the spans with; "
            "check the checkpoint's and the base's weights, or choose another --precision"
        )


def joined(batches: Sequence[Arrays]) -> Arrays:
    """The outputs of several batches as those of one."""
    return {name: np.concatenate([batch[name] for batch in batches], axis=1) for name in batches[0]}


def assemble_results(
    request: AblationRequest,
    variants: VariantSet,
    arrays: Arrays,
    guard: dict[str, Any] | None = None,
    scores: np.ndarray | None = None,
) -> AblationResults:
    """The results of a study from the outputs of all items, in the dataset's order.

    Args:
        guard: statistics of the errors in mixed precision, which are recorded in the settings.
        scores: of written texts, see `score_texts`; by default they are computed.

    Raises:
        CheckpointError: an output of the intact model is NaN or infinite.
    """
    refuse_nonfinite_intact(request, arrays)
    rows, task = request.examples.rows, request.checkpoint.description.task
    settings, others = _recorded_settings(request), Arrays()
    if guard is not None:
        settings["guard"] = guard
    if any(groups := rows.groups):
        others["groups"] = np.array(groups)
    if variants.stacks is not None:
        settings["stacks"] = [list(one) for one in variants.parts]
        others["stacks"] = np.array(variants.stacks)
    if variants.modules is not None:
        others["modules"] = np.array(variants.modules)
    spans = [(-1, -1) if span is None else (span.first, span.last) for span in variants.spans]
    own = _scored(request, variants, arrays, scores)
    return AblationResults(
        variants.masks, np.array(spans, dtype=np.int64), variants.names,
        scored_of(task.kind, request.metric, task.label_names, own), request.identity, settings, **others,
    )  # fmt: skip


def _recorded_settings(request: AblationRequest) -> dict[str, Any]:
    """What the results say of how they were made."""
    opened, rows = request.checkpoint, request.examples.rows
    described = opened.description
    method = described.method
    settings = {
        **request.settings.to_json(),
        "task": described.task.name,
        "base": name_of_base(described.base.name),
        "method": method.summary() if isinstance(method, ImportedMethod) else method.to_json(),
        "site_parameters": request.model.site_parameters,
        "question": list(request.question),
        "split": rows.name,
    }
    if len(request.model.sites) != len(SITES) or request.settings.unit != "span":
        settings["site_names"] = [site.name for site in request.model.sites]
    if opened.quantised or opened.dequantised:
        stored = "stored quantised, dequantised while it was loaded"
        settings["base_weights"] = f"quantised with {opened.quantised}" if opened.quantised else stored
    if described.base.without_pooler_sha256:
        settings["base_without_pooler"] = described.base.without_pooler_sha256
    if request.data:
        settings["data"] = request.data
    if rows.generation is not None:
        settings["generation"] = rows.generation.to_json() | rows.generation.identity
    return settings


def _scored(
    request: AblationRequest, variants: VariantSet, arrays: Arrays, scores: np.ndarray | None
) -> Arrays:
    """The arrays of what is scored, see `adapter_probe.kinds`, from the outputs of all items."""
    examples, metric = request.examples, about(request.metric)
    rows, words, windows, labels = examples.rows, examples.words, examples.windows, examples.labels
    if metric.distance or (metric.is_mean and windows is None):  # whose paragraphs are drawn
        labels = np.ones(len(rows), dtype=np.int64)
    if examples.combine is not None:
        return {"outputs": examples.combine(arrays["logits"]), "scored_with": labels}
    if rows.generation is not None:
        found = score_texts(request, texts_of(request, arrays["written"]))[0] if scores is None else scores
        return {
            "outputs": found,
            "scored_with": np.full(len(rows), int(metric.is_ratio), dtype=np.int64),
        }
    if request.checkpoint.description.task.about.is_language_model:
        return _of_likelihoods(request, rows, variants, arrays, labels)
    if windows is not None:
        chosen = choose_windows(windows, Answers(**arrays))
        exact, f1 = score_answers(rows, chosen)
        outputs = np.stack([f1, exact], axis=-1).astype(np.float32)  # as `adapter_probe.kinds.answers` says
        answers = np.stack([chosen.start, chosen.end], axis=-1)
        return {"outputs": outputs, "scored_with": labels, "answers": answers}
    if words is not None:
        names = request.checkpoint.description.task.label_names
        found, there = count_tags(request.metric, words, names, arrays["tags"])
        tags = {"tags": words.by_word(arrays["tags"]), "true_tags": words.true_by_word}
        return {"outputs": found, "scored_with": there if metric.is_of_counted else labels, **tags}
    return {"outputs": arrays["logits"], "scored_with": labels}


def _of_likelihoods(
    request: AblationRequest, rows: Any, variants: VariantSet, arrays: Arrays, labels: np.ndarray
) -> Arrays:
    outputs, counts = summed_windows(request.encoded, arrays["logits"]), count_texts(rows, request.encoded)
    if about(request.metric).is_ratio and not rows.scored.are_choices:
        labels = continuation_sizes(request.metric, counts)[:, 0]
    wrong = summed_windows(request.encoded, arrays["wrong"])[..., 0]
    found = {
        "outputs": outputs, "scored_with": labels, "counts": counts,
        "right": request.encoded.n_tokens[:, 0] - wrong,
        "greedy": arrays["greedy"][..., 0],  # of completions, which are one item each
    }  # fmt: skip
    if (reference := request.reference(variants, outputs)) is not None:
        found["reference"] = reference
    if request.compares_tokens:
        found["differences"] = _differences(request, arrays["differences"], variants)
    return found


def _differences(request: AblationRequest, items: np.ndarray, variants: VariantSet) -> np.ndarray:
    """How examples differ from the intact model, from their windows; the intact model not at all."""
    found = summed_windows(request.encoded, items)
    found[..., 0] = np.maximum(found[..., 0], 0.0)  # rounding may leave less than 0; NaN stays
    intact = variants.masks.all(axis=1)
    found[intact, :, 0], found[intact, :, 1] = 0.0, request.encoded.n_tokens[:, 0]
    return found
