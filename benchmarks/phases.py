"""Calls and rows of linear maps by phase of a run, which do not depend on what else the machine does.

``python benchmarks/phases.py WIDTH CHECKPOINT --base MODEL --data TEXTS --precision mixed ...``, with the
arguments of ``adapter-probe ablate``. Rows are those of a square map of this width: a map of other sizes
counts by its multiplications. Rows of zeros that packed maps add are left out, and so is the fold of the last
layer.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from adapter_probe.cli.main import main
from adapter_probe.models.functional import PackedMap
from adapter_probe.probe.engine import Engine
from adapter_probe.replay import replay

PHASES = {
    Engine: ("_prepare", "_sample_logits", "_tree", "_pairs"),
    replay: ("describe", "refuse_coupled", "spared_positions", "find_plan"),
    replay.Replay: ("in_precision", "find_packing", "find_padding", "check"),
}


def count() -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
    """Calls and multiplications by phase and precision, which are filled while the program runs."""
    within, calls, products = ["elsewhere"], Counter(), Counter()

    def counting(forward: Callable[..., Tensor], given: int) -> Callable[..., Tensor]:
        def called(*args: Any) -> Tensor:
            out, x = forward(*args), args[given]
            key = (within[-1], str(x.dtype).removeprefix("torch."))
            calls[key] += 1
            products[key] += x.numel() * out.shape[-1]
            return out

        return called

    def phase(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            sampled = name == "_pairs" and within[-1] == "sample_logits"
            within.append("sample" if sampled else name.strip("_"))
            try:
                return function(*args, **kwargs)
            finally:
                within.pop()

        return called

    torch.nn.functional.linear = counting(torch.nn.functional.linear, 0)
    PackedMap.__call__ = counting(PackedMap.__call__, 1)
    for owner, names in PHASES.items():
        for name in names:
            setattr(owner, name, phase(name, getattr(owner, name)))
    return calls, products


if __name__ == "__main__":
    calls, products = count()
    width = int(sys.argv.pop(1))
    sys.argv[1:1] = ["ablate"]
    try:
        main()
    finally:
        for key in sorted(calls):
            print(*key, f"{calls[key]:,} calls, {products[key] / width**2:,.0f} rows", sep="\t")
