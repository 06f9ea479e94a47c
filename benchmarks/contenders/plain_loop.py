"""Our own model in a plain loop: the adapters of a span's sites switched off, one evaluation a span.

The same encoder, examples and batches without padding as the tree's: nothing but the tree differs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from protocol import serve
from variants import OneByOne, exact_groups, touch

from adapter_probe.ablation_settings import AblationSettings
from adapter_probe.probe.ablation_arguments import AblationArguments
from adapter_probe.probe.request import AblationRequest, prepare_ablation
from adapter_probe.probe.runners import all_logits


def open_case(case: Path, precision: str) -> AblationRequest:
    """The case as `adapter-probe ablate` would open it."""
    arguments = AblationArguments(
        str(case / "adapter"),
        AblationSettings(precision=precision),
        base=str(case / "model"),
        data=(str(case / "texts.tsv"),),
    )
    return prepare_ablation(arguments, torch.device("cpu"))


def about(request: AblationRequest) -> dict[str, Any]:
    """What the driver should know of an opened case; every weight has been read."""
    touch(request.model.module.parameters())
    lengths = request.encoded.lengths
    return {
        "examples": len(request.examples),
        "tokens": int(lengths.sum()),
        "groups": exact_groups(lengths),
        "variants": len(request.variants.masks),
    }


class PlainLoop(OneByOne):
    def load(self, settings: dict[str, Any]) -> dict[str, Any]:
        self._request = open_case(Path(settings["case"]), "float32")
        return about(self._request)

    def evaluate(self, variant: int) -> np.ndarray:
        with self._request.model.switched_off(self._request.variants.masks[variant]):
            return self.logits_now()

    def logits_now(self) -> np.ndarray:
        """Logits ``[examples, labels]`` of the model as it is switched."""
        return all_logits(self._request, self._request.model.module)


if __name__ == "__main__":
    serve(PlainLoop())
