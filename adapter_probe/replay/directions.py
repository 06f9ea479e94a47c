"""The directions of what adapters of PEFT change, and adapters with the largest of them only.

The k largest singular values of a matrix with their vectors are the best matrix of rank k (Eckart and Young
1936). Those of a product of two factors follow from the QR decompositions of both, so that the product itself
is never formed. All is in float64.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adapter_probe.errors import ModelError

_TRUNCATED = "_truncated"
_EXACT = 1e-4  # of an adapter's change, in float32, against its matrix


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


def peft_is_loaded() -> bool:
    """Whether a module can be of a type of PEFT, whose import takes seconds."""
    return "peft" in sys.modules


def directions(module: Any) -> Directions | None:
    """The directions of what a module of PEFT adds, its scale included; None if it adds no matrix.

    Of a DoRA it is the matrix that changes the direction of the weights, without their lengths.
    """
    if (pair := _pair(module)) is not None:
        found = of_product(*pair.product())
        sign = 1.0 if pair.scale >= 0 else -1.0
        return Directions(sign * found.left, found.values * abs(pair.scale), found.right)
    if (matrix := _added_matrix(module)) is None:
        return None
    found = of_matrix(matrix)
    rank = _rank(found.values, matrix)
    return Directions(found.left[:, :rank], found.values[:rank], found.right[:rank])


def _rank(values: Tensor, matrix: Tensor) -> int:
    """How many singular values of a matrix are more than the rounding of its numbers."""
    rounding = max(matrix.shape) * torch.finfo(matrix.dtype).eps * float(values[0])
    return int((values > rounding).sum())


def rank_of(module: nn.Module) -> int:
    """The number of directions of a module, of a LoRA those of value 0 included; 0 if it has none."""
    if (pair := _pair(module)) is not None:
        return pair.rank
    matrix = _added_matrix(module)
    return 0 if matrix is None else _rank(torch.linalg.svdvals(wide(matrix)), matrix)


def truncate(module: Any, rank: int | None) -> None:
    """Keep a module's largest directions, as many as `rank`; None leaves the module as PEFT made it.

    What has no directions is not changed.
    """
    kept = vars(module).get(_TRUNCATED)
    if kept is not None and kept[0] != rank:
        _exchange(module, kept, False)
    if rank is not None:
        if kept is None or kept[0] != rank:
            vars(module)[_TRUNCATED] = kept = (rank, *_prepared(module, rank))
        _exchange(module, kept, True)


def _prepared(module: Any, rank: int) -> tuple[list[Tensor], list[Tensor]]:
    """The tensors in place of a module's factors, and these; of another module the factors of its matrix."""
    if (pair := _pair(module)) is not None:
        return (pair.truncated(rank), pair.tensors) if rank < pair.rank else ([], [])
    if (matrix := _added_matrix(module)) is None:
        return [], []
    b, a = of_matrix(matrix).factors(rank)
    return [b[:, :rank].to(matrix), a[:rank].to(matrix)], []


def _exchange(module: Any, kept: tuple[int, list[Tensor], list[Tensor]], truncated: bool) -> None:
    _, parts, whole = kept
    if whole:
        pair = _pair(module)
        assert pair is not None, "it has factors"
        for (holder, name), tensor in zip(pair.places, parts if truncated else whole):
            holder[name] = tensor
    elif parts and truncated:
        module.forward = partial(_with_matrix, module, *parts)
    elif parts:
        vars(module).pop("forward", None)


