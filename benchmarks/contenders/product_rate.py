"""What this machine can do: one large square float32 matrix product."""

from __future__ import annotations

import time
from typing import Any

import torch
from protocol import Contender, serve

TIMES = 3


class ProductRate(Contender):
    def open(self, settings: dict[str, Any]) -> dict[str, Any]:
        torch.set_num_threads(settings["threads"])
        self._size = settings["size"]
        generator = torch.Generator().manual_seed(0)
        self._factors = [torch.randn(self._size, self._size, generator=generator) for _ in range(2)]
        return {}

    def warm_up(self) -> None:
        torch.mm(*self._factors)

    def run(self, share: int, shares: int) -> dict[str, Any]:
        """The best of a few, as operations per second."""
        times = []
        for _ in range(TIMES):
            start = time.perf_counter()
            torch.mm(*self._factors)
            times.append(time.perf_counter() - start)
        return {"rate": 2 * self._size**3 / min(times)}


if __name__ == "__main__":
    serve(ProductRate())
