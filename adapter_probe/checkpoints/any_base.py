"""Load a base of any class that transformers has, in full or quantised, for PEFT to put its tuners into."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

from adapter_probe.data.requests_encoding import Start
from adapter_probe.errors import CheckpointError, must_be

from .base import initialise, refuse_not_finite, weights_sha256
from .base_config import AnyBase, naming_base
from .identity import BaseIdentity, config_settings
from .kinds import Head, head_of_class
from .quantised import method_of, quiet_quantisers, refuse_without_package

_MAPPINGS: dict[Head, Any] = {
    "features": modeling_auto.MODEL_MAPPING,
    "classification": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    "multilabel": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    "regression": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    "extractive": modeling_auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    "tokens": modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING,
    "seq2seq": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
}
Load = Callable[[AnyBase, type[PreTrainedModel], int | None, torch.dtype], "AnyLoaded"]
"""Loads a base, see `load_any_base`."""
_MOST_TOKENS = 1 << 20  # where neither model nor tokenizer has a limit


@dataclass(frozen=True)
class AnyLoaded:
    """A base in memory, whatever its class.

    Attributes:
        model: the model with its head, frozen, in evaluation mode.
        missing: names of the parameters that its files lack, drawn at random.
        identity: identity of the base.
        quantised: the method of its quantisation, None for a base in full or one that was dequantised.
        max_length: number of tokens that it can read.
        shared: whether its tensors are in use elsewhere, so that they must not change.
    """

    model: PreTrainedModel
    missing: frozenset[str]
    identity: BaseIdentity
    quantised: str | None
    max_length: int
    shared: bool = False


def head_of_base(config: PretrainedConfig) -> Head | None:
    """What a base computes, by the class that it was saved from; None where no class is named."""
    return head_of_class(_own_class(config), config.is_encoder_decoder)


def _own_class(config: PretrainedConfig) -> str:
    names = getattr(config, "architectures", None)
    return str(names[0]) if isinstance(names, list) and names else ""


def choose_class(
    name: str, config: PretrainedConfig, head: Head, modules: Iterable[str]
) -> type[PreTrainedModel]:
    """The class of transformers for a base and a head.

    A language model may be stored as a part of a model of texts and images. Its adapters were trained in one
    of the two classes, so the class is used that has the modules of the adapters.

    Args:
        name: the base, for the message.
        config: its configuration.
        head: what the model should compute.
        modules: names of modules with adapters, in the whole model.

    Raises:
        CheckpointError: transformers has no such class, or it does not read texts.
    """
    found = [_mapped(config, head)]
    if head in ("causal", "seq2seq") and head_of_base(config) == head:
        found.insert(0, getattr(transformers, _own_class(config), None))
        found.append(_mapped(config.get_text_config(), head))
    classes = [cls for cls in dict.fromkeys(found) if _takes(cls, config)]
    if not classes:
        raise CheckpointError(
            f"base {name}: transformers {transformers.__version__} has no class for {head} on a "
            f"{config.model_type} model"
        )
    wanted = set(modules)
    chosen = next((cls for cls in classes[:-1] if wanted <= modules_of(cls, config)), classes[-1])
    if len(classes) > 1 and not wanted <= modules_of(chosen, config):
        chosen = classes[0]  # whose missing modules are named when the adapters are loaded
    if chosen.main_input_name != "input_ids":
        raise CheckpointError(
            f"base {name}: a {chosen.__name__} reads {chosen.main_input_name}, and adapter-probe has data of "
            "texts only"
        )
    return chosen


def _takes(cls: Any, config: PretrainedConfig) -> bool:
    """Whether a class is a model for this configuration, or for its part for texts."""
    if not (isinstance(cls, type) and issubclass(cls, PreTrainedModel) and cls.config_class):
        return False
    return isinstance(config, cls.config_class) or isinstance(config.get_text_config(), cls.config_class)


def is_for(config: PretrainedConfig, head: Head, modules: set[str]) -> bool:
    """Whether transformers has a class for a head on models of this type, and it has these modules."""
    return (cls := _mapped(config, head)) is not None and modules <= modules_of(cls, config)


def _mapped(config: PretrainedConfig, head: Head) -> Any:
    mapping = _MAPPINGS[head]
    cls = mapping.get(type(config), None)
    return cls[0] if isinstance(cls, tuple) else cls


def modules_of(cls: type[PreTrainedModel], config: PretrainedConfig) -> set[str]:
    """The names of a class's modules, from a model without memory."""
    with torch.device("meta"), contextlib.suppress(Exception):  # another library's constructor
        return {name for name, _ in cls(config_for(cls, config)).named_modules()}
    return set()


