"""The rows that every layer computes in a step of `generate`, see `decoding`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adapter_probe.errors import ModelError

from .recording import changed
from .stacks import Layer, sites_of

Path = tuple[object, ...]


class Unshared(ModelError):
    """The rows of some layer cannot be told apart, or are not a function of the pairs that they serve."""


class Step:
    """The rows of every layer in the current step of `generate`.

    Level 0 is before any layer, level k + 1 after the call k. A pair is a variant and a prompt.

    Args:
        decoder: the `Decoder`, which is in a file that imports this one.
        masks: bool ``[variants, columns]``.
        n_prompts: number of prompts.
    """

    def __init__(self, decoder: Any, masks: np.ndarray, n_prompts: int):
        self._decoder, self._masks, self._n = decoder, masks, n_prompts
        self.variant = np.arange(len(masks)).repeat(n_prompts)
        self.alive = np.ones(len(self.variant), dtype=bool)
        self.finite = np.ones(len(self.variant), dtype=bool)
        if decoder.shared == "states":
            columns = [sites_of(decoder.layers, call).stop for call in range(len(decoder.layers))]
            self._kinds = [_places(masks[:, :end]) for end in (0, *columns)]
        else:
            self._kinds = [np.arange(len(masks))] * (len(decoder.layers) + 1)
        self._text = np.tile(np.arange(n_prompts), len(masks))  # equal for equal texts so far
        self._begun = False
        self._base = self._top = 0  # the levels of the model's own code before and after its layers
        self._levels: dict[int, Level] = {}
        self._cached: dict[int, np.ndarray] = {}  # by level, the row of each pair in the cache
        numbers = {layer.module: k for k, layer in enumerate(decoder.layers)}
        self._inside: dict[nn.Module, list[int]] = {
            part: [numbers[m] for m in part.modules() if m in numbers] for part in self._parts()
        }

    def _parts(self) -> list[nn.Module]:
        model = self._decoder.model
        return [model, model.get_encoder()] if model.config.is_encoder_decoder else [model]

    @contextmanager
    def instead(self) -> Iterator[None]:
        """Inside, the model computes rows that are shared."""
        decoder = self._decoder
        forwards: dict[nn.Module, Callable[..., Any]] = {
            layer.module: functools.partial(self._layer, k, layer.module.forward)
            for k, layer in enumerate(decoder.layers)
        }
        for part in self._parts():
            whole = part.forward
            call = self._model if part is decoder.model else self._encoder
            forwards[part] = functools.wraps(whole)(functools.partial(call, part, whole))
        head = decoder.model.get_output_embeddings()
        if type(head) is nn.Linear and "forward" not in vars(head):
            # Of the last positions of longer rows, a linear map would be a product for each row alone.
            own = head.forward
            forwards[head] = lambda x: own(x.contiguous())
        with changed(forwards):
            yield

    def _at(self, level: int) -> Level:
        if level not in self._levels:
            kinds = self._kinds[level]
            keys = self._text * len(self._masks) + kinds[self.variant]
            pairs = np.flatnonzero(self.alive)
            _, first, row = np.unique(keys[pairs], return_index=True, return_inverse=True)
            rows = np.full(len(keys), -1)
            rows[pairs] = row.reshape(-1)
            self._levels[level] = Level(pairs[first], rows)
        return self._levels[level]

    def _begin(self, part: nn.Module) -> None:
        calls = self._inside[part]
        if part is self._decoder.model and len(self._inside) > 1:
            calls = [k for k in calls if k not in self._inside[self._parts()[1]]]
        self._levels.clear()
        before = [k + 1 for k in range(len(self._decoder.layers)) if not calls or k < calls[0]]
        self._base = max(before, default=0) if part is self._decoder.model else 0
        self._top = max((k + 1 for k in calls), default=self._base)

    def _encoder(self, part: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._begin(part)
        n, rows = len(self.variant), self._at(self._base).first
        args, kwargs = _taken((args, kwargs), n, rows)
        out = forward(*args, **kwargs)
        return _taken(out, len(self._at(self._top).first), self._at(self._top).row)

    def _model(self, part: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        ids = kwargs["decoder_input_ids" if len(self._inside) > 1 else "input_ids"]
        if self._begun:
            last = ids[:, -1].cpu().numpy()
            self._text = _places(np.column_stack([self._text, last]))
        self._begin(part)
        cache = next((x for x in kwargs.values() if _layers_of_cache(x)), None)
        if self._begun:
            if cache is None:
                raise Unshared("the model keeps no cache whose rows can be taken")
            self._reorder(cache)
        self._begun = True
        kwargs = _taken(kwargs, len(self.variant), self._at(self._base).first)
        out = forward(*args, **kwargs)
        self._cached = {level: own.row for level, own in self._levels.items()}
        top = self._at(self._top)
        logits = out["logits"][:, -1:]
        if len(logits) != len(top.first):
            raise Unshared("the model's output has other rows than its last layer")
        bad = ~logits.amax(dim=-1).isfinite().flatten().cpu().numpy()
        if bad.any():
            self.finite[(top.row >= 0) & bad[top.row]] = False
        index = torch.from_numpy(np.maximum(top.row, 0)).to(logits.device)
        out["logits"] = logits.index_select(0, index)
        return out

    def _layer(self, call: int, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        target = self._at(call + 1)
        counts = {len(self._at(level).first): level for level in range(self._base, call + 2)}

        def at_target(path: Path, x: Tensor) -> Tensor:
            found = self._decoder.axis_of(call, path, x)
            if found is None:
                return x
            axis, each = found
            n = x.shape[axis] // each
            if n == len(target.first):  # levels only divide rows, and keep their order
                return x
            if n not in counts:
                raise Unshared(f"layer {call} is given {n} rows, which no layer before it has")
            index = torch.from_numpy(self._at(counts[n]).row[target.first]).to(x.device)
            if each == 1:
                return x.index_select(axis, index)
            return x.unflatten(axis, (n, each)).index_select(axis, index).flatten(axis, axis + 1)

        args, kwargs = mapped((args, kwargs), at_target)
        on = self._masks[self.variant[target.first], sites_of(self._decoder.layers, call)]
        return self._decoder.called(call, on, forward, args, kwargs)

    def _reorder(self, cache: Any) -> None:
        """Let every layer's part of the cache have the rows of this step."""
        layers = self._decoder.layers
        level_of = {_number_in_cache(layers[k]): k + 1 for k in range(self._base, len(layers))}
        for number, own in _layers_of_cache(cache):
            level = level_of.get(number, self._base)
            new, old = self._at(level), self._cached[level]
            index = old[new.first]
            if len(index) <= old.max() or (index != np.arange(len(index))).any():
                own.reorder_cache(torch.from_numpy(index))


