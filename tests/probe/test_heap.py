"""Memory that is free goes back to the system, and does not pile up during a walk through the tree."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from adapter_probe.probe import lanes

only_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be asked")

# 79 variants of 1,200 tokens; the states of a pass take 14 MB at most.
WALK = """
import numpy as np, resource, torch
from pathlib import Path
from transformers import BertConfig, BertForSequenceClassification
from placed_models import place
from adapter_probe.ablation_settings import AblationSettings
from adapter_probe.data.encoding import Encoded
from adapter_probe.data.examples import Examples
from adapter_probe.models.methods import Adapters
from adapter_probe.probe.runners import model_runners
from adapter_probe.probe.request import AblationRequest
from adapter_probe.spans import span_variants
from types import SimpleNamespace

torch.set_num_threads(1)
shape = dict(hidden_size=192, num_hidden_layers=12, num_attention_heads=3, intermediate_size=384)
placed = place(BertForSequenceClassification(BertConfig(**shape, vocab_size=50)).eval(), Adapters(size=8))
texts = np.random.default_rng(0).integers(5, 50, (4, 300))
examples = Examples(None, Encoded(tuple(texts), tuple(np.zeros_like(texts)), ""))
opened, cpu = SimpleNamespace(model=placed.base, embedding=None, quantised=None), torch.device("cpu")
request = AblationRequest(opened, examples, "accuracy", AblationSettings(), cpu)
runner = next(model_runners(request, torch.float32, 1))
in_use = lambda: int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20
before, most = in_use(), []
masks = span_variants(12).masks
note = lambda: most.append(in_use())
runner.outputs(np.arange(4), masks, 2400, note)
print(max(most) - before)
"""


def test_another_c_library_keeps_its_memory(monkeypatch: pytest.MonkeyPatch):
    """Neither `mallopt` nor `malloc_trim` is everywhere; without them there is only more memory in use."""
    monkeypatch.setattr(lanes.ctypes, "CDLL", lambda name: object())
    lanes.return_free_memory(1 << 20)
    lanes.share_one_heap(1)


@only_glibc
def test_free_memory_goes_back():
    def in_use() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20

    pieces = [np.ones((1 << 16) // 8) for _ in range(3200)]  # each too small to be mapped by itself
    last = pieces.pop()  # above the gap, so that the heap cannot just end earlier
    full = in_use()
    del pieces
    lanes.return_free_memory(1 << 20)
    assert in_use() < full - 100
    assert last.all()


@pytest.mark.slow
@only_glibc
def test_a_walk_leaves_no_gaps_behind():
    """Without handing memory back it took 510 MiB."""
    done = subprocess.run(
        [sys.executable, "-c", WALK],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "fixtures")},
    )
    assert int(done.stdout) < 150
