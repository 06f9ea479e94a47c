"""Comparison with a model's own forward, and what its code raises without its layers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adapter_probe.device import is_out_of_memory
from adapter_probe.errors import ModelError, one_line

# The largest difference to the model's own forward, relative to the largest output.
_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}
RAISED = (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError)
"""What a model's own code may raise where it is run in another way."""
_UNITS = 100  # of rounding, between two runs on the same states


@contextmanager
def refused(preparing: bool = False, how: str = "layer by layer") -> Iterator[None]:
    """What a model's own code raises, without its layers by default, as a refusal in one line.

    While an example is prepared, also what this package's code raises of shapes that it does not expect;
    later that is an error of this package.
    """
    try:
        yield
    except RAISED as error:
        said = one_line(error)
        if is_out_of_memory(error) or not (preparing or _of_the_model(error)):
            raise
        raise ModelError(f"the model does not run {how}: {said}") from error


def _of_the_model(error: BaseException) -> bool:
    """Whether an error was raised in another package's code."""
    *_, (frame, _) = walk_tb(error.__traceback__)
    return not frame.f_globals["__name__"].startswith("adapter_probe.")


def coarsest(model: nn.Module) -> torch.dtype:
    """The precision of a model's parameters that rounds most; a reader may return its sums in a finer one."""
    found = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    return max(found, key=lambda dtype: _TOLERANCE.get(dtype, 0.0), default=torch.float32)


def tried_masks(n: int) -> np.ndarray:
    """The masks of a comparison, bool ``[4, n]``: all on, all off, and two at random."""
    ends = np.array([[True], [False]]).repeat(n, axis=1)
    return np.concatenate([ends, np.random.default_rng(0).random((2, n)) < 0.5])


def alike(own: Any, ours: Any, units: int = _UNITS) -> bool:
    """Whether two runs of a layer or a model on the same states agree, floats up to units of rounding."""
    if not isinstance(own, Tensor) or not own.is_floating_point():
        return torch.equal(own, ours) if isinstance(own, Tensor) else bool(own == ours)
    finite = own.isfinite()
    if own.shape != ours.shape or not torch.equal(finite, ours.isfinite()):
        return False
    if not finite.any():
        return True
    error = float((own - ours)[finite].abs().max())
    return error <= units * torch.finfo(own.dtype).eps * float(own[finite].abs().max())


def compare(ours: Tensor, own: Tensor, precision: torch.dtype | None = None, logit: float = 0.0) -> float:
    """The largest difference, relative to the largest output.

    Args:
        ours: the outputs.
        own: those of the model's own forward.
        precision: what the model computes in; by default that of the outputs.
        logit: of log-likelihoods, the size of the logits whose differences they are; in half precision the
            logits were rounded, so that a log-likelihood near 0 can be as far off as one of this size.

    Raises:
        ModelError: it is too large for the precision, or the outputs are not finite in the same places.
    """
    ours, own = ours.detach(), own.detach()
    if ours.shape != own.shape:
        raise ModelError(f"the output has shape {list(ours.shape)}, and the model's own {list(own.shape)}")
    finite = own.isfinite()
    if not torch.equal(finite, ours.isfinite()):
        raise ModelError("the output is not finite where that of the model's own forward is, or the reverse")
    if not finite.any():
        return 0.0  # whoever reads it finds that
    half = (precision or own.dtype).itemsize == 2
    largest = max(float(own[finite].abs().max()), logit if half else 0.0)
    error = float((ours - own)[finite].abs().max())
    if error:
        error = error / largest if largest else math.inf
    if error > max(_TOLERANCE.get(dtype, 1e-4) for dtype in (own.dtype, precision or own.dtype)):
        raise ModelError(
            f"layer by layer, the output differs from the model's own forward by {error:.1e} of the "
            f"largest output{'; give --precision float32' if half else ''}"
        )
    return error
