"""The prefix tree, as `adapter-probe ablate` runs it: parts written to a folder, then put together.

What the command does once a run (casting or calibrating) is in the time of every run.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from plain_loop import about, open_case
from protocol import Contender, serve

from adapter_probe.probe.resumable import AblationRun
from adapter_probe.probe.runners import all_logits


class PrefixTree(Contender):
    def open(self, settings: dict[str, Any]) -> dict[str, Any]:
        torch.set_num_threads(settings["threads"])
        self._request = open_case(Path(settings["case"]), settings["precision"])
        self._scratch = Path(settings["scratch"])
        return about(self._request)

    def warm_up(self) -> None:
        """See `Contender.warm_up`: one plain evaluation, as for the loop."""
        all_logits(self._request, self._request.model.module)

    def run(self, share: int, shares: int) -> dict[str, Any]:
        """All variants, whatever the share: the tree lives by what they have in common."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        with AblationRun(self._request, self._scratch) as ablation:
            ablation.compute(lambda tokens: None)
            results = ablation.results()
        self._logits = results.outputs
        return {"variants": len(self._logits)}

    def save(self, path: Path) -> None:
        """Write ``variants`` ``[variants]`` and ``logits`` ``[variants, examples, labels]``."""
        np.savez(path, variants=np.arange(len(self._logits)), logits=self._logits)
        shutil.rmtree(self._scratch, ignore_errors=True)


if __name__ == "__main__":
    serve(PrefixTree())
