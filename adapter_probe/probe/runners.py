"""A model on the examples of a request: batches in, outputs out; see `adapter_probe.replay`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from copy import copy
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from adapter_probe.data.answers import decode_windows
from adapter_probe.data.batches import EncodedWritten
from adapter_probe.data.encoding import Encoded
from adapter_probe.data.prompts import EncodedPrompts
from adapter_probe.data.requests_encoding import EncodedRequests
from adapter_probe.device import available_memory
from adapter_probe.errors import ModelError
from adapter_probe.models.functional import (
    PackedMap,
    activated_in_place,
    attend,
    can_pack_weight,
    unchanged,
)
from adapter_probe.replay.attention import attending
from adapter_probe.replay.recording import device_of, is_moved
from adapter_probe.replay.replay import Replay, logits
from adapter_probe.replay.sharing import can_share, cast_copy
from adapter_probe.replay.stacks import in_copy
from adapter_probe.replay.switches import Switches
from adapter_probe.replay.tensors import split
from adapter_probe.replay.two_weights import TwoWeights, bytes_of_finished, finish_maps

from .lanes import return_free_memory
from .layouts import Layout, choose_layout, encoding_once
from .likelihoods import WrittenScores, summed_by_continuation
from .outputs import Arrays
from .rows import Scorer, rows_of
from .switchable_model import example_of, few_lengths, ignore_padding, inputs_of, place_of
from .written import WritingRunner, padded, prepared_runner

if TYPE_CHECKING:
    from .request import AblationRequest

_PASSES_BETWEEN_RETURNS = 64
_TOKENS_AT_ONCE = 4096  # of a model without variants
# Of pairs in one batch: a pass with few rows takes about as long as one with this many more.
_MOST_PADDING = 128
_SHARE_OF_FREE = 0.5  # of the free memory, for finished weights


class ModelRunner:
    """A model of one lane, prepared on the shortest examples of a request.

    Args:
        layout: of a language model's rows, and whether its output embedding comes last; None for others.
    """

    def __init__(self, request: AblationRequest, replay: Replay, layout: tuple[Layout, bool] | None):
        self._request, self._replay, self._layout = request, replay, layout
        self._device, self._dtype = place_of(replay.model)
        self._passes = 0
        self._width = request.model.inner_size

    note = ""  # what a user should know of how the variants are computed

    def on(self, request: AblationRequest) -> ModelRunner:
        """The same on other examples of the same kind."""
        other = copy(self)
        other._request = request
        return other

    def twin(self) -> ModelRunner:
        """The same on a copy that shares all weights."""
        return ModelRunner(self._request, self._replay.twin(), self._layout)

    def outputs(
        self, items: np.ndarray, masks: np.ndarray, tokens_per_pass: int, each_pass: Callable[[], None]
    ) -> Arrays:
        """The outputs of every variant for one batch of items, in the order given.

        Args:
            items: int ``[items]``.
            masks: bool ``[variants, sites]``.
            tokens_per_pass: maximum number of rows that pass through a layer together.
            each_pass: called before each pass; what it raises stops the runner.
        """
        encoded, step = self._request.encoded, self._step(tokens_per_pass, each_pass)
        if encoded.in_trees:
            with self._faster():
                return self._scores(encoded, items, masks, tokens_per_pass, step)
        found: dict[int, Arrays] = {}
        groups = list(alike(encoded.lengths, items))
        for group, out in zip(groups, self._of_lengths(groups, masks, tokens_per_pass, step)):
            arrays = self._read(group, out)
            found |= {item: {k: v[:, i] for k, v in arrays.items()} for i, item in enumerate(group.tolist())}
        names = found[int(items[0])]
        return {name: np.stack([found[item][name] for item in items.tolist()], axis=1) for name in names}

    @property
    def packs(self) -> bool:
        """Whether texts of several lengths share a pass."""
        return self._replay.packs

    def _of_lengths(
        self, groups: Sequence[np.ndarray], masks: np.ndarray, tokens_per_pass: int, step: Callable[[], None]
    ) -> Iterator[Tensor]:
        """The outputs of the items of each length."""
        model, encoded = self._replay.model, self._request.encoded
        inputs = [inputs_of(model, encoded, group, self._device) for group in groups]
        read = reader(self._request, groups[0])
        if self.packs:
            with suppress(ModelError):  # such as longer texts, of which a layer sees a window
                yield from self._replay.outputs_of_lengths(
                    inputs, masks, rows=tokens_per_pass, read=read, each_pass=step
                )
                return
        with self._faster():
            for group, own in zip(groups, inputs):
                read = reader(self._request, group)
                yield self._replay.outputs(own, masks, rows=tokens_per_pass, read=read, each_pass=step)

    def pairs(
        self, items: np.ndarray, masks: np.ndarray, tokens_per_pass: int, each_pass: Callable[[], None]
    ) -> np.ndarray:
        """Logits of (item, variant) pairs, float32 ``[pairs, labels]``; arguments as in `outputs`."""
        encoded, step = self._request.encoded, self._step(tokens_per_pass, each_pass)
        assert isinstance(encoded, Encoded), "only classes have pairs"
        out = np.empty((len(items), self._replay.model.config.num_labels), np.float32)
        grouped = nearby if self._replay.pads else alike
        for group in grouped(encoded.lengths, items, tokens_per_pass):
            places = np.flatnonzero(np.isin(items, group))
            inputs = inputs_of(self._replay.model, encoded, group, self._device)
            with self._faster():
                found = self._replay.outputs_of_pairs(
                    inputs,
                    np.searchsorted(group, items[places]),
                    masks[places],
                    rows=tokens_per_pass,
                    each_pass=step,
                )
            out[places] = found[:, 0].float().cpu().numpy()
        return out

    def _scores(
        self,
        encoded: EncodedRequests,
        items: np.ndarray,
        masks: np.ndarray,
        tokens_per_pass: int,
        step: Callable[[], None],
    ) -> Arrays:
        """Sums of log-likelihoods; see `summed_by_continuation`."""
        assert self._layout is not None, "a language model has a layout"
        layout, is_last = self._layout
        summed: Arrays = {}
        for rows in rows_of(encoded, items, layout, self._dtype, self._device):
            read = Scorer(rows, is_last, intact=[] if self._request.compares_tokens else None)
            with encoding_once(self._replay.model, rows.share):
                scored = self._replay.outputs(
                    rows.inputs, masks, rows=tokens_per_pass, read=read, each_pass=step
                )
            for name, found in summed_by_continuation(rows.batch, scored, len(items)).items():
                if name in summed:  # of other continuations
                    found = summed[name] & found if name == "greedy" else summed[name] + found
                summed[name] = found
        return summed

    def _read(self, items: np.ndarray, out: Tensor) -> Arrays:
        """Outputs of items of one length ``[variants, items, ...]``."""
        values, windows = out.float().cpu().numpy(), self._request.examples.windows
        if (words := self._request.examples.words) is not None:
            return {"tags": words.predicted(items, values)}
        if isinstance(self._request.encoded, EncodedWritten):
            wrong = values[..., 1:2].round().astype(np.int64)
            found = {"logits": values[..., :1], "greedy": wrong == 0, "wrong": wrong}
            if self._request.compares_tokens:
                found["differences"] = values[..., 2:].astype(np.float64)
            return found
        if windows is None:
            return {"logits": values}
        size = values.shape[2]
        rows = [slice(place * size, (place + 1) * size) for place in range(len(items))]
        return vars(decode_windows(windows, items, rows, values.reshape(len(values), -1, 2)))

    def _faster(self) -> AbstractContextManager[object]:
        half = self._dtype == torch.bfloat16 and self._device.type == "cpu"
        return attending(attend) if half else nullcontext()

    def _step(self, tokens_per_pass: int, each_pass: Callable[[], None]) -> Callable[[], None]:
        widest = tokens_per_pass * self._width * self._dtype.itemsize

        def step() -> None:
            each_pass()
            if self._passes % _PASSES_BETWEEN_RETURNS == 0 and self._device.type == "cpu":
                return_free_memory(widest)
            self._passes += 1

        return step


def model_runners(
    request: AblationRequest, dtype: torch.dtype, lanes: int, known: ModelRunner | None = None
) -> Iterator[ModelRunner | WritingRunner]:
    """A runner for every lane, in a precision; the first is compared with the model's own forward.

    `known`: one in another precision, which runs whole texts; the new ones are for pairs alone.

    Raises:
        ModelError: the model cannot be run, or not exactly; see `Replay`.
    """
    settings, module = request.settings, request.model.module
    shares = can_share(module)
    if shares and not request.model.fixed:
        module.to(request.device)
        module = cast_copy(module, dtype)
        third = settings.strength or settings.rank
        added = bytes_of_finished(module) * (2 if third else 1)
        if added < _SHARE_OF_FREE * available_memory(request.device):
            finish_maps(module, settings.scale, settings.rank)
    first: ModelRunner | WritingRunner
    if isinstance(request.encoded, EncodedPrompts):
        first = prepared_runner(request, module, lanes)
    else:
        layers = in_copy(request.model.layers, request.model.module, module)
        share = _may_share(request, module, dtype)  # in float32, which packed maps do not compute
        pack(layer.module for layer in layers)  # before it is described, by a dozen forwards
        replay, layout = _prepared(request, module, known, share)
        activate_in_maps(replay)
        replay.attend = attend
        first = ModelRunner(request, replay, layout)
    yield first
    if shares:  # else the lanes use one in turn
        for _ in range(lanes - 1):
            yield first.twin()


def _prepared(
    request: AblationRequest, module: nn.Module, known: ModelRunner | None, share: bool
) -> tuple[Replay, tuple[Layout, bool] | None]:
    """A model prepared on short examples, and the layout of a language model's rows, shared or not."""
    encoded, (device, dtype) = request.encoded, place_of(module)
    layout: tuple[Layout, bool] | None = None
    if encoded.in_trees:
        layout = choose_layout(module, encoded, dtype, device, share)
        n_read = np.array([len(tree.read) for tree in encoded.trees])
        few = 2 * n_read <= encoded.lengths  # so that positions that are not read can be told
        items = np.lexsort((encoded.lengths, ~few))[:1]
        rows = rows_of(encoded, items, layout[0], dtype, device)[0]
        inputs, read, one = rows.inputs, Scorer(rows, layout[1]), False
        encoding = encoding_once(module, rows.share)
    else:
        items = example_of(encoded)
        inputs, read = inputs_of(module, encoded, items, device), reader(request, items)
        others = request.examples.windows or request.examples.words  # which read several positions
        others = others or request.checkpoint.embedding
        one, encoding = others is None and isinstance(encoded, Encoded), nullcontext()
    instead = None if module is request.model.module else activated_in_place
    if known is not None:
        with suppress(ModelError):
            replay = known._replay.in_precision(module, inputs, read, instead)
            if known._replay.pads:
                replay.find_padding(*_unequal(module, encoded, device))
            return replay, layout
    with encoding:
        replay = Replay(
            module,
            inputs,
            read=read,
            switches=Switches(request.settings.scale, request.settings.rank),
            one_position=one,
            instead=instead,
            by=request.settings.unit,
        )
    if type(encoded) is Encoded and known is None:
        groups = [
            inputs_of(module, encoded, group, device)
            for group in alike(encoded.lengths, few_lengths(encoded))
        ]
        replay.find_packing(groups, read)
        if replay.packs and request.settings.precision == "mixed" and "attention_mask" in inputs:
            replay.find_padding(*_unequal(module, encoded, device))
    return replay, layout


