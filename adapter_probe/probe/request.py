"""The request of an ablation: checkpoint, examples, settings and device, ready to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from adapter_probe.checkpoints.base import refuse_unknown_tokens
from adapter_probe.checkpoints.identity import checkpoint_identity
from adapter_probe.checkpoints.native import OpenedCheckpoint
from adapter_probe.checkpoints.opening import open_checkpoint
from adapter_probe.data.encoding import Encoded
from adapter_probe.data.examples import Examples, load_examples
from adapter_probe.data.lm_eval_tasks import is_task, settle
from adapter_probe.data.readers import SPLITS
from adapter_probe.data.requests import Requests, choose_metric
from adapter_probe.data.requests_encoding import EncodedRequests
from adapter_probe.errors import CheckpointError, DataError, ResultsError
from adapter_probe.metrics import check_metric
from adapter_probe.models.adapted import AdaptedModel
from adapter_probe.spans import SITES_PER_LAYER, VariantSet, effective

from .arguments import CODE_SCHEMA as CODE_SCHEMA
from .arguments import AblationSettings as AblationSettings
from .arguments import Precision as Precision
from .given_data import with_data
from .plan import choose_tokens_per_pass


@dataclass(frozen=True)
class AblationRequest:
    """One ablation, ready to run.

    Attributes:
        checkpoint: the opened checkpoint; its model is moved to `device` and run in the settings' precision.
        examples: the examples, read and encoded.
        metric: name of the metric.
        settings: settings of the ablation.
        device: device to run on.
        tokens_per_pass: bounds memory without changing predictions; None for the device's default.
    """

    checkpoint: OpenedCheckpoint
    examples: Examples
    metric: str
    settings: AblationSettings
    device: torch.device
    tokens_per_pass: int | None = None

    @property
    def encoded(self) -> Encoded | EncodedRequests:
        """Token ids of every item: an example, or a window of one."""
        return self.examples.encoded

    @property
    def variants(self) -> VariantSet:
        """The variants of the study, the intact model first; every span switches off other adapters."""
        model = self.checkpoint.model
        return effective(self.settings.variants(len(model.layers)), model.has_adapter)

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that determines the predictions; two runs with the same identity may share parts."""
        return {
            "code_schema": CODE_SCHEMA[self.settings.precision],
            **checkpoint_identity(self.checkpoint.description.to_json()),
            "data": {"fingerprint": self.examples.rows.fingerprint, "n_examples": len(self.examples)},
            "tokens": {"fingerprint": self.encoded.fingerprint},
            "settings": asdict(self.settings),
        }


def prepare_ablation(
    checkpoint: str | Path,
    settings: AblationSettings,
    device: torch.device,
    *,
    base: str | None = None,
    data: Sequence[str | Path] = (),
    split: str = "validation",
    metric: str | None = None,
    max_examples: int | None = None,
    tokens_per_pass: int | None = None,
    encoding: str = "utf-8",
) -> AblationRequest:
    """Open a checkpoint and read the examples to evaluate it on.

    Args:
        checkpoint: folder of the checkpoint.
        settings: settings of the ablation.
        device: device to run on.
        base: folder or Hugging Face Hub id of the base model, if it differs from the recorded one.
        data: files to use instead of the checkpoint's own task, with the same columns and labels, or tasks of
            lm-evaluation-harness (``lm-eval:NAME``). Required for checkpoints of other libraries, which
            record no task.
        split: split of the checkpoint's own task to evaluate on.
        metric: evaluation metric; by default the metric of the task.
        max_examples: evaluate on a fixed random subset of this many examples.
        tokens_per_pass: maximum number of rows per pass; None for the device's default.
        encoding: text encoding of the files in `data`.

    Raises:
        CheckpointError, ModelError: the checkpoint or its base cannot be opened.
        DataError: the examples cannot be read, do not fit the task, or have changed since training.
        ResultsError: tokens_per_pass is below 1, or mixed precision is requested for a task without classes.
    """
    choose_tokens_per_pass(tokens_per_pass, device.type, 1)  # refuse a bad value before anything is opened
    dtype = torch.bfloat16 if settings.precision == "bfloat16" else torch.float32
    opened = open_checkpoint(checkpoint, base, dtype=dtype)
    _refuse_without_adapters(checkpoint, opened, settings)
    opened.model.check_norms(settings.layernorm)
    if opened.description.task.kind != "causal" and any(is_task(str(path)) for path in data):
        raise DataError(
            f"{data[0]}: tasks of lm-eval require a language model; the task of checkpoint {checkpoint} is "
            f"{opened.description.task.kind}"
        )
    opened = with_data(checkpoint, opened, data, split, encoding)
    task = opened.description.task
    check_metric(metric or task.metric, task.kind, len(task.label_names) or None)
    if settings.precision == "mixed" and task.kind != "classification":
        raise ResultsError(
            f"--precision mixed is not possible for task {task.name!r} of kind {task.kind}: only predicted "
            "classes can be checked against rounding; give float32, float64 or bfloat16"
        )
    examples, metric = _judged_on(opened, data, split, metric, max_examples, encoding)
    return AblationRequest(opened, examples, metric, settings, device, tokens_per_pass)