def _with_matrix(module: Any, b: Tensor, a: Tensor, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    out: Tensor = module.get_base_layer()(x, *args, **kwargs)
    return out + F.linear(F.linear(x.to(a.dtype), a), b).to(out.dtype)


@dataclass(frozen=True)
class _Pair:
    """Where a module keeps two factors, and maybe a third between them.

    Attributes:
        places: of A, B and maybe the factor between: the mapping of parameters that holds it, and its name.
        scale: what the product is multiplied by.
        n: of experts, how many share one pair of factors; 1 of others.
    """

    places: tuple[tuple[dict[str, Any], str], ...]
    scale: float
    n: int = 1

    @property
    def rank(self) -> int:
        holder, name = self.places[0]
        return int(holder[name].shape[0]) // self.n

    def product(self) -> tuple[Tensor, Tensor]:
        """B ``[..., outputs, rank]`` and A ``[..., rank, inputs]``, the factor between in A."""
        a, b, *between = (wide(holder[name]) for holder, name in self.places)
        a, b = (a * between[0] if between else a).flatten(1), b.flatten(1)
        if self.n > 1:  # [experts x rank, inputs] and [outputs, rank x experts]
            return b.unflatten(1, (-1, self.n)).movedim(2, 0), a.unflatten(0, (self.n, -1))
        return b, a

    @property
    def tensors(self) -> list[Tensor]:
        """The factors as they are stored."""
        return [holder[name] for holder, name in self.places]

    def truncated(self, rank: int) -> list[Tensor]:
        """Factors of the same shapes, whose product has the largest directions."""
        whole = self.tensors
        b, a = of_product(*self.product()).factors(rank)
        more = self.rank - b.shape[-1]  # of factors wider than the map, which has fewer directions
        b, a = F.pad(b, (0, more)), F.pad(a, (0, 0, 0, more))
        if self.n > 1:
            b, a = b.movedim(0, 2).flatten(1), a.flatten(0, 1)
        found = [a, b, *[torch.ones_like(one) for one in whole[2:]]]
        return [
            nn.Parameter(new.reshape(old.shape).to(old), requires_grad=False)
            for new, old in zip(found, whole)
        ]


def _pair(module: Any) -> _Pair | None:
    """The factors of a LoRA of any kind of module, or of an AdaLoRA; None of another module."""
    if not peft_is_loaded():
        return None
    from peft.tuners.adalora.layer import AdaLoraLayer
    from peft.tuners.lora.layer import LoraLayer

    if not isinstance(module, LoraLayer) or len(module.active_adapters) != 1:
        return None
    (name,) = module.active_adapters
    if isinstance(module, AdaLoraLayer):
        places = tuple((part._parameters, name) for part in (module.lora_A, module.lora_B, module.lora_E))
        return _Pair(places, module.scaling[name] / (float(module.ranknum[name].detach()) + 1e-5))
    if name in module.lora_embedding_A:
        places = tuple(
            (part._parameters, name) for part in (module.lora_embedding_A, module.lora_embedding_B)
        )
        return _Pair(places, module.scaling[name])
    if name not in module.lora_A or _other_variant(module, name):
        return None
    places = tuple((part[name]._parameters, "weight") for part in (module.lora_A, module.lora_B))
    return _Pair(places, module.scaling[name], int(getattr(module, "num_experts", 1)))


def _other_variant(module: Any, name: str) -> bool:
    """Whether a LoRA's change is not the product of its factors; a DoRA's is, but for its lengths."""
    variant = getattr(module, "lora_variant", {}).get(name)
    return variant is not None and "Dora" not in type(variant).__name__


def _added_matrix(module: Any) -> Tensor | None:
    """The matrix ``[outputs, inputs]`` that another tuner of PEFT adds to a linear map, as PEFT gives it."""
    if not (peft_is_loaded() and hasattr(module, "get_delta_weight") and hasattr(module, "get_base_layer")):
        return None
    base = module.get_base_layer()
    n_inputs, n_outputs = getattr(base, "in_features", None), getattr(base, "out_features", None)
    if n_inputs is None and getattr(base, "nf", None) is not None:  # transformers' Conv1D
        n_inputs, n_outputs = base.weight.shape
    with suppress(Exception), torch.no_grad():  # of PEFT, where a tuner has no such matrix
        (name,) = module.active_adapters
        matrix: Tensor = module.get_delta_weight(name)
        matrix = matrix.to_dense() if matrix.is_sparse else matrix
        x = torch.randn(4, n_inputs, generator=torch.Generator().manual_seed(0)).to(matrix)
        ways = [matrix, matrix.mT] if n_inputs == n_outputs or matrix.shape[0] == n_inputs else [matrix]
        on, off = module(x), base(x)
        change = (on - off).double()
        for one in ways:
            if tuple(one.shape) == (n_outputs, n_inputs):
                error = (F.linear(x, one).double() - change).abs().max()
                if error <= _EXACT * max(float(change.abs().max()), float(on.abs().max())):
                    return one
    return None


def refuse_without(modules: Iterable[nn.Module], rank: int) -> None:
    """Refuse adapters none of which has directions, and a rank above that of all.

    Raises:
        ModelError: it is so.
    """
    most = 0
    for module in modules:  # one after the other, since singular values of large maps take long
        most = max(most, rank_of(module))
        if most >= rank:
            return
    if not most:
        raise ModelError(
            "these adapters have no ranks: they do not add a matrix to a layer's weights, or several of them "
            "are active"
        )
    raise ModelError(f"rank {rank} is above the largest of these adapters; give a rank from 1 to {most}")
