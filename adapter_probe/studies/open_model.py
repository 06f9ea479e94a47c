"""An open checkpoint: logits with any adapters switched off, and the transformers model itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from adapter_probe.ablation_settings import AblationSettings
from adapter_probe.argument_checks import checked
from adapter_probe.checkpoints.adapter_folder import choose_adapter
from adapter_probe.checkpoints.base import SharedBase
from adapter_probe.checkpoints.in_memory import left_as_it_was, state_of_tuners
from adapter_probe.checkpoints.opened_peft import OpenedPeft
from adapter_probe.checkpoints.opening import open_any
from adapter_probe.data.encoding import Encoded, encode
from adapter_probe.data.examples import Examples
from adapter_probe.data.in_memory import is_column
from adapter_probe.data.labels import Split
from adapter_probe.data.rows import is_text
from adapter_probe.device import check_precision, choose_device
from adapter_probe.errors import DataError, ModelError, must_be, shown
from adapter_probe.probe.plan import choose_tokens_per_pass, cut_batches
from adapter_probe.probe.request import AblationRequest
from adapter_probe.probe.runners import ModelRunner, all_logits, model_runners
from adapter_probe.probe.switchable_model import ignore_padding, model_of, place_of
from adapter_probe.replay.recording import base_of, is_moved
from adapter_probe.spans import Span, as_span, in_model

from .checkpoint_arguments import Tokenizer, in_words_of_ablate
from .opened import device_of, open_given, without_autocast

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class _Open:
    """An open checkpoint, ready to run: one of those that a `Model` can show."""

    def __init__(self, opened: OpenedPeft, device: torch.device, given: torch.nn.Module | None = None):
        self.opened = opened
        self._given = given if given is opened.model else None  # which is not a copy
        self._original, self._state = given, None if given is None else state_of_tuners(given)
        self._prepared: tuple[ModelRunner, list[tuple[Any, ...]]] | None = None
        if opened.quantised is None and not is_moved(opened.model):
            opened.model.to(device)
        self.base = base_of(opened.model)
        self.model = model_of(opened, self._encoded(("a",), None))

    def _encoded(self, first: Sequence[str], second: Sequence[str] | None) -> Encoded:
        split = Split(
            tuple(first), tuple(second) if second else None, np.zeros(len(first), np.int64), "texts", ""
        )
        return encode(self.opened.tokenizer, split, self.opened.description.max_length)

    def _stamps(self) -> list[tuple[Any, ...]]:
        """What tells of changed weights; PyTorch does not count the changes of all of its optimisers."""
        plain = [t for t in self.opened.model.parameters() if type(t) is torch.nn.Parameter]  # not quantised
        sums = [(t, t.sum(dtype=torch.float32)) for t in plain if t.dtype in _TRAINED and not t.is_meta]
        return [(t.data_ptr(), 0 if t.is_inference() else t._version, value.item()) for t, value in sums]

    def variants(
        self,
        first: Sequence[str],
        second: Sequence[str] | None,
        masks: np.ndarray,
        tokens_per_pass: int | None,
    ) -> np.ndarray:
        """See `Model.variants`; the texts, or the first and the second ones of pairs."""
        if self._original is not None and state_of_tuners(self._original) != self._state:
            raise ModelError(
                "the model's adapters were set, merged or switched since it was opened; call "
                "adapter_probe.open again"
            )
        with without_autocast(), nullcontext() if self._given is None else self._borrowed(self._given):
            encoded, model = self._encoded(first, second), self.model
            rows = Split((), None, np.zeros(len(encoded), np.int64), "texts", "")
            metric, examples = self.opened.description.task.metric, Examples(rows, encoded)
            device, dtype = place_of(model.module)
            request = AblationRequest(self.opened, examples, metric, AblationSettings(), device)
            if not model.has_adapter.any():
                return all_logits(request, model.module)[None].repeat(len(masks), axis=0)
            width = choose_tokens_per_pass(tokens_per_pass, device.type, model.inner_size)
            stamps = self._stamps()
            if self._prepared is None or self._prepared[1] != stamps:  # it has products of the weights
                prepared = next(model_runners(request, dtype, 1))
                assert isinstance(prepared, ModelRunner), "texts are read, and not written"
                self._prepared = prepared, stamps
            runner = self._prepared[0].on(request)
            order = np.argsort(encoded.lengths, kind="stable")
            batches = cut_batches(encoded.lengths, order, width)
            logits = [runner.outputs(items, masks, width, lambda: None)["logits"] for items in batches]
            return np.concatenate(logits, axis=1)[:, np.argsort(np.concatenate(batches))]

    @contextmanager
    def _borrowed(self, given: torch.nn.Module) -> Iterator[None]:
        """The given model itself, ready to run, and afterwards as it was."""
        with left_as_it_was(given):
            ignore_padding(given.eval())
            try:
                yield
            finally:
                self._prepared = None


Texts = str | Sequence[str] | Sequence[tuple[str, str]]
Off = int | tuple[int, int] | Span | Sequence[bool] | np.ndarray | None
_Written = tuple[tuple[str, int, int], ...]
"""Name, size in bytes and modification time of every file of a folder."""
_DTYPES = ("float32", "float64", "bfloat16", "float16")
_TRAINED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Model:
    """A checkpoint on its base model; what `adapter_probe.open` returns.

    One base in memory serves any number of checkpoints, one at a time; see `use`.

    Attributes:
        base: the transformers model; its own `forward` applies the adapters, through hooks.
        tokenizer: the tokenizer of the base, or the one that was saved with the adapter if it encodes
            differently.
        label_names: label names in the order of the logits; empty for regression.
        notes: remarks on how a checkpoint of another library was read, one sentence each.
    """

    def __init__(self, open_on: Callable[[str | Path], _Open], given: str | Path | _Open):
        self._open_on = open_on
        self._kept: dict[Path, tuple[_Written, _Open]] = {}
        if isinstance(given, _Open):
            self._show(given)
        else:
            self.use(given)

    def __repr__(self) -> str:
        about, sites = self._opened.description, int(self.has_adapter.sum())
        device, _ = place_of(self._running.model.module)
        return (
            f"Model({about.base.name!r}, {about.method.name}, {self.n_layers} layers, adapters at {sites} "
            f"of {self.n_sites} sites, task {about.task.name!r}, on {device})"
        )

    @checked
    def use(self, checkpoint: str | Path) -> Model:
        """Switch to another checkpoint of the same base, without reading the base again.

        Afterwards the model behaves exactly as if that checkpoint had been opened on its own: predictions are
        identical to the bit. The checkpoint's tensors (adapters, LayerNorms, head) stay in memory, so that
        switching back takes microseconds; base weights that it does not change are in memory only once.

        Args:
            checkpoint: checkpoint folder, in any format that `adapter_probe.open` supports. A checkpoint that
                has been rewritten since its last use is read again.

        Returns:
            this model, so that calls can be chained: ``model.use("ckpt").logits(texts)``. References to the
            previous `base` remain valid.

        Raises:
            CheckpointError: not a checkpoint, damaged files, or another base; the model stays unchanged.
            ModelError: the task needs a head of another class, such as question answering after
                classification.
        """
        place = Path(checkpoint).resolve()
        written = _written(place)
        kept = self._kept.get(place)
        if kept is None or kept[0] != written:
            kept = self._kept[place] = (written, self._open_on(checkpoint))
        self._show(kept[1])
        return self

    def _show(self, model: _Open) -> None:
        self._running, self._opened = model, model.opened
        opened = self._opened
        self.base: PreTrainedModel = model.base
        self.tokenizer: PreTrainedTokenizerBase = opened.tokenizer
        self.label_names = opened.description.task.label_names
        self.notes = in_words_of_ablate(opened.notes)

    @checked
    def forget(self, checkpoint: str | Path) -> None:
        """Free the memory of a checkpoint that was used; the current one is freed after the next `use`.

        Raises:
            ModelError: the checkpoint was not used.
        """
        if self._kept.pop(Path(checkpoint).resolve(), None) is None:
            raise ModelError(f"checkpoint {checkpoint} is not loaded, so there is nothing to forget")

    @property
    def n_layers(self) -> int:
        """Number of Transformer layers."""
        return len(self._running.model.layers)

    @property
    def n_sites(self) -> int:
        """Number of sites, two per layer (attention, then feed-forward), from the bottom layer up."""
        return len(self.has_adapter)

    @property
    def has_adapter(self) -> np.ndarray:
        """Bool ``[sites]``: which sites hold an adapter that can be switched off."""
        return self._running.model.has_adapter

    def logits(self, texts: Texts, off: Off = None) -> np.ndarray:
        """Logits of texts, in the order given.

        Args:
            texts: one text, a list of texts, or a list of pairs of texts.
            off: adapters to switch off: a layer, a span (a `Span` or ``(first, last)``, both ends included),
                or a bool mask ``[sites]`` in which True means *on*; None for the intact model.

        Returns:
            float32 ``[examples, labels]``.

        Raises:
            DataError: no text is given, or a text has no tokens.
            ModelError: the span or mask does not fit the model, or the model has no logits per text.
        """
        return self.variants(texts, self.mask(off)[None])[0]

    @checked
    def variants(self, texts: Texts, masks: np.ndarray, *, tokens_per_pass: int | None = None) -> np.ndarray:
        """Logits under many on/off masks, computed in one pass by the prefix tree.

        Args:
            texts: see `logits`.
            masks: bool ``[variants, sites]``, True = on; arbitrary rows, see `adapter_probe.spans`.
            tokens_per_pass: maximum number of rows (variants x tokens) per pass through a layer.

        Returns:
            float32 ``[variants, examples, labels]``, equal to one separate run per variant.

        Raises:
            DataError, ModelError: see `logits`.
        """
        first, second = self._read(texts)
        return self._running.variants(first, second, self._checked(masks), tokens_per_pass)

    @contextmanager
    def switched_off(self, first: int | Span | np.ndarray, last: int | None = None) -> Iterator[Model]:
        """Context manager that switches adapters off in the forward of the transformers model (`base`).

        Args:
            first: the first layer, a `Span`, or a bool mask ``[sites]`` with True = on.
            last: the last layer, inclusive; by default the first.

        Raises:
            ModelError: the span or mask does not fit the model.
        """
        off: Any = first if last is None else (first, last)
        with self._running.model.switched_off(self.mask(off)):
            yield self

    def mask(self, off: Off = None) -> np.ndarray:
        """The bool mask ``[sites]`` (True = on) that corresponds to `off`; see `logits`."""
        mask = np.ones(self.n_sites, dtype=bool)
        if off is None:
            return mask
        if isinstance(off, (bool, np.bool_)):
            raise ModelError(f"off={shown(off)} is not a layer; give its number, a span or a mask")
        pair = isinstance(off, tuple) and len(off) == 2
        pair = pair and not any(isinstance(end, (bool, np.bool_)) for end in off)  # type: ignore[union-attr]
        try:
            given = np.asarray(off)
        except ValueError as error:  # lists of unequal length
            raise ModelError(f"off={shown(off)} is neither a span of layers nor a mask") from error
        if pair or given.ndim == 0:
            try:
                span = as_span(off)  # type: ignore[arg-type]
            except (TypeError, ValueError) as error:
                raise ModelError(f"off={shown(off)} is not a span of layers: {error}") from None
            if span.last >= self.n_layers:
                raise ModelError(
                    f"off={shown(off)} exceeds the model, whose layers are 0 to {self.n_layers - 1}"
                )
            if span.stack:
                span = in_model(self._running.model.stacks, span)
            mask.reshape(-1, len(self._running.model.sites))[span.first : span.last + 1] = False
            return mask
        return self._checked(given[None])[0].copy()

    def _checked(self, masks: np.ndarray) -> np.ndarray:
        masks = np.asarray(masks)
        if masks.dtype != bool or masks.ndim != 2 or masks.shape[1] != self.n_sites or not len(masks):
            raise ModelError(
                f"masks have dtype {masks.dtype} and shape {list(masks.shape)}; give bool "
                f"[variants, {self.n_sites}], True = on"
            )
        return masks

    def _read(self, texts: Texts) -> tuple[Sequence[str], Sequence[str] | None]:
        about = self._opened.description
        if not (about.task.about.one_class or about.task.about.is_number):
            raise ModelError(
                f"task {about.task.name!r} is of kind {about.task.kind!r}, which has no logits per text; "
                "call `adapter_probe.ablate`, or run `model.base` within `model.switched_off(...)`"
            )
        if not isinstance(texts, str) and not is_column(texts):
            raise DataError(f"texts={shown(texts)} are no texts; give a text, or a list of texts or pairs")
        rows: list[Any] = [texts] if isinstance(texts, str) else list(texts)
        if not rows:
            raise DataError("no texts given; give at least one")
        pairs = [not isinstance(row, str) for row in rows]
        if any(pairs) and not all(
            isinstance(row, (tuple, list, np.ndarray)) and len(row) == 2 for row in rows
        ):
            raise DataError("texts are neither all strings nor all pairs of strings")
        for text in (text for row in rows for text in ([row] if isinstance(row, str) else row)):
            if not is_text(text):
                raise DataError(f"the text {text!r} is not a string of whole Unicode characters")
        if not all(pairs):
            return rows, None
        first, second = zip(*rows)
        return first, second


@checked
def open_model(
    checkpoint: str | Path | torch.nn.Module,
    *,
    tokenizer: Tokenizer | None = None,
    base: str | Path | None = None,
    adapter: str | None = None,
    device: str = "auto",
    dtype: str = "float32",
) -> Model:
    """Open a checkpoint written by this project, AdapterHub's `adapters`, PEFT or the paper's code.

    Args:
        checkpoint: checkpoint folder, or a model in memory with PEFT's tuners, which keeps its device and
            precision, and whose weights a copy of its modules shares.
        tokenizer: tokenizer of a model in memory.
        base: folder or Hugging Face Hub id of the base model, if it differs from the recorded one.
        adapter: subfolder of the adapter to open, where the checkpoint's folder holds several.
        device: ``auto``, ``cpu``, or an accelerator: ``cuda``, ``cuda:1``, ``mps``, ``xpu``, ...
        dtype: precision of weights and arithmetic: ``float32``, ``float64``, ``bfloat16`` or
            ``float16``.

    Raises:
        CheckpointError: not a checkpoint, damaged files, or a base that is missing or does not fit.
        ModelError: the base, device or dtype is not supported.
    """
    if dtype not in _DTYPES:
        raise ModelError(must_be("dtype", f"one of {', '.join(_DTYPES)}", dtype))
    if isinstance(checkpoint, torch.nn.Module):
        if (base, adapter) != (None, None):
            raise ModelError(
                "base and adapter belong to a checkpoint on disk; omit them with a model in memory"
            )

        def refuse(other: str | Path) -> _Open:
            raise ModelError(f"a model in memory has no other checkpoints; open {other} by itself")

        with left_as_it_was(checkpoint):
            opened = open_given(checkpoint, device, None, tokenizer)
            return Model(refuse, _Open(opened, device_of(checkpoint), checkpoint))
    where = choose_device(device)
    check_precision(where, dtype, option="dtype")
    shared, place = SharedBase(where), None if base is None else str(base)

    def open_on(folder: str | Path) -> _Open:
        opened = open_any(folder, place, dtype=getattr(torch, dtype), load=shared.load)
        return _Open(opened, where)

    return Model(open_on, choose_adapter(Path(checkpoint), adapter) if adapter is not None else checkpoint)


def _written(folder: Path) -> _Written:
    """Name, size and time of the files that a checkpoint may consist of; empty without a folder."""
    files = [path for pattern in ("*", "*/adapter_*") for path in folder.glob(pattern) if path.is_file()]
    stats = ((str(path), path.stat()) for path in sorted(files))
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)
