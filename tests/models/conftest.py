"""Models under any method, for labels or for spans, whose every part is far from where it started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForQuestionAnswering, AutoModelForSequenceClassification

from adapter_probe.models.adapted import AdaptedModel
from adapter_probe.models.methods import Method


@pytest.fixture(scope="session")
def make_model(tiny_base: Callable[..., Path]) -> Callable[..., AdaptedModel]:
    """``make_model(family, method, spans=False, dropout=0.1, dtype="float64", moved=True, **base)``.

    A base of `tiny_base(family, **base)` with a random head, for three labels or for spans, and the method
    installed, in evaluation mode. With `moved` the LayerNorms and all that adapters hold, running averages
    included, are random and large enough that leaving one out shows.
    """

    def make(
        family: str,
        method: Method | None,
        *,
        spans: bool = False,
        dropout: float = 0.1,
        dtype: str = "float64",
        moved: bool = True,
        **base: object,
    ) -> AdaptedModel:
        kind = AutoModelForQuestionAnswering if spans else AutoModelForSequenceClassification
        plain = kind.from_pretrained(
            tiny_base(family, **base),
            num_labels=2 if spans else 3,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
        generator = torch.Generator().manual_seed(1)
        model = AdaptedModel(plain)
        with torch.no_grad():
            for group, _, parameter in model.named_roles():
                if group == "head":
                    parameter.normal_(0, 0.3, generator=generator)
        if method is not None:
            model.install(method, generator)
        if moved:
            _move(model, generator)
        return model.to(getattr(torch, dtype)).eval()

    return make


@torch.no_grad()
def _move(model: AdaptedModel, generator: torch.Generator) -> None:
    for group, _, parameter in model.named_roles():
        if group in {"adapters", "layernorms"}:
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    for name, buffer in model.base.named_buffers():
        if name.endswith("adapter.norm.running_mean"):
            buffer.normal_(0, 0.5, generator=generator)
        elif name.endswith("adapter.norm.running_var"):
            buffer.uniform_(0.5, 2, generator=generator)
