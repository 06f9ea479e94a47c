"""Load a base of any class that transformers has, in full or quantised, for PEFT to put its tuners into."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import transformers
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel

from adapter_probe.data.requests_encoding import Start
from adapter_probe.data.tasks import TaskSpec
from adapter_probe.errors import CheckpointError, must_be
from adapter_probe.replay.recording import held_elsewhere
from adapter_probe.replay.sharing import sharing

from .base_config import (
    AnyBase,
    method_of,
    naming_base,
    quiet_quantisers,
    refuse_quantisation,
)
from .files import folder_of_base, is_finite
from .identity import BaseIdentity, config_settings
from .model_class import config_for, without_weights
from .spreading import free_places, places_of, quantised_bytes

Load = Callable[[AnyBase, type[PreTrainedModel], int | None], "AnyLoaded"]
"""Loads a base in some precision, see `load_any_base`."""
_BUFFERS = ("position_ids", "inv_freq", "masked_bias")  # which older versions stored
_MOST_TOKENS = 1 << 20  # where neither model nor tokenizer has a limit


@dataclass(frozen=True)
class AnyLoaded:
    """A base in memory, whatever its class.

    Attributes:
        model: the model with its head, frozen, in evaluation mode.
        missing: names of the parameters that its files lack, drawn at random.
        quantised: the method of its quantisation, None for a base in full or one that was dequantised.
        max_length: number of tokens that it can read.
        shared: whether its tensors are in use elsewhere, so that they must not change.
        unread: names of tensors in its files that the class does not have.
    """

    model: PreTrainedModel
    missing: frozenset[str]
    identity: BaseIdentity
    quantised: str | None
    max_length: int
    shared: bool = False
    unread: tuple[str, ...] = ()


def load_any_base(
    found: AnyBase,
    cls: type[PreTrainedModel],
    n_outputs: int | None,
    dtype: torch.dtype = torch.float32,
    dequantise: bool = False,
    seed: int = 0,
    weights: bool = True,
    device: torch.device | None = None,
    spread: bool = False,
) -> AnyLoaded:
    """Read a base's weights; what it lacks is drawn as in `initialise`.

    Args:
        cls: its class, see `choose_class`.
        n_outputs: number of logits of a head per text or token, None for the base's own.
        dtype: precision in memory; of a quantised base, of the parameters that are not quantised.
        dequantise: whether the weights of a quantised base are dequantised, by transformers' `dequantize`.
        device: where a quantised base is read to; any other is read to the host.
        spread: whether it is spread over all devices like that one, unless it is dequantised.
        weights: whether to read the weights; else the model is without memory, as if its base were stored in
            full, and its identity has no hash.

    Raises:
        CheckpointError: damaged files, a quantisation whose package is not installed or that cannot be
            dequantised.
    """
    method = method_of(found.fields)
    refuse_quantisation(found.name, found.fields, weights)
    if dequantise and method is None:
        raise CheckpointError(
            f"--dequantise applies only to a quantised base; base {found.name} is stored in full"
        )
    places: str | dict[str, str] | None = None if weights else "meta"
    if weights and device is not None and method is not None:  # else on the one that Transformers chooses
        whole = {"": "cpu" if spread else str(device)}
        places = _places_of_quantised(found, cls, dtype, device) if spread and not dequantise else whole
    model, report = _read(found, cls, n_outputs, dtype, places)
    missing = frozenset(report["missing_keys"]) | {key for key, *_ in report["mismatched_keys"]}
    if weights:
        _refuse_unread(found.name, method, model)
        if dequantise:
            with naming_base("quantised weights", found.name), quiet_quantisers():
                model, method = model.dequantize().cpu(), None
        initialise(model, missing, seed)
        _refuse_infinite(found.name, model)
    elif method is not None:  # whose tensors are packed under other names and in other shapes
        missing = frozenset(n for n in missing if not n.startswith(f"{model.base_model_prefix}."))
    identity = _identify(found, model, missing, method, weights)
    if weights:
        _cast(model, method, dtype)
    unread = tuple(sorted(name for name in report["unexpected_keys"] if not name.endswith(_BUFFERS)))
    model.requires_grad_(False).eval()
    return AnyLoaded(model, missing, identity, method, positions_of(model), unread=unread)


def _read(
    found: AnyBase, cls: type[PreTrainedModel], n_outputs: int | None, dtype: torch.dtype, places: Any
) -> tuple[PreTrainedModel, Mapping[str, Any]]:
    """A model by Transformers, and its report of the names that the files lack and have besides."""
    config, method = config_for(cls, found.config), method_of(found.fields)
    if places == "meta" and method is not None:
        del config.quantization_config
    if n_outputs is not None:
        config.num_labels = n_outputs
    # The form of outputs only, which everything that runs the model relies on.
    config.return_dict, config.output_attentions = True, False
    config.chunk_size_feed_forward = 0  # memory only, and some numbers of tokens do not divide by it
    exact = dtype == torch.float32 or method is not None
    if not exact:
        config.dtype = None  # otherwise "auto" would follow the configuration, not the files
    read = partial(
        cls.from_pretrained,
        found.name,
        config=config,
        revision=found.revision,
        dtype=dtype if exact else "auto",
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # a head for other labels; any other mismatch is refused later
        use_safetensors=True,  # never unpickle
        **({"device_map": places} if places else {}),
    )
    with naming_base("weights", found.name), quiet_quantisers(), torch.random.fork_rng(devices=[]):
        model, report = read()
        if names := other_names(found, report["missing_keys"]):  # of a part of a larger model
            model, report = read(key_mapping=names)
    return model, report


def _refuse_infinite(name: str, model: nn.Module) -> None:
    for own, parameter in model.named_parameters():
        plain = type(parameter.data) is Tensor and parameter.is_floating_point()  # no quantiser's own
        if plain and not is_finite(parameter):
            raise CheckpointError(f"base {name}: {own} contains NaN or infinite values")


def _cast(model: PreTrainedModel, method: str | None, dtype: torch.dtype) -> None:
    """Give a model its precision in memory, except for what a quantiser holds."""
    for parameter in model.parameters():  # no buffers: rotary frequencies stay in float32
        plain = type(parameter) is nn.Parameter and type(parameter.data) is Tensor
        if method is None or (plain and parameter.is_floating_point()):
            parameter.data = parameter.data.to(dtype)
    model.config.dtype = dtype


def _places_of_quantised(
    found: AnyBase, cls: type[PreTrainedModel], dtype: torch.dtype, device: torch.device
) -> dict[str, str]:
    """Where the parts of a quantised base go, see `places_of`: on accelerators alone."""
    config = config_for(cls, found.config)
    del config.quantization_config
    with torch.device("meta"):
        model = cls(config)
    free = {place: room for place, room in free_places(device).items() if place not in ("cpu", "disk")}
    size = quantised_bytes(found.fields["quantization_config"], dtype)
    return places_of(model, free or free_places(device), size)


def other_names(found: AnyBase, missing: Collection[str]) -> dict[str, str]:
    """How the names of a base's files begin where a class has another beginning, as ``key_mapping``.

    So it is where the class is that of a part, such as the language model of a model of texts and images.
    Empty if the class finds its layers.
    """
    layers = [name for name in missing if any(part.isdecimal() for part in name.split("."))]
    folder = folder_of_base(found.name, found.revision) if layers else None
    stored: set[str] = set()
    for path in sorted(folder.glob("*.safetensors")) if folder is not None else ():
        with safe_open(path, "pt") as file:
            stored |= set(file.keys())
    parts = min(layers, default="").split(".")
    stem = "".join(f"{part}." for part in itertools.takewhile(lambda part: not part.isdecimal(), parts))
    if any(name.startswith(stem) for name in stored):  # some layers are there, others are lost
        return {}
    for n in range(stem.count(".") + 1):  # what comes before the number of a layer
        begin, end = "".join(f"{part}." for part in parts[:n]), ".".join(parts[n:])
        others = {name.removesuffix(end) for name in stored if name == end or name.endswith(f".{end}")}
        own = [name.removeprefix(begin) for name in layers if name.startswith(begin)]
        for other in sorted(others - {begin}):
            if all(f"{other}{name}" in stored for name in own):
                return {f"^{re.escape(other)}": begin}
    return {}


def _refuse_unread(name: str, method: str | None, model: nn.Module) -> None:
    """Refuse a base whose quantised weights transformers left aside: it fills HQQ's with random ones."""
    if any(getattr(module, "W_q", "absent") is None for module in model.modules()):
        raise CheckpointError(
            f"base {name} is quantised with {method}, whose weights transformers {transformers.__version__} "
            f"does not read; load it with the package {method} and ablate the model in memory, or give the "
            "unquantised model with --base, which is another model"
        )


