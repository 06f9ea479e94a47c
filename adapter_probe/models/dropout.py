"""Dropout, with a faster source of random numbers for bfloat16 on a CPU."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F


def apply_dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """`x` with each number set to zero with probability `p`, and the others divided by 1 - `p`."""
    if training and p > 0 and x.dtype == torch.bfloat16 and x.device.type == "cpu":
        return x * dropout_mask(x, p)
    return F.dropout(x, p, training)


def dropout_mask(like: Tensor, p: float) -> Tensor:
    """The factors of a dropout: 0 with probability `p`, otherwise 1 / (1 - `p`).

    PyTorch draws 32 random bits for each number, one number after the other, which takes as long as a matrix
    product. Here 16 bits decide, so that `p` is rounded to a multiple of 1 / 65,536, from a faster generator,
    whose seed is drawn from PyTorch's.

    Args:
        like: a tensor on the CPU, whose shape and dtype the factors get.
        p: probability, from 0 to 1.
    """
    seed = int(torch.randint(2**63 - 1, ()).item())
    bits = np.random.SFC64(seed).random_raw(-(-like.numel() // 4)).view(np.uint16)[: like.numel()]
    kept = (bits >= round(p * 65536)).view(np.uint8)
    return torch.from_numpy(kept).view(like.shape).to(like.dtype).mul_(1 / (1 - p) if p < 1 else 0.0)
