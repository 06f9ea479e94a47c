"""Which layout of rows a language model allows, by comparison with its own forward of every text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from adapter_probe.data.requests_encoding import EncodedRequests
from adapter_probe.data.token_trees import TokenTree
from adapter_probe.device import is_out_of_memory
from adapter_probe.errors import ModelError
from adapter_probe.replay.checking import refused
from adapter_probe.replay.recording import base_of

from .likelihoods import summed_by_continuation
from .rows import Layout, Scorer, arguments_of, output_embedding, rows_of, text_of

# The largest difference between sums of log-likelihoods, which are kept in float32, relative to the largest
# of them or, where continuations are short, to the largest logit, which was rounded before they were formed.
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 2e-2}
_TOGETHER = 256  # tokens of texts of one length that share a forward
# Positions of these kinds depend on the length of the row.
_BY_LENGTH = ("dynamic", "longrope")


def choose_layout(
    model: nn.Module,
    encoded: EncodedRequests,
    dtype: torch.dtype,
    device: torch.device,
    share: bool = True,
) -> tuple[Layout, bool]:
    """The cheapest layout whose scores equal those of every text on its own.

    It is compared on the shortest item, the longest one, the one with the longest text, and the one with the
    longest text among those whose row holds several texts.

    In half precision rounding hides what a shared row must not do: a recurrent layer that carries one
    continuation into the next, or a window that the row's mask replaces. There, rows are shared only if a
    copy of the model in float32 allows it.

    Args:
        model: in evaluation mode, with every adapter on.
        share: whether rows may hold several continuations.

    Returns:
        the layout, and whether the model returns its output embedding's results unchanged.

    Raises:
        ModelError: the model's own forward fails in its precision or gives no finite score, or not even
            single texts give its scores.
    """
    order = np.argsort(encoded.lengths, kind="stable")
    depths = [_depth(tree.parents) for tree in encoded.trees]
    several = [item for item, tree in enumerate(encoded.trees) if not tree.is_one_text]
    deepest = [int(np.argmax(depths)), *([max(several, key=depths.__getitem__)] if several else [])]
    items = np.unique([order[0], order[-1], *deepest])
    first = 2 if _depends_on_length(model) else 0 if share else 1
    worst, name = float("nan"), str(dtype).removeprefix("torch.")
    with torch.no_grad():
        with refused(preparing=True, how=f"in {name}"):
            own, largest, is_last = _own_scores(model, encoded, items, device)
        known = np.isfinite(own)
        if not known.any():
            raise ModelError(
                "the intact model's logits are NaN or infinite on the texts that are tried first, so nothing "
                "can be compared with it; check the weights of the base (--base) and of the adapter"
            )
        for layout in get_args(Layout)[first:]:
            try:
                found = _scores(model, encoded, items, layout, is_last, dtype, device)
            except (RuntimeError, TypeError, ValueError, IndexError) as error:  # of a mask that it refuses
                if is_out_of_memory(error):
                    raise
            else:
                worst = float(abs(found - own)[known].max() / max(abs(own[known]).max(), largest))
                if worst <= _TOLERANCE.get(dtype, 1e-5):
                    return layout, is_last
    raise ModelError(
        f"scores of texts in {name} differ from those of the model's own forward by {worst:.1e} of the "
        f"largest{'' if dtype.itemsize > 2 else '; give --precision float32'}"
    )


def _depth(parents: np.ndarray) -> int:
    """The number of tokens of a tree's longest text; a state's parent stands before it."""
    depths = np.ones(len(parents) + 1, dtype=np.int64)
    depths[-1] = 0  # of the parent -1
    for state, parent in enumerate(parents.tolist()):
        depths[state] = depths[parent] + 1
    return int(depths.max())


def _depends_on_length(model: nn.Module) -> bool:
    """Whether positions depend on the length of the row."""
    configs = [config for m in model.modules() if (config := getattr(m, "config", None)) is not None]
    ropes = (getattr(config, "rope_parameters", None) or {} for config in configs)
    return any(kind in _BY_LENGTH for rope in ropes for kind in _kinds(rope))


def _kinds(rope: Any) -> Iterator[object]:
    """The kinds of positions of a configuration, which may have one for each type of layer."""
    if isinstance(rope, dict):
        yield rope.get("rope_type")
        for value in rope.values():
            yield from _kinds(value)


def _own_scores(
    model: nn.Module, encoded: EncodedRequests, items: np.ndarray, device: torch.device
) -> tuple[np.ndarray, float, bool]:
    """Log-likelihoods of single texts, and in what size their logits were rounded.

    Only texts of the same length share a forward.

    Of an item with many continuations the first, the last and the longest are computed, and the others are
    NaN, as where an item has fewer.

    Returns:
        log-likelihoods ``[items, continuations]``; the largest absolute value among the targets' logits and
        the logarithms of the normalisers; and `choose_layout`'s second result.
    """
    sums = np.full((len(items), encoded.n_continuations), np.nan)
    seen: list[Tensor] = []
    largest = 0.0
    handle = output_embedding(model).register_forward_hook(lambda _module, _args, out: seen.append(out))
    try:
        for batch in _of_one_length(encoded, items):
            before, trees = len(seen), [text for *_, text in batch]
            inputs = arguments_of(trees, np.stack([text.tokens for text in trees]))
            out = model(**{name: x.to(device) for name, x in inputs.items()})["logits"]
            is_last = len(seen) == before + 1 and torch.equal(seen.pop().to(out), out)
            for logits, (place, number, text) in zip(out, batch):
                states = torch.from_numpy(text.read[text.after])
                every = logits[states.to(device)].cpu().double()
                own = every[torch.arange(len(states)), torch.from_numpy(text.targets)]
                whole = every.logsumexp(-1)
                sums[place, number] = (own - whole).sum()
                if np.isfinite(sums[place, number]):
                    largest = max(largest, float(own.abs().max()), float(whole.abs().max()))
    finally:
        handle.remove()
    return sums, largest, is_last


def _of_one_length(encoded: EncodedRequests, items: np.ndarray) -> Iterator[list[tuple[int, int, TokenTree]]]:
    """Some texts of the items, with their items' places and their numbers, in batches."""
    groups: dict[tuple[int, ...], list[tuple[int, int, TokenTree]]] = {}
    for place, item in enumerate(items):
        sizes = list(map(len, encoded.trees[item].scored))
        for number in sorted({0, len(sizes) - 1, int(np.argmax(sizes))}):
            text = text_of(encoded.trees[item], number)
            lengths = (len(text.tokens), 0 if text.source is None else len(text.source))
            groups.setdefault(lengths, []).append((place, number, text))
    for (length, source), texts in groups.items():
        size = max(1, _TOGETHER // (length + source))
        yield from (texts[i : i + size] for i in range(0, len(texts), size))


def _scores(
    model: nn.Module,
    encoded: EncodedRequests,
    items: np.ndarray,
    layout: Layout,
    is_last: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> np.ndarray:
    """The same in a layout."""
    total = np.zeros((len(items), encoded.n_continuations))
    for rows in rows_of(encoded, items, layout, dtype, device):
        run: Callable[[], Any] = lambda rows=rows: model(**rows.inputs)  # noqa: E731
        with encoding_once(model, rows.share):
            scored = Scorer(rows, is_last)(model, run, 1)
        total += summed_by_continuation(rows.batch, scored, len(items))["logits"][0]
    return total


@contextmanager
def encoding_once(model: nn.Module, share: int) -> Iterator[None]:
    """Inside, an encoder reads the first of every `share` rows, and gives its states to all of them.

    Nothing else knows of it: the rows are those of the decoder. Copies of a batch are whole runs of rows.
    """
    if share == 1:
        yield
        return

    def first(_module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        given, spec = tree_flatten((args, kwargs))
        thinned: tuple[tuple, dict[str, Any]] = tree_unflatten(
            [x[::share] if isinstance(x, Tensor) else x for x in given], spec
        )
        return thinned

    def each(_module: nn.Module, _args: tuple, out: Any) -> Any:
        states = out[0].repeat_interleave(share, dim=0)
        if isinstance(out, tuple):
            return (states, *out[1:])
        out["last_hidden_state"] = states
        return out

    encoder = base_of(model).get_encoder()
    handles = [
        encoder.register_forward_pre_hook(first, with_kwargs=True), encoder.register_forward_hook(each)
    ]  # fmt: skip
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