def _identify(
    found: AnyBase, model: PreTrainedModel, missing: frozenset[str], method: str | None, hashed: bool
) -> BaseIdentity:
    config, embeddings = model.config.get_text_config(), model.get_input_embeddings()
    digest, body = "", ""
    if hashed and method is None:
        digest, body = _hash_weights(model, missing)
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
        without_pooler_sha256=body,
    )


def hash_stored(model: nn.Module, missing: frozenset[str], others: Iterable[tuple[str, Tensor]] = ()) -> str:
    """SHA-256 of a model's tensors as they are stored, those of `missing` left out, scales included.

    Args:
        others: tensors that are not stored, by name, that belong to it too.
    """
    digest, elsewhere = hashlib.sha256(), held_elsewhere(model)
    for name, tensor in sorted({**dict(others), **model.state_dict()}.items()):
        tensor = elsewhere[name]() if name in elsewhere else tensor
        if tensor.is_meta:
            raise CheckpointError(
                f"{name} is on the device meta, without values, like what PEFT adds to offloaded layers; "
                "spread the model once it has its adapters, or give their folder with --device-map auto"
            )
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
    """Maximum number of tokens per example."""
    limit = int(min(positions, tokenizer_limit, _MOST_TOKENS))
    if limit < 1:
        raise CheckpointError(must_be(f"base {name}: the limit of tokens", "at least 1", limit))
    return limit