def _unequal(
    module: nn.Module, encoded: Encoded, device: torch.device
) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
    """A shortest text and a longer one, each alone, and both with padding; see `Replay.find_padding`."""
    order = np.argsort(encoded.lengths, kind="stable")
    longer = encoded.lengths[order] >= min(1.25 * encoded.lengths.min(), encoded.lengths.max())
    items = order[[0, np.argmax(longer)]]
    alone = [inputs_of(module, encoded, items[[place]], device) for place in range(2)]
    return alone, inputs_of(module, encoded, items, device)


def _may_share(request: AblationRequest, module: nn.Module, dtype: torch.dtype) -> bool:
    """Whether a copy of a language model of half precision allows shared rows, if float32 has room."""
    model = request.model
    if dtype.itemsize > 2 or not request.encoded.in_trees:
        return True
    size = sum(4 * tensor.numel() for tensor in module.parameters())
    device = device_of(module)
    if model.fixed or not can_share(module) or size > _SHARE_OF_FREE * available_memory(device):
        return False
    exact = cast_copy(module, torch.float32)
    return choose_layout(exact, request.encoded, torch.float32, device)[0] == "shared"


def all_logits(request: AblationRequest, module: nn.Module) -> np.ndarray:
    """Logits ``[examples, labels]`` by a model's own forward, in the examples' order."""
    lengths, device, found = request.encoded.lengths, device_of(module), {}
    with torch.inference_mode():
        for group in alike(lengths, np.arange(len(lengths)), _TOKENS_AT_ONCE):
            out = module(**inputs_of(module, request.encoded, group, device))["logits"]
            found |= dict(zip(group.tolist(), out.float().cpu().numpy()))
    return np.stack([found[item] for item in range(len(lengths))])


