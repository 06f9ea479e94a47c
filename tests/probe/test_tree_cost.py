"""What the prefix tree computes and holds with bottlenecks in its layers, counted from outside."""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from placed_models import Variants, placed_on
from tiers import slow_unless

from adapter_probe.models.methods import Adapters
from adapter_probe.probe.plan import count_work
from adapter_probe.replay import replay, walk
from adapter_probe.spans import span_variants

LENGTHS = (5, 5, 5)
N_TOKENS = sum(LENGTHS)
QUERY, KEY, FFN_IN = "attention.self.query", "attention.self.key", "intermediate.dense"


class Rows:
    """Rows of every call of the linear maps inside an encoder's layers.

    Counted in their forwards: hooks see what a map is given, before equal rows are left out.

    Attributes:
        calls: (name without the layer, layer, rows) of every call.
    """

    def __init__(self, model: torch.nn.Module):
        self.calls: list[tuple[str, int, int]] = []
        for layer, module in enumerate(model.base_model.encoder.layer):
            for name, linear in module.named_modules():
                if isinstance(linear, torch.nn.Linear):
                    linear.forward = self._counted(name, layer, linear.forward)

    def _counted(self, name: str, layer: int, forward: Callable) -> Callable:
        def counted(x: torch.Tensor) -> torch.Tensor:
            self.calls.append((name, layer, x.numel() // x.shape[-1]))
            return forward(x)

        return counted

    def of(self, name: str) -> Counter:
        """Rows in all, by layer."""
        rows: Counter = Counter()
        for called, layer, n_rows in self.calls:
            rows[layer] += n_rows if called == name else 0
        return rows

    def nodes(self, name: str, n_layers: int, last: int) -> int:
        """Passes of a whole batch through the maps called `name`; the last layer has `last` rows a pass."""
        per_pass = [N_TOKENS] * (n_layers - 1) + [last]
        passes = [divmod(self.of(name)[layer], rows) for layer, rows in enumerate(per_pass)]
        assert not any(rest for _, rest in passes)
        return sum(whole for whole, _ in passes)


@pytest.fixture(scope="module", autouse=True)
def unchecked() -> Iterator[None]:
    """Only a first batch is compared with the model's own forward, which would count."""
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(replay, "_BATCHES_BETWEEN_CHECKS", 10**9)
        yield


@pytest.fixture(scope="module")
def narrow(tiny_base: Callable, tiny_examples: Callable) -> Callable[..., tuple[Variants, Rows]]:
    """``narrow(layers, sites="both")``: a very small BERT, prepared, and the rows of its calls."""

    def make(layers: int, sites: str = "both") -> tuple[Variants, Rows]:
        placed = placed_on(tiny_base("bert", layers=layers, hidden=12, heads=2), Adapters(2, sites=sites))
        made = Variants(placed, tiny_examples("bert", LENGTHS))
        made(np.ones((1, 2 * layers), dtype=bool))  # the first batch
        return made, Rows(made.model)

    return make


@pytest.mark.parametrize("tokens_per_pass", slow_unless((140).__eq__, [140, 10**9]))
def test_78_spans_of_twelve_layers_cost_298_attention_and_376_ffn_passes(tokens_per_pass, narrow):
    variants, rows = narrow(12)
    masks = span_variants(12).masks
    assert len(masks) == 1 + 78
    variants(masks, tokens_per_pass)
    # In the last layer only the first tokens ask and go on.
    assert rows.nodes(QUERY, 12, last=len(LENGTHS)) == rows.nodes(KEY, 12, last=N_TOKENS) == 298
    assert rows.nodes(FFN_IN, 12, last=len(LENGTHS)) == 376
    assert count_work(masks, np.array(LENGTHS)).layer_evaluations == (298, 376)


SITES = ("both", "attention", "ffn")


@pytest.fixture(scope="module", params=SITES)
def three_layers(narrow: Callable, request: pytest.FixtureRequest) -> tuple[Variants, Rows]:
    return narrow(3, request.param)


@pytest.mark.parametrize("three_layers", slow_unless("both".__eq__, SITES), indirect=True)
@given(arrays(bool, st.tuples(st.integers(1, 12), st.just(6))), st.integers(1, 200))
def test_work_is_counted_as_it_is_done(three_layers, masks, tokens_per_pass: int):
    """Sublayers run once for every state that differs, adapters once for every variant of a layer."""
    variants, rows = three_layers
    rows.calls.clear()
    variants(masks, tokens_per_pass)
    has_adapter = variants.replay.has_adapter
    done = tuple(rows.nodes(name, 3, last=len(LENGTHS)) for name in (QUERY, FFN_IN))
    assert count_work(masks | ~has_adapter, np.array(LENGTHS)).layer_evaluations == done
    for site in np.flatnonzero(has_adapter).tolist():
        layer, name = site // 2, ("output", "attention.output")[site % 2 == 0]
        on = {tuple((mask | ~has_adapter)[: 2 * layer + 2]) for mask in masks if mask[site]}
        per_pass = len(LENGTHS) if layer == 2 else N_TOKENS
        assert rows.of(f"{name}.adapter.bottleneck.down")[layer] == len(on) * per_pass


MASKS = {
    "spans of 24 layers": span_variants(24).masks,
    "only a span on": span_variants(24, complement=True).masks,
    "random": np.random.default_rng(0).random((40, 48)) < 0.5,
    "off from some site on": np.tril(np.ones((49, 48), dtype=bool), -1),
    "on from some site on": ~np.tril(np.ones((49, 48), dtype=bool), -1),
    "on at one site": np.eye(48, dtype=bool),
}


@pytest.mark.parametrize("name", slow_unless("random".__eq__, MASKS))
@pytest.mark.slow
def test_no_sublayer_takes_more_rows_than_allowed(name: str, narrow: Callable):
    masks = MASKS[name]
    variants, rows = narrow(24)
    for tokens_per_pass in (140, N_TOKENS * len(masks)):
        rows.calls.clear()
        variants(masks, tokens_per_pass)
        most = max(n_rows for _, _, n_rows in rows.calls)
        assert most <= tokens_per_pass
        distinct = len(np.unique(masks, axis=0))
        assert most > 0.5 * min(tokens_per_pass, N_TOKENS * distinct)  # and the room is used


@pytest.mark.parametrize("tokens_per_pass", [1, 59, 60, 61, 74, 75])
def test_small_passes_take_the_variants_of_one_layer_or_what_fits(tokens_per_pass: int, three_layers):
    """A layer with two sites has four variants of one state, and batches are a quarter of a pass."""
    variants, rows = three_layers
    rows.calls.clear()
    variants(span_variants(3).masks, tokens_per_pass)
    assert max(n_rows for _, _, n_rows in rows.calls) <= max(4 * N_TOKENS, tokens_per_pass)


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of hidden states that wait, at every step of the walk; what is being advanced does not wait."""
    alive: list[weakref.ref] = []
    seen: list[int] = []

    class Watched(walk.Branch):
        def __init__(self, *fields, **named):
            super().__init__(*fields, **named)
            alive.append(weakref.ref(self))

    advanced = walk.Walk._advanced

    def watched(self, branch, *rest):
        alive[:] = [ref for ref in alive if ref() is not None]
        waits = [states for ref in alive if ref() is not branch for states in ref().states.values()]
        held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in waits}
        row = 12 * torch.float64.itemsize
        seen.append(sum(held.values()) // row)
        return advanced(self, branch, *rest)

    monkeypatch.setattr(walk, "Branch", Watched)
    monkeypatch.setattr(walk.Walk, "_advanced", watched)
    return seen


WAITING = [name for name in MASKS if name != "only a span on"]


@pytest.mark.parametrize("name", slow_unless("random".__eq__, WAITING))
@pytest.mark.slow
def test_what_waits_is_bounded_by_the_logarithm_of_the_variants(name, waiting, narrow):
    """Half a pass for each time that the variants can be halved, however many layers there are."""
    variants, _ = narrow(24)
    waiting.clear()
    variants(MASKS[name], 4 * N_TOKENS)
    assert 0 < max(waiting) <= 2 * N_TOKENS * math.log2(len(np.unique(MASKS[name], axis=0)))