def n_outputs(task: TaskSpec) -> int | None:
    """Number of logits: one per label or tag, one for regression, two for answers; None for causal models."""
    return len(task.label_names) if task.about.has_classes else task.about.n_outputs


def has_untrained_pooler(model: PreTrainedModel, missing: Collection[str]) -> bool:
    """Whether the base has a pooler as it was initialised: all biases are zero, which one step changes."""
    prefix = f"{model.base_model_prefix}.pooler."
    own = [p for name, p in model.named_parameters() if name.startswith(prefix) and name not in missing]
    biases = [parameter for parameter in own if parameter.dim() == 1]
    return bool(biases) and not any(bias.any() for bias in biases)


def without_pooler(loaded: AnyLoaded) -> AnyLoaded:
    """A model without a head whose pooler the base lacks, so that embeddings are not made by it."""
    own = frozenset(name for name in loaded.missing if name.startswith("pooler."))
    if own:
        loaded.model.pooler = None
    return replace(loaded, missing=loaded.missing - own)


def refuse_lost(loaded: AnyLoaded, writes: bool) -> None:
    """Refuse a base that lacks more than a head and a pooler, or, of one that writes, anything."""
    prefix = "" if writes else f"{loaded.model.base_model_prefix}."
    lost = sorted(n for n in loaded.missing if n.startswith(prefix) and not n.startswith(f"{prefix}pooler."))
    if lost:
        raise CheckpointError(
            f"base {loaded.identity.name} lacks {len(lost)} of the {'encoder' if prefix else 'model'}'s "
            f"tensors or has them in another shape, the first being {lost[0]}; it is damaged or of another "
            "family"
        )


@torch.no_grad()
def initialise(model: PreTrainedModel, missing: frozenset[str], seed: int) -> None:
    """Draw the named parameters from N(0, initializer_range^2), and set biases to zero.

    Torch's global generators are not used, and the values are the same on every device.
    """
    generator = torch.Generator().manual_seed(seed)
    std = getattr(model.config, "initializer_range", 0.02)
    for name, parameter in sorted(model.named_parameters()):
        if name in missing:
            if parameter.dim() > 1:
                drawn = torch.empty(parameter.shape, dtype=parameter.dtype)
                parameter.copy_(drawn.normal_(std=std, generator=generator))
            else:
                nn.init.zeros_(parameter)


