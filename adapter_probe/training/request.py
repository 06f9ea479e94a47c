"""The request of a training, and its inputs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from adapter_probe import metrics
from adapter_probe.checkpoints.base import AnyLoaded, limit_length, start_of
from adapter_probe.checkpoints.base_config import find_any_base
from adapter_probe.checkpoints.identity import tokenizer_parts
from adapter_probe.checkpoints.tokenizer import load_tokenizer, refuse_unknown_tokens, with_blanks
from adapter_probe.data.examples import Examples, Reading
from adapter_probe.data.squad import WindowSettings
from adapter_probe.data.task_spec import TaskSpec
from adapter_probe.device import check_precision
from adapter_probe.errors import (
    AdapterProbeError,
    AdapterProbeWarning,
    ModelError,
    ResultsError,
    must_be,
)
from adapter_probe.metrics import metric_label
from adapter_probe.models.methods import Adapters, Method, PeftMethod, method_from_json
from adapter_probe.python_words import in_callers_words
from adapter_probe.records import from_record
from adapter_probe.results.atomic import read_json

from .model import TrainingModel
from .objectives import Objective, objective_of
from .own_methods import Prepared, is_norm, load_base, prepare_own
from .settings import TrainingSettings

# Increased when a code change changes the result of the same settings. In bfloat16 the first version
# kept the trained matrices of the first step in matrix products. Fused Adam rounds its updates differently.
# Classifiers under methods that are not PEFT's are one version ahead, which compute by the forward of
# Transformers since then. The fourth version in bfloat16 draws other dropout masks on a processor, and rounds
# attention differently; since the sixth, tuners of PEFT and language models do so, too.
TRAINING_VERSION = {"float32": 2, "bfloat16": 7}


@dataclass(frozen=True)
class TrainingRequest:
    """Everything that determines a trained model.

    Attributes:
        base: folder or hub id of the base; `revision` is its commit on the hub.
        task: data, labels and metric, with the splits ``train`` and ``validation``.
        max_length: truncate examples to this many tokens; None for the model's limit.
        max_train: train on a fixed random subset of this many examples; None for all.
    """

    base: str
    task: TaskSpec
    method: Method
    settings: TrainingSettings
    max_length: int | None = None
    revision: str | None = None
    max_train: int | None = None

    def to_json(self) -> dict[str, Any]:
        """A plain dict; `from_json` reads it back."""
        own = {
            "method": self.method.to_json(),
            "task": self.task.to_json(),
            "settings": self.settings.to_json(),
        }
        plain = {name: getattr(self, name) for name in ("base", "max_length", "revision", "max_train")}
        return {**plain, **own}

    @staticmethod
    def from_json(record: object) -> TrainingRequest:
        """The inverse of `to_json`."""
        return from_record(
            TrainingRequest, record, readers={"method": method_from_json, "task": TaskSpec.from_json}
        )


def read_request(path: Path) -> TrainingRequest:
    """Read the request of a job."""
    document = read_json(path)
    try:
        return TrainingRequest.from_json(document)
    except AdapterProbeError as error:
        raise ResultsError(f"{path}: {error}") from error


@dataclass(frozen=True, eq=False)
class TrainingInputs:
    """The inputs of a training, the weights of a base and the tokens of a task, shared by all methods.

    Attributes:
        base: the base in memory, unchanged.
        splits: the splits ``train`` and ``validation``, read and encoded.
        objective: the task's objective.
        max_length: maximum number of tokens per example.
        fingerprints: identities of base and data, as plain JSON.
    """

    base: AnyLoaded
    splits: Mapping[str, Examples]
    objective: Objective
    max_length: int
    fingerprints: dict[str, Any]

    def question(self, metric: str) -> list[str]:
        """What is trained on, and what the score is of, one line each."""
        asked = [(name, one.question) for name, one in self.splits.items() if one.question]
        words = {"train": "the loss", "validation": metric_label(metric)}
        return [f"{name}: {line}" for name, one in asked for line in one.lines(words[name])]

    def majority_score(self, metric: str) -> float | None:
        """The score of always predicting the most frequent class of the validation set; None if undefined."""
        split = self.splits["validation"]
        if split.rows.scored.are_choices:  # which are no classes
            return None
        labels = split.labels if split.words is None else split.words.by_tag
        score = float(metrics.majority_score(metric, labels))
        return None if math.isnan(score) else score


def load_inputs(request: TrainingRequest) -> TrainingInputs:
    """Load the base and read and encode the data.

    Raises:
        CheckpointError, ModelError, DataError: the base or the data cannot be used.
    """
    task = request.task
    found = find_any_base(request.base, request.revision)
    base = load_base(found, task, request.method, request.settings.seed)
    tokenizer = load_tokenizer(base.identity.name, base.identity.revision)
    if task.about.of_words:
        tokenizer = with_blanks((), base.model.config, tokenizer) or tokenizer
    if request.max_length is not None and request.max_length < 3:  # two of which are special ones
        raise ModelError(must_be("max_length", "at least 3", request.max_length))
    asked = min(tokenizer.model_max_length, request.max_length or math.inf)
    limit = limit_length(base.max_length, asked, base.identity.name)
    if task.about.in_windows:
        limit = WindowSettings.within(limit).max_length
    start = (
        start_of(base.model)
        if task.about.is_language_model and base.model.config.is_encoder_decoder
        else None
    )
    reading = Reading(tokenizer, task, "train", limit, request.max_train, True, start=start, trains=True)
    validation = replace(reading, split="validation", max_examples=None, trains=False)
    splits = {"train": reading.examples(), "validation": validation.examples()}
    for examples in splits.values():
        encoded: Any = examples.encoded
        refuse_unknown_tokens(encoded, base.identity)
    fingerprints = {
        "base": {"weights_sha256": base.identity.weights_sha256, "config": base.identity.config},
        "tokenizer": tokenizer_parts(tokenizer),
        "tokens": {name: examples.encoded.fingerprint for name, examples in splits.items()},
        "data": {**task.fingerprints, "train": splits["train"].rows.fingerprint},
    }
    objective = objective_of(task, splits["train"], splits["validation"])
    return TrainingInputs(base, splits, objective, limit, fingerprints)


def warn_of_untrained_pooler(request: TrainingRequest, n_layers: int, in_study: bool = False) -> None:
    """Warn that the base's pooler was never trained, if the method keeps it frozen.

    Args:
        request: a training whose base has such a pooler; see `has_untrained_pooler`.
        in_study: whether it is a trial of a study, whose commands have no option for adapters' poolers.
    """
    method = request.method
    if method.trains("pooler", n_layers, n_layers):
        return
    options: dict[type, str] = {PeftMethod: "add modules_to_save=pooler to the method, or "}
    options |= {} if in_study else {Adapters: "train it too (--train-pooler), or "}
    warnings.warn(
        in_callers_words(
            f"the pooler of base {request.base} has never been trained (all its biases are zero), and "
            "methods that keep it frozen learn slowly or stay at the majority class; "
            f"{options.get(type(method), '')}use a copy of the base without the pooler's tensors, for which "
            "a new pooler is trained with the head"
        ),
        AdapterProbeWarning,
        stacklevel=2,
    )


def identity_of(request: TrainingRequest, fingerprints: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that determines the result of a request, as plain JSON, without names and paths.

    Args:
        fingerprints: fingerprints of the `TrainingInputs` of this request or another one on the same base and
            task.
    """
    task = request.task
    own = not (task.about.is_language_model or isinstance(request.method, PeftMethod))
    return {
        "code_schema": TRAINING_VERSION[request.settings.dtype] + own,
        **fingerprints,
        "method": request.method.to_json(),
        "settings": request.settings.to_json(),
        "task": {"kind": task.kind, "metric": task.metric, "label_names": list(task.label_names)},
    }


