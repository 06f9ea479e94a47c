"""The fixtures of these tests, shared with those of `jobs`, and encoders under any method.

The models are for labels or for spans, and their every part is far from where it started.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from learners import learners  # noqa: F401
from training_models import load_plain, with_method
from trainings import (  # noqa: F401
    in_this_process,
    label_task,
    regression_task,
    short_task,
    tag_task,
    train,
    tree,
)

from adapter_probe.models.methods import Method
from adapter_probe.training.model import TrainingModel


@pytest.fixture(scope="session")
def make_model(tiny_base: Callable[..., Path]) -> Callable[..., TrainingModel]:
    """``make_model(family, method, spans=False, dropout=0.1, dtype="float64", moved=True, missing=(), ...)``.

    A base of `tiny_base(family, **base)` with a random head, for three labels or for spans, under the method,
    in evaluation mode. With `moved` the LayerNorms and all that adapters hold, running averages included, are
    random and large enough that leaving one out shows. Parameters in `missing` count as absent in the base.
    """

    def make(
        family: str,
        method: Method,
        *,
        spans: bool = False,
        dropout: float = 0.1,
        dtype: str = "float64",
        moved: bool = True,
        missing: Collection[str] = (),
        **base: object,
    ) -> TrainingModel:
        kind = "extractive" if spans else "classification"
        loaded = load_plain(tiny_base(family, **base), 2 if spans else 3, kind)
        for module in loaded.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = dropout
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for name, parameter in loaded.model.named_parameters():
                if not name.startswith(f"{loaded.model.base_model_prefix}."):
                    parameter.normal_(0, 0.3, generator=generator)
        model = with_method(replace(loaded, missing=frozenset(missing)), method, seed=1, kind=kind)
        if moved:
            _move(model, generator)
        return model.to(getattr(torch, dtype)).eval()

    return make


@torch.no_grad()
def _move(model: TrainingModel, generator: torch.Generator) -> None:
    for group, _, parameter in model.named_roles():
        if group in {"adapters", "layernorms"}:
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    for name, buffer in model.base.named_buffers():
        if name.endswith("norm.running_mean"):
            buffer.normal_(0, 0.5, generator=generator)
        elif name.endswith("norm.running_var"):
            buffer.uniform_(0.5, 2, generator=generator)