def own_forward(request: AblationRequest, module: nn.Module, items: np.ndarray) -> Callable[[], Tensor]:
    """A model's own forward of some items, which returns all numbers that are read of it."""
    if getattr(request.checkpoint, "quantised", None) is None and not is_moved(module):
        module.to(request.device)
    ignore_padding(module)
    encoded, (device, dtype) = request.encoded, place_of(module)
    if isinstance(encoded, EncodedPrompts):
        prompts = [encoded.input_ids[item] for item in items]
        own = padded(prompts, module, encoded.reads, started=True)
        return lambda: module(**own)["logits"][:, -1].flatten()
    if encoded.in_trees:
        batches = [rows.inputs for rows in rows_of(encoded, items, "alone", dtype, device)]
    else:
        batches = [inputs_of(module, encoded, group, device) for group in alike(encoded.lengths, items)]
    read = reader(request, items)
    return lambda: torch.cat([read(module, lambda x=x: module(**x), 1).flatten() for x in batches])


def pack(layers: Iterable[nn.Module]) -> None:
    """Pack the layers' linear maps in bfloat16 for the processor's matrix unit."""
    for module in dict.fromkeys(module for layer in layers for module in layer.modules()):
        if isinstance(module, TwoWeights) and can_pack_weight(module.off):
            module.pack(PackedMap)
        elif type(module) is nn.Linear and "forward" not in vars(module) and can_pack_weight(module.weight):
            module.forward = PackedMap(module)  # type: ignore[method-assign]


