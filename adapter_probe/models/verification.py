"""Verification of an anatomy on its model, once, at construction.

A wrong anatomy may run without errors and return plausible but wrong numbers. Therefore, on a few tokens,
every layer receives its input in the forward of the transformers model and must return the same output; the
same holds for embeddings and head. Torch's global generator is not used, and no hook remains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from adapter_probe.data.packing import Group, PackedBatch
from adapter_probe.errors import ModelError

from .layer import ADAPTER

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from .adapted import AdaptedModel


LENGTHS = (3, 5)  # of the two texts, the shorter of which is the beginning of the other
# Relative to what a layer adds. Some families always compute LayerNorms in float32.
_TOLERANCE = {torch.float64: 1e-5, torch.float32: 2e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
_FROM_TORCH = (RuntimeError, TypeError, ValueError, IndexError, AttributeError)
_ROUNDINGS = 16  # number of roundings on the way through a layer


def check_anatomy(model: AdaptedModel) -> None:
    """Compare the packed forward with the forward of the transformers model.

    Args:
        model: a model without adapters; its mode and hooks are restored.

    Raises:
        ModelError: a layer has a parameter that no part of the anatomy owns, which would be ignored silently;
            or embeddings, a layer or the head differ. The message names family and layer.
    """
    base, device = model.base, model.device
    for number, layer in enumerate(model.layers):
        owned = {id(parameter) for parameter in layer.parameters()}
        for name, parameter in layer.parts.whole.named_parameters():
            if id(parameter) not in owned and f"{ADAPTER}." not in name:
                raise ModelError(
                    f"layer {number} of this {base.config.model_type} model has {name!r}, which no part of "
                    "the anatomy owns, so it would not be computed as in transformers"
                )
    if device.type == "meta":
        return
    words = [word for word in range(int(base.config.vocab_size)) if word != base.config.pad_token_id]
    drawn = np.random.default_rng(0).choice(np.array(words), max(LENGTHS))
    short, long = LENGTHS
    ids = torch.tensor([*drawn[:short], *drawn], device=device)
    groups = (Group(0, 1, short), Group(short, 1, long))
    batch = PackedBatch(np.arange(2), groups, ids, None, torch.tensor([0, short], device=device))
    with torch.no_grad(), _evaluating(base):
        states, logits = _own_states(model, batch)
        _compare(base, "the embeddings", lambda: model.embed(batch), states[0])
        for number, layer in enumerate(model.layers):
            entering, own = states[number], states[number + 1]
            ours = partial(layer.run, entering, batch.groups)
            _compare(base, f"layer {number}", ours, own, entering)
        if logits is not None:
            read = model.read_positions(batch)
            last = states[-1][0] if read is None else states[-1][0, read]
            _compare(base, "the head", lambda: model.head(last), logits)


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Context manager for evaluation mode that restores the mode of every module."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def _own_states(model: AdaptedModel, batch: PackedBatch) -> tuple[list[Tensor], Tensor | None]:
    """The inputs of all layers and the output of the last, ``[1, tokens, hidden]`` each, and the logits.

    The logits are None if the forward of the model does not apply an imported head.
    """
    base, layers = model.base, model.layers
    passes: list[list[Tensor]] = []  # input of every layer, per example
    outputs: list[Tensor] = []  # output of the last layer

    def note(_module: nn.Module, args: tuple, kwargs: dict, output: Tensor | tuple) -> None:
        passes[-1].append(args[0] if args else kwargs["hidden_states"])
        outputs[:] = [output if isinstance(output, Tensor) else output[0]]

    logits = []
    wholes = dict.fromkeys(layer.parts.whole for layer in layers)
    handles = [whole.register_forward_hook(note, with_kwargs=True) for whole in wholes]
    try:
        for ids in batch.input_ids.split(LENGTHS):
            passes.append([])
            logits.append(_own_logits(base, ids[None]))
            passes[-1] += outputs
    finally:
        for handle in handles:
            handle.remove()
    if len(passes[0]) != len(layers) + 1:
        raise _misfit(base, "the number of layers", f"{len(layers)} in place of {len(passes[0]) - 1}")
    states = [torch.cat(pieces, dim=1) for pieces in zip(*passes)]
    return states, None if logits[0] is None else torch.cat(logits)


def _own_logits(base: PreTrainedModel, input_ids: Tensor) -> Tensor | None:
    """``[rows, outputs]`` of one example ``[1, tokens]``: one row for a classifier, else one a token."""
    try:
        out = base(input_ids=input_ids)
    except ModelError:  # see `install_head`
        base.base_model(input_ids=input_ids)
        return None
    except _FROM_TORCH as error:
        raise ModelError(
            f"the own forward of this {base.config.model_type} model fails on a few tokens, "
            f"{_first_line(error)}"
        ) from error
    if "start_logits" in out:
        return torch.stack([out.start_logits[0], out.end_logits[0]], dim=-1)
    return out.logits if out.logits.dim() == 2 else out.logits[0]


def _compare(
    base: PreTrainedModel,
    what: str,
    compute: Callable[[], Tensor],
    own: Tensor,
    entering: Tensor | None = None,
) -> None:
    """Refuse differences that exceed rounding errors.

    The distance is relative to what a layer adds; a few large entries of its input, which it passes on,
    would dominate otherwise.
    """
    try:
        ours = compute()
    except _FROM_TORCH as error:
        raise _misfit(base, what, f"it cannot be run, {_first_line(error)}") from error
    if ours.shape != own.shape:
        raise _misfit(base, what, f"shape {list(ours.shape)} in place of {list(own.shape)}")
    if not own.isfinite().all():
        raise ModelError(
            f"transformers itself computes NaN or infinite values in {what} of this "
            f"{base.config.model_type} model, on which nothing can be compared"
        )
    exact = own.double()
    added = exact if entering is None else exact - entering.double()
    allowed = _TOLERANCE[own.dtype] * added.norm() + _ROUNDINGS * torch.finfo(own.dtype).eps * exact.norm()
    distance = (ours.double() - exact).norm()
    if not distance <= allowed:
        raise _misfit(base, what, f"off by {100 * distance / added.norm():.1f}%")


def _misfit(base: PreTrainedModel, what: str, how: str) -> ModelError:
    return ModelError(
        f"the anatomy does not fit this {base.config.model_type} model: {what} differs from the forward of "
        f"transformers, {how}"
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