def _hash_weights(model: PreTrainedModel, missing: Collection[str]) -> tuple[str, str]:
    """SHA-256 of what a base stores, in float32, under its names inside it, without what it lacks.

    Returns:
        the hash, and that without the pooler where that comes last, or empty.
    """
    weights, body = hashlib.sha256(), ""
    prefix = "" if model.base_model is model else f"{model.base_model_prefix}."
    hashed = _stored(model.base_model)
    if model.get_output_embeddings() is not None:  # the head belongs to a language model
        inside = {id(tensor) for tensor in hashed.values()}
        hashed |= {name: t for name, t in _stored(model).items() if id(t) not in inside}
    for tensor_name, parameter in sorted(hashed.items()):
        if f"{prefix}{tensor_name}" not in missing:
            pooled = tensor_name.startswith("pooler.")
            body = body or weights.hexdigest() if pooled else ""
            weights.update(f"{tensor_name} {tuple(parameter.shape)}\n".encode())
            weights.update(parameter.detach().float().contiguous().numpy())
    return weights.hexdigest(), body


def _stored(model: nn.Module) -> dict[str, Tensor]:
    """The parameters of a model and the buffers that its files hold, each once, by name."""
    kept = model.state_dict().keys()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in kept}
    return {**dict(model.named_parameters()), **buffers}


load_without_weights = partial(load_any_base, weights=False)
"""A base without its weights, for what can be told from names and shapes."""


class SharedBase:
    """A base that is read once and used by any number of checkpoints.

    Every checkpoint receives a model with separate modules whose parameters are views of the single copy in
    memory. Parameters are copied before they are changed, see `AnyLoaded.shared`, so the base's weights stay
    available for the next checkpoint.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._loaded: dict[tuple[object, ...], AnyLoaded] = {}

    def load(
        self,
        found: AnyBase,
        cls: type[PreTrainedModel],
        n_outputs: int | None,
        dtype: torch.dtype = torch.float32,
    ) -> AnyLoaded:
        """Like `load_any_base`, but uses the weights in memory if there are any, also for another head.

        Raises:
            CheckpointError: it is another base than the one in memory.
        """
        key = (found.name, found.revision, cls, n_outputs is None)  # which is the base's own head
        if key not in self._loaded:
            loaded = load_any_base(found, cls, n_outputs, dtype, device=self._device)
            first = next(iter(self._loaded.values()), loaded).identity
            if loaded.identity.weights_sha256 != first.weights_sha256:
                raise CheckpointError(
                    f"the weights of base {found.name} differ from those of the base in memory, "
                    f"{first.name}; open the checkpoint separately"
                )
            if loaded.quantised is None:
                loaded.model.to(self._device)
            self._loaded[key] = loaded
        kept = self._loaded[key]
        model, missing = sharing(kept.model), kept.missing
        if n_outputs is not None and n_outputs != model.config.num_labels:
            resized = _resize_head(model, n_outputs)
            initialise(model, resized, seed=0)
            missing |= resized
        return replace(kept, model=model.requires_grad_(False), missing=missing, shared=True)


def _resize_head(model: PreTrainedModel, n_outputs: int) -> frozenset[str]:
    """Change the number of outputs of the head; returns the names of new, uninitialised parameters."""
    model.config.num_labels = n_outputs
    wanted = without_weights(type(model), model.config)
    if hasattr(model, "num_labels"):
        model.num_labels = n_outputs
    parameters = dict(model.named_parameters())
    device, dtype = model.device, model.dtype
    resized = {name for name, p in wanted.named_parameters() if p.shape != parameters[name].shape}
    for owner in {name.rpartition(".")[0] for name in resized}:
        model.set_submodule(owner, wanted.get_submodule(owner).to_empty(device=device).to(dtype))
    return frozenset(resized)
