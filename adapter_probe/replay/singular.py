"""Matrices by their singular values, in float64.

The k largest singular values of a matrix with their vectors are the best matrix of rank k (Eckart and Young
1936). Those of a product of two factors follow from the QR decompositions of both, so that the product itself
is never formed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Directions:
    """A matrix by its singular values, in float64.

    Attributes:
        left: ``[..., outputs, rank]``.
        values: ``[..., rank]``, descending.
        right: ``[..., rank, inputs]``.
    """

    left: Tensor
    values: Tensor
    right: Tensor

    def factors(self, rank: int) -> tuple[Tensor, Tensor]:
        """B ``[..., outputs, rank]`` and A ``[..., rank, inputs]`` of the largest; zero from `rank` on."""
        root = self.values.sqrt() * (torch.arange(self.values.shape[-1]) < rank)
        return self.left * root[..., None, :], root[..., :, None] * self.right


def of_product(b: Tensor, a: Tensor) -> Directions:
    """The directions of B A, with B ``[..., outputs, rank]`` and A ``[..., rank, inputs]``."""
    (q_b, r_b), (q_a, r_a) = torch.linalg.qr(wide(b)), torch.linalg.qr(wide(a).mT)
    left, values, right = torch.linalg.svd(r_b @ r_a.mT, full_matrices=False)
    return Directions(q_b @ left, values, (q_a @ right.mT).mT)


def of_matrix(matrix: Tensor) -> Directions:
    """The directions of a matrix ``[outputs, inputs]``."""
    return Directions(*torch.linalg.svd(wide(matrix), full_matrices=False))


def wide(tensor: Tensor) -> Tensor:
    """A tensor in float64, on the processor."""
    return tensor.detach().to("cpu", torch.float64)