def build_model(request: TrainingRequest, base: AnyLoaded, device: torch.device) -> TrainingModel:
    """The base with the request's method on its device, with trainable parameters chosen."""
    check_precision(device, request.settings.dtype, option="--dtype")
    model = TrainingModel(_with_method(request, base)).to(device)
    dtype = getattr(torch, request.settings.dtype)
    norms = [list(module.parameters()) for module in model.base.modules() if is_norm(module)]
    kept = {p for own in norms if any(p.requires_grad for p in own) for p in own}  # of one precision each
    for parameter in model.base.parameters():
        if not parameter.requires_grad and parameter not in kept:  # trained parameters stay in float32
            parameter.data = parameter.data.to(dtype)
    trained = [name for name, parameter in model.base.named_parameters() if parameter.requires_grad]
    if request.settings.dtype != "float32" and any(n.endswith("attention.self.q_bias") for n in trained):
        raise ModelError(
            f"--dtype bfloat16 is not possible with {request.method.name} on a DeBERTa of the first version, "
            "whose attention fails in Transformers if its biases train in float32; leave it out"
        )
    if request.settings.checkpointing:
        model.save_memory()
    return model


def _with_method(request: TrainingRequest, base: AnyLoaded) -> Prepared:
    method, task, seed = request.method, request.task, request.settings.seed
    if isinstance(method, PeftMethod):
        from .peft_tuners import prepare_tuner  # whose import takes seconds

        return prepare_tuner(base, method, task, seed)
    return prepare_own(base, method, task.kind, seed)
