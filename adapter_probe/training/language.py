"""Language models in the training loop: which parameters a method trains, the loss, and the score."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adapter_probe import metrics
from adapter_probe.checkpoints.any_base import AnyLoaded, choose_class, load_any_base
from adapter_probe.checkpoints.base_config import find_any_base
from adapter_probe.checkpoints.quantised import method_of
from adapter_probe.data.encoding import Encoded
from adapter_probe.data.examples import Examples
from adapter_probe.data.packing import PackedBatch, cut_by_tokens, pack
from adapter_probe.data.requests import Requests
from adapter_probe.data.requests_encoding import EncodedRequests, count_texts
from adapter_probe.data.training_texts import texts_of
from adapter_probe.errors import CheckpointError, ModelError
from adapter_probe.models.evaluation import Trainable
from adapter_probe.models.methods import (
    Adapters,
    HeadOnly,
    Method,
    ParameterRole,
    TfidfLinear,
    check_depth,
)
from adapter_probe.predictions import predictions_from_likelihoods

from .features import FrozenFeatures
from .padded import PaddedModel

_TOKENS = 1024  # of a batch that is scored: the logits of all of them may be needed


def load_language_base(name: str, revision: str | None) -> AnyLoaded:
    """A causal language model of any family that Transformers has.

    Raises:
        CheckpointError: there is none, or it is quantised.
    """
    found = find_any_base(name, revision)
    if method := method_of(found.fields):
        raise CheckpointError(f"base {name} is quantised with {method}; give the model in full to train on")
    return load_any_base(found, choose_class(found.name, found.config, "causal", ()), None, torch.float32)


class WholeModel(PaddedModel):
    """A language model of which parameters of its own train, as a baseline.

    Args:
        loaded: the base, which is changed.
        method: full fine-tuning, top layers, LayerNorms or biases.

    Raises:
        ModelError: the method is none for language models, or finds nothing to train.
    """

    def __init__(self, loaded: AnyLoaded, method: Method):
        super().__init__(loaded.model, "causal", loaded.identity.n_layers, loaded.model)
        refuse_for_language(method)
        check_depth(method, self.n_layers)
        for role, layer, name, parameter in self._parameters_with_layers():
            parameter.requires_grad = method.trains(role, layer, self.n_layers, name.endswith("bias"))
        if not any(parameter.requires_grad for parameter in self.base.parameters()):
            raise ModelError(
                f"base {loaded.identity.name} has nothing that {method.name} trains; give another method"
            )

    def named_roles(self) -> Iterator[tuple[ParameterRole, str, nn.Parameter]]:
        """Every parameter once, as (role, name, parameter)."""
        for role, _, name, parameter in self._parameters_with_layers():
            yield role, name, parameter

    def _parameters_with_layers(self) -> Iterator[tuple[ParameterRole, int, str, nn.Parameter]]:
        """Every parameter with its layer: -1 in the embeddings, the number of layers in what follows them."""
        stack = _stack_of(self.base, self.n_layers)
        norms = {f"{n}." for n, module in self.base.named_modules() if is_norm(module)}
        embedding = {id(p) for p in self.base.get_input_embeddings().parameters()}
        passed = False
        for name, parameter in self.base.named_parameters():
            inside = name.startswith(f"{stack}.")
            passed = passed or inside
            layer = int(name.removeprefix(f"{stack}.").partition(".")[0]) if inside else self.n_layers
            if not inside and (id(parameter) in embedding or not passed):
                layer = -1
            role: ParameterRole = "layernorms" if any(map(name.startswith, norms)) else "base"
            yield role, layer, name, parameter


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a LayerNorm or one of its kind."""
    return isinstance(module, nn.LayerNorm) or type(module).__name__.endswith(("RMSNorm", "LayerNorm"))


def _stack_of(model: nn.Module, n_layers: int) -> str:
    """The name of the list of a model's layers."""
    found = [n for n, m in model.named_modules() if isinstance(m, nn.ModuleList) and len(m) == n_layers]
    if not found:
        raise ModelError(
            f"a {type(model).__name__} has no list of its {n_layers} layers; give a method of PEFT"
        )
    return min(found, key=lambda name: name.count("."))