def on_other_data(
    request: AblationRequest,
    data: Sequence[str | Path],
    max_examples: int | None = None,
    encoding: str = "utf-8",
) -> AblationRequest:
    """The same model and settings on other examples with their metric, without opening anything again.

    Args:
        request: an ablation.
        data: files with the examples.
        max_examples: use a fixed random subset of this size.
        encoding: character encoding of the files.

    Raises:
        DataError: the examples cannot be read or do not fit the task.
    """
    examples, metric = _judged_on(request.checkpoint, data, "validation", None, max_examples, encoding)
    return replace(request, examples=examples, metric=metric)


def _judged_on(
    opened: OpenedCheckpoint,
    data: Sequence[str | Path],
    split: str,
    metric: str | None,
    max_examples: int | None,
    encoding: str,
) -> tuple[Examples, str]:
    """The examples, and what they are scored by."""
    examples = _load_examples(opened, data, split, max_examples, encoding)
    task = opened.description.task
    refuse_unknown_tokens(examples.encoded, opened.description.base)
    own = choose_metric(metric, examples.rows) if isinstance(examples.rows, Requests) else task.metric
    return examples, metric or own


def _refuse_without_adapters(
    folder: str | Path, opened: OpenedCheckpoint, settings: AblationSettings
) -> None:
    model = opened.model
    never_off = settings.variants(len(model.layers)).masks.all(axis=0)  # [sites]
    if not (model.has_adapter & ~never_off).any():
        where = f" of layers {settings.layers}" if settings.layers else ""
        raise CheckpointError(
            f"checkpoint {folder} has no adapters to switch off for --sites {settings.sites}{where}: it "
            f"was trained with {opened.description.method.name}, sites {_sites_of(opened.model)}"
        )


def _sites_of(model: AdaptedModel) -> str:
    has_adapter = model.has_adapter.reshape(-1, SITES_PER_LAYER).any(axis=0)  # attention, ffn
    return {(True, True): "both", (True, False): "attention", (False, True): "ffn"}.get(
        tuple(has_adapter.tolist()), "none"
    )


def _load_examples(
    opened: OpenedCheckpoint,
    data: Sequence[str | Path],
    split: str,
    max_examples: int | None,
    encoding: str,
) -> Examples:
    if split not in SPLITS:
        raise DataError(f"--split {split} is not allowed; choose from {', '.join(SPLITS)}")
    task, limit = opened.description.task, opened.description.max_length
    if data:
        files = {split: tuple(settle(str(path)) for path in data)}
        task = replace(task, files=files, validation_share=0.0, encoding=encoding)
    return load_examples(
        opened.tokenizer, task, split, limit, max_examples=max_examples, expect_fingerprint=not data
    )