def activate_in_maps(replay: Replay) -> None:
    """Let packed maps apply the activations that alone read their results."""
    for activation, linear in replay.fed_by.items():
        if isinstance(linear, TwoWeights):
            if not linear.change_packed(methodcaller("followed_by", activation)):
                continue
        elif isinstance(packed := vars(linear).get("forward"), PackedMap):
            linear.forward = packed.followed_by(activation)  # type: ignore[method-assign]
        else:
            continue
        activation.forward = unchanged  # type: ignore[method-assign]


def reader(
    request: AblationRequest, items: np.ndarray
) -> Callable[[nn.Module, Callable[[], Any], int], Tensor]:
    """What is read of the model's output for some items: logits, of start and end, or scores of tokens."""
    encoded = request.encoded
    if isinstance(encoded, EncodedWritten):
        tokens = torch.from_numpy(encoded.tokens[items])
        return WrittenScores(tokens, intact=[] if request.compares_tokens else None)
    if encoded.in_batches:
        return lambda _, run, copies: split(encoded.read(run()), 0, copies)
    if request.checkpoint.embedding is not None:
        return request.checkpoint.embedding
    return _ends if request.examples.windows is not None else logits


def _ends(model: nn.Module, run: Callable[[], Any], copies: int) -> Tensor:
    out = run()
    return split(torch.stack([out["start_logits"], out["end_logits"]], dim=-1), 0, copies)


def nearby(lengths: np.ndarray, items: np.ndarray, most: int) -> Iterator[np.ndarray]:
    """Different items in groups of nearby lengths, of at most so many tokens, padded to one length."""
    own, counts = np.unique(items, return_counts=True)
    group: list[int] = []
    added = 0
    for place in np.argsort(-lengths[own], kind="stable"):
        longest = int(lengths[own[group[0] if group else place]])
        padding = int(counts[place] * (longest - lengths[own[place]]))
        if group and (added + padding > _MOST_PADDING or (len(group) + 1) * longest > most):
            yield np.sort(own[group])
            group, added, padding = [], 0, 0
        group.append(place)
        added += padding
    if group:
        yield np.sort(own[group])


def alike(lengths: np.ndarray, items: np.ndarray, most: int | None = None) -> Iterator[np.ndarray]:
    """The items in groups of one length; with `most`, each item once and at most so many tokens a group."""
    items = items if most is None else np.unique(items)
    for length in np.unique(lengths[items]):
        group = items[lengths[items] == length]
        pieces = 1 if most is None else -(-len(group) * int(length) // max(most, int(length)))
        yield from np.array_split(group, pieces)