def config_for(cls: type[PreTrainedModel], config: PretrainedConfig) -> PretrainedConfig:
    """A copy of a configuration, or of its part for texts, as a class takes it."""
    own = isinstance(config, cls.config_class)
    return copy.deepcopy(config if own else config.get_text_config())


def load_any_base(
    found: AnyBase,
    cls: type[PreTrainedModel],
    n_outputs: int | None,
    dtype: torch.dtype,
    dequantise: bool = False,
    seed: int = 0,
    weights: bool = True,
) -> AnyLoaded:
    """Read a base's weights; what it lacks is drawn as in `initialise`.

    Args:
        found: the base.
        cls: its class, see `choose_class`.
        n_outputs: number of logits of a head per text or token, None for the base's own.
        dtype: precision in memory; of a quantised base, of the parameters that are not quantised.
        dequantise: whether the weights of a quantised base are dequantised, by transformers' `dequantize`.
        seed: seed of what is drawn.
        weights: whether to read the weights; else the model is without memory, as if its base were stored in
            full, and its identity has no hash.

    Raises:
        CheckpointError: damaged files, a quantisation whose package is not installed or that cannot be
            dequantised.
    """
    method, config = method_of(found.fields), config_for(cls, found.config)
    if weights:
        refuse_without_package(found.name, found.fields)
    elif method is not None:
        del config.quantization_config
    if n_outputs is not None:
        config.num_labels = n_outputs
    config.return_dict = True  # the form of outputs only, which everything that runs the model relies on
    exact = dtype == torch.float32 or method is not None
    if not exact:
        config.dtype = None  # otherwise "auto" would follow the configuration, not the files
    with naming_base("weights", found.name), quiet_quantisers(), torch.random.fork_rng(devices=[]):
        model, report = cls.from_pretrained(
            found.name,
            config=config,
            revision=found.revision,
            dtype=dtype if exact else "auto",
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # a head for other labels; any other mismatch is refused later
            use_safetensors=True,  # never unpickle
            **({} if weights else {"device_map": "meta"}),
        )
    missing = frozenset(report["missing_keys"]) | {key for key, *_ in report["mismatched_keys"]}
    if not weights:
        if method is not None:  # whose tensors are packed under other names and in other shapes
            inside = f"{model.base_model_prefix}."
            missing = frozenset(name for name in missing if not name.startswith(inside))
        identity = _identify(found, model, missing, method, hashed=False)
        return AnyLoaded(model.requires_grad_(False).eval(), missing, identity, method, positions_of(model))
    _refuse_unread(found.name, method, model)
    if dequantise:
        with naming_base("quantised weights", found.name), quiet_quantisers():
            model, method = model.dequantize(), None
    initialise(model, missing, seed)
    refuse_not_finite(found.name, model)
    identity = _identify(found, model, missing, method)
    for parameter in model.parameters():  # no buffers: rotary frequencies stay in float32
        plain = type(parameter) is nn.Parameter and type(parameter.data) is Tensor
        if method is None or (plain and parameter.is_floating_point()):
            parameter.data = parameter.data.to(dtype)
    model.config.dtype = dtype
    model.requires_grad_(False)
    return AnyLoaded(model.eval(), missing, identity, method, positions_of(model))