def refuse_for_language(method: Method) -> None:
    """Refuse methods that need a head or an encoder.

    Raises:
        ModelError: it is one.
    """
    if isinstance(method, Adapters | HeadOnly | TfidfLinear):
        raise ModelError(
            f"the method {method.name} is for classifiers; a language model trains with a method of PEFT, "
            "such as lora:r=8, or with top_layers, layernorm_only, bitfit or full"
        )


class LanguageObjective:
    """The mean negative log-likelihood of the tokens that are trained on; scores as `ablate` has them.

    Args:
        train: rows and sequences to train on.
        validation: rows and their continuations, which are scored.
        metric: metric of the validation score.
    """

    def __init__(self, train: Examples, validation: Examples, metric: str):
        assert isinstance(train.encoded, Encoded), "what is trained on are sequences"
        assert isinstance(validation.encoded, EncodedRequests), "what is scored are continuations"
        assert isinstance(validation.rows, Requests)
        self.train, self._rows, self._requests = train.encoded, validation.rows, validation.encoded
        self.validation, self._example, self._number = texts_of(validation.encoded)
        self._labels, self._metric = validation.labels, metric
        self.sign = metrics.sign_of(metric)

    def weight(self, indices: np.ndarray) -> float:
        """See `Objective.weight`; the number of tokens that are trained on."""
        assert self.train.scored is not None
        return float(sum(len(self.train.scored[i]) for i in indices))

    def loss(self, outputs: Tensor, batch: PackedBatch) -> Tensor:
        """See `Objective.loss`."""
        return F.cross_entropy(outputs, _targets(self.train, batch))

    def score(self, model: Trainable, features: FrozenFeatures) -> float:
        """See `Objective.score`."""
        sums, right = self._likelihoods(model)
        counts = count_texts(self._rows, self._requests)
        sizes = metrics.continuation_sizes(self._metric, counts)
        if self._metric == "greedy_accuracy":
            whole = (right == self._requests.n_tokens)[:, 0] & np.isfinite(sums[:, 0])
            return float(whole.mean())
        if self._metric == "token_accuracy":
            predictions = np.where(np.isfinite(sums[:, 0]), right[:, 0], np.nan)
        else:
            predictions = predictions_from_likelihoods(self._metric, sums, sizes)
        labels = sizes[:, 0] if self._metric in metrics.RATIOS else self._labels
        return float(metrics.score(self._metric, predictions, labels))

    def _likelihoods(self, model: Trainable) -> tuple[np.ndarray, np.ndarray]:
        """Summed log-likelihoods ``[examples, continuations]``, and how many tokens are the likeliest."""
        model.eval()
        encoded = self.validation
        shape = (len(self._rows), self._requests.n_continuations)
        sums, right = np.zeros(shape), np.zeros(shape, dtype=np.int64)
        order = np.argsort(encoded.lengths, kind="stable")
        with torch.inference_mode():
            for run in cut_by_tokens(encoded.lengths, order, _TOKENS):
                batch = pack(encoded, run).to(model.device)
                logits, targets = model(batch).float(), _targets(encoded, batch)
                chosen = logits.gather(1, targets[:, None])[:, 0]
                likely = (chosen - logits.logsumexp(dim=-1)).double().cpu().numpy()
                best = (chosen >= logits.amax(dim=-1)).cpu().numpy()
                assert encoded.scored is not None
                own = np.repeat(batch.index, [len(encoded.scored[i]) for i in batch.index])
                np.add.at(sums, (self._example[own], self._number[own]), likely)
                np.add.at(right, (self._example[own], self._number[own]), best)
        return sums.astype(np.float32), right


def _targets(encoded: Encoded, batch: PackedBatch) -> Tensor:
    """The tokens that are scored, int64 ``[read]``, in packed order."""
    assert encoded.scored is not None
    found = np.concatenate([encoded.input_ids[i][encoded.scored[i]] for i in batch.index])
    return torch.from_numpy(found).to(batch.input_ids.device)