@dataclass(frozen=True)
class Level:
    """Rows before or after a layer.

    Attributes:
        first: int64 ``[rows]``, a pair that each row serves.
        row: int64 ``[pairs]``, the row that serves each pair; -1 of a finished text.
    """

    first: np.ndarray
    row: np.ndarray


def mapped(x: Any, change: Callable[[Path, Tensor], Any], path: Path = ()) -> Any:
    """Arguments with their tensors changed, and everything else, caches among them, as it is."""
    if isinstance(x, Tensor):
        return change(path, x)
    if type(x) in (tuple, list):
        return type(x)(mapped(one, change, (*path, n)) for n, one in enumerate(x))
    if type(x) is dict:
        return {key: mapped(one, change, (*path, key)) for key, one in x.items()}
    return x


def _taken(x: Any, n: int, rows: np.ndarray) -> Any:
    """What belongs to some of `n` rows, of arguments or results of a whole model."""
    if hasattr(x, "to_tuple"):  # an output of transformers
        return type(x)(**{key: _taken(one, n, rows) for key, one in x.items()})

    def change(_: Path, x: Tensor) -> Tensor:
        axis = next((i for i in (0, 1) if x.dim() > i + 1 and x.shape[i] == n), None)
        return x if axis is None else x.index_select(axis, torch.from_numpy(rows).to(x.device))

    if type(x) is dict:
        return {key: _taken(one, n, rows) for key, one in x.items()}
    return mapped(x, change)


def _layers_of_cache(cache: Any) -> list[tuple[int, Any]]:
    """The parts of a cache with the numbers of their layers; those of an encoder and a decoder have two."""
    both = [getattr(cache, name, None) for name in ("self_attention_cache", "cross_attention_cache")]
    found = [one for one in both if one is not None] or [cache]
    layers = [getattr(one, "layers", None) for one in found]
    if not all(isinstance(own, list) for own in layers):
        return []
    return [(n, one) for own in layers for n, one in enumerate(own or ()) if hasattr(one, "reorder_cache")]


def _number_in_cache(layer: Layer) -> int:
    """The number of a layer's part of the cache: the one that its attention knows, or that of its name."""
    numbers = (getattr(module, "layer_idx", None) for module in layer.module.modules())
    return next((n for n in numbers if isinstance(n, int)), int(layer.name.rpartition(".")[2]))


def _places(keys: np.ndarray) -> np.ndarray:
    """The place of each row among the distinct ones in ascending order."""
    if not keys.shape[1]:
        return np.zeros(len(keys), dtype=np.int64)
    return np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
