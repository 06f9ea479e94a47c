"""A part of a forward of Transformers: up to a layer, from a layer on, or the last layer for one position."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn


class _Reached(Exception):
    """What a forward was run for is there."""


def output_of(layers: Sequence[nn.Module], run: Callable[[], object]) -> Any:
    """What the last of some layers returns, from a forward that ends there.

    Args:
        layers: the layers in the order of their calls, a module that is called several times repeated.
    """
    outputs: list[Any] = []

    def note(_module: nn.Module, _inputs: tuple, output: Any) -> None:
        outputs.append(output)
        if len(outputs) == len(layers):
            raise _Reached

    with ExitStack() as stack:
        for layer in dict.fromkeys(layers):
            stack.callback(layer.register_forward_hook(note).remove)
        try:
            run()
        except _Reached:
            return outputs[-1]
    raise AssertionError("a layer was not called")


@contextmanager
def passing_over(layers: Sequence[nn.Module], output: Any) -> Iterator[None]:
    """Inside, layers return this in place of computing."""
    with ExitStack() as stack:
        for layer in dict.fromkeys(layers):
            assert "forward" not in vars(layer), "a layer with its own forward cannot be passed over"
            layer.forward = lambda *_, **__: output  # type: ignore[method-assign]
            stack.callback(delattr, layer, "forward")
        yield


@contextmanager
def computing_first(layers: Sequence[nn.Module], modules: Sequence[nn.Module]) -> Iterator[None]:
    """Inside one forward, modules of the last layer compute the first position of every row alone.

    Residual sums add the one position to all, so that only the first is right.

    Args:
        modules: of the last layer, after its attention, which are given states of all positions.
    """
    left = layers.count(layers[-1])

    def count(_module: nn.Module, _inputs: tuple) -> None:
        nonlocal left
        left -= 1

    def cut(_module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        return None if left else tuple(given[:, :1] for given in inputs)

    with ExitStack() as stack:
        stack.callback(layers[-1].register_forward_pre_hook(count).remove)
        for module in modules:
            stack.callback(module.register_forward_pre_hook(cut).remove)
        yield
