"""A model on several devices: what goes where, by the memory that is free, and hooks that move the states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from adapter_probe.device import available_memory, devices_like
from adapter_probe.errors import ModelError

SHARE = 0.8
"""Of the free memory of a device, for weights; the rest is for states."""
_BITS = {"load_in_4bit": 4, "load_in_8bit": 8}
_PER_BLOCK = 1.125  # scales of blocks of numbers, beside the numbers themselves
Size = Callable[[nn.Module], int]


def free_places(device: torch.device) -> dict[str, int]:
    """Bytes for weights on each device of a kind, on the host, and on disk, in the order of their use."""
    found = {str(one): int(SHARE * available_memory(one)) for one in devices_like(device)}
    return {**found, "cpu": int(SHARE * available_memory(torch.device("cpu"))), "disk": 1 << 60}


def places_of(model: nn.Module, free: Mapping[str, int], size: Size | None = None) -> dict[str, str]:
    """Where each part of a model goes: layers one after the other, and everything else on the first device.

    A layer is whole on one device. No memory is touched, so the model may be without weights.

    Args:
        free: bytes of each place, in order; see `free_places`.
        size: bytes of a module's weights; by default as they are.

    Returns:
        places by the names of modules, and of parameters that belong to no part.

    Raises:
        ModelError: what is outside the layers does not fit on the first device, or a layer nowhere.
    """
    size = size or stored_bytes
    layers = dict(_layers(model))
    others = dict(_others(model, layers))
    first, *_ = free
    left = dict(free)
    left[first] -= sum(memory_by_place(model, dict.fromkeys(others, first), size).values())
    if left[first] < 0:
        raise ModelError(
            f"what is outside the layers needs {(free[first] - left[first]) / 1e9:.1f} GB, and {first} has "
            f"{free[first] / 1e9:.1f} GB for weights; give --device cpu, or a base in fewer bits"
        )
    found, order = dict.fromkeys(others, first), list(left)
    for name, layer in layers.items():
        needed = size(layer)
        while order and left[order[0]] < needed:
            order.pop(0)
        if not order:
            rooms = ", ".join(f"{place} {room / 1e9:.1f} GB" for place, room in free.items())
            raise ModelError(
                f"a layer of {needed / 1e9:.1f} GB, {name}, fits nowhere: there are for weights {rooms}; "
                "give --device cpu, or a base in fewer bits"
            )
        left[order[0]] -= needed
        found[name] = order[0]
    return found


def memory_by_place(model: nn.Module, places: Mapping[str, str], size: Size | None = None) -> dict[str, int]:
    """Bytes of weights in each place; what two parts share counts once."""
    found: dict[str, int] = {}
    seen: set[torch.Tensor] = set()
    for name, place in places.items():
        part = _part(model, name)
        own = {part} if isinstance(part, torch.Tensor) else {*part.parameters(), *part.buffers()}
        if own and not own <= seen:
            n_bytes = part.nbytes if isinstance(part, torch.Tensor) else (size or stored_bytes)(part)
            found[place] = found.get(place, 0) + n_bytes
        seen |= own
    return found


def stored_bytes(module: nn.Module) -> int:
    """Bytes of a module's parameters and buffers, each counted once."""
    return sum(tensor.nbytes for tensor in {*module.parameters(), *module.buffers()})


def quantised_bytes(settings: Mapping[str, Any], dtype: torch.dtype) -> Size:
    """Bytes of a module whose linear maps in the layers are stored in few bits; the estimate is an upper one.

    Args:
        settings: ``quantization_config`` of the base.
        dtype: precision of everything else.
    """
    bits = next((b for name, b in _BITS.items() if settings.get(name)), settings.get("bits", 0))
    if not bits:  # as torchao names its kinds: int4, int8, float8
        bits = 4 if "4" in str(settings.get("quant_type", "")) else 8

    def size(module: nn.Module) -> int:
        linear = {id(m.weight) for m in module.modules() if isinstance(m, nn.Linear) and m is not module}
        whole = {id(p): p for p in (*module.parameters(), *module.buffers())}
        few = sum(int(p.numel() * bits / 8 * _PER_BLOCK) for key, p in whole.items() if key in linear)
        return few + sum(p.numel() * dtype.itemsize for key, p in whole.items() if key not in linear)

    return size


def spread(model: nn.Module, places: Mapping[str, str]) -> None:
    """Put the parts of a model in memory in their places, in place, by hooks of accelerate."""
    from accelerate import dispatch_model  # which PEFT needs, too

    first = next(iter(places.values()))
    for name, place in places.items():
        if isinstance(part := _part(model, name), torch.Tensor):  # hooks are of modules
            part.data = part.to(place)
    # accelerate knows tied weights by their address, which nothing that is read from disk may have later.
    every = [p.data for _, p in model.named_parameters(remove_duplicate=False)]
    addresses = Counter(tensor.data_ptr() for tensor in every)
    tied = [tensor for tensor in every if addresses[tensor.data_ptr()] > 1]
    folder = TemporaryDirectory(prefix="adapter-probe-") if "disk" in places.values() else None
    main = next((place for place in places.values() if place not in ("cpu", "disk")), first)
    dispatch_model(
        model, dict(places), main_device=main, offload_dir=folder and folder.name, force_hooks=True
    )
    if folder is not None:
        vars(model)["_offloaded"] = folder, tied  # removed with the model


def _part(model: nn.Module, name: str) -> Any:
    """A module, parameter or buffer by its name."""
    parent, _, own = name.rpartition(".")
    return getattr(model.get_submodule(parent), own)


def _layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The layers of every stack, in order; nothing that is inside one."""
    seen: list[str] = []
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{own}.") for own in seen)
        if isinstance(module, nn.ModuleList) and len(module) > 1 and not inside:
            for number, layer in enumerate(module):
                seen.append(f"{name}.{number}")
                yield seen[-1], layer


def _others(model: nn.Module, layers: Mapping[str, nn.Module]) -> Iterator[tuple[str, Any]]:
    """The largest parts without a layer inside, and parameters of what has one."""
    above = {name[:i] for name in layers for i, letter in enumerate(name) if letter == "."} | {""}
    for name in sorted(above):
        module = model.get_submodule(name)
        for own, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            yield f"{name}.{own}".lstrip("."), tensor
        for own, part in module.named_children():
            full = f"{name}.{own}".lstrip(".")
            if full not in above and full not in layers:
                yield full, part