def without_pooler(loaded: AnyLoaded) -> AnyLoaded:
    """A model without a head whose pooler the base lacks, so that embeddings are not made by it."""
    own = frozenset(name for name in loaded.missing if name.startswith("pooler."))
    if own:
        loaded.model.pooler = None
    return replace(loaded, missing=loaded.missing - own)


def _refuse_unread(name: str, method: str | None, model: nn.Module) -> None:
    """Refuse a base whose quantised weights transformers left aside: it fills HQQ's with random ones.

    Raises:
        CheckpointError: it does.
    """
    if any(getattr(module, "W_q", "absent") is None for module in model.modules()):
        raise CheckpointError(
            f"base {name} is quantised with {method}, whose weights transformers {transformers.__version__} "
            f"does not read; load it with the package {method} and ablate the model in memory, or give the "
            "unquantised model with --base, which is another model"
        )


def _identify(
    found: AnyBase, model: PreTrainedModel, missing: frozenset[str], method: str | None, hashed: bool = True
) -> BaseIdentity:
    config, embeddings = model.config.get_text_config(), model.get_input_embeddings()
    digest = ""
    if hashed and method is None:
        digest = weights_sha256(model, missing, whole=model.get_output_embeddings() is not None)
    elif hashed:
        digest = hash_stored(model, missing)
    return BaseIdentity(
        name=found.name,
        revision=found.revision,
        weights_sha256=digest,
        n_layers=int(getattr(config, "num_hidden_layers", 0) or 0),
        hidden_size=int(getattr(config, "hidden_size", 0) or embeddings.weight.shape[1]),
        vocab_size=int(embeddings.weight.shape[0]),
        config=config_settings(found.fields),
    )


def hash_stored(model: nn.Module, missing: frozenset[str], others: Iterable[tuple[str, Tensor]] = ()) -> str:
    """SHA-256 of a model's tensors as they are stored, those of `missing` left out, scales included.

    Args:
        model: the model.
        missing: names that are left out.
        others: tensors that are not stored, by name, that belong to it too.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted({**dict(others), **model.state_dict()}.items()):
        for part, values in _parts(name, tensor) if name not in missing else ():
            digest.update(f"{part} {values.dtype} {tuple(values.shape)}\n".encode())
            digest.update(values.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def _parts(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The plain tensors inside a tensor of torchao."""
    if not hasattr(tensor, "__tensor_flatten__") or type(tensor) in (Tensor, nn.Parameter):
        yield name, tensor
        return
    for inner in tensor.__tensor_flatten__()[0]:
        yield from _parts(f"{name}.{inner}", getattr(tensor, inner))


def positions_of(model: PreTrainedModel) -> int:
    """The number of tokens for which a model has positions."""
    config = model.config.get_text_config()
    limits = [getattr(config, "max_position_embeddings", None) or _MOST_TOKENS]
    for name, module in model.named_modules():  # where positions follow the padding token, as in RoBERTa
        if isinstance(module, nn.Embedding) and "position" in name and module.padding_idx is not None:
            limits.append(module.num_embeddings - module.padding_idx - 1)
    return min(int(limit) for limit in limits if math.isfinite(limit))


def start_of(model: Any) -> Start:
    """How an encoder-decoder's own code begins to write, see `encode_requests`."""
    shift = getattr(model, "prepare_decoder_input_ids_from_labels", None)  # which NLLB's class lacks

    def start(tokens: Sequence[int]) -> int:
        try:
            if shift is None:
                return int(model.config.decoder_start_token_id)
            return int(shift(torch.tensor([list(tokens)]))[0, 0])
        except (AttributeError, AssertionError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"a {type(model).__name__} needs decoder_start_token_id and pad_token_id in its config.json, "
                "which say how it begins to write"
            ) from error

    return start


def limit_length(positions: int, tokenizer_limit: float, name: str) -> int:
    """Maximum number of tokens per example.

    Raises:
        CheckpointError: there is no room for any.
    """
    limit = int(min(positions, tokenizer_limit, _MOST_TOKENS))
    if limit < 1:
        raise CheckpointError(must_be(f"base {name}: the limit of tokens", "at least 1", limit))
    return limit
