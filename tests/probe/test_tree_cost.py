"""What the prefix tree computes and holds, counted from outside."""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tiers import slow_unless

from adapter_probe.data.packing import PackedBatch, pack
from adapter_probe.models.adapted import AdaptedModel
from adapter_probe.probe import tree
from adapter_probe.probe.plan import count_work
from adapter_probe.probe.tree import forward_variants
from adapter_probe.spans import span_variants


class Rows:
    """Rows of every call of every linear map inside the encoder's layers, by forward hooks.

    Attributes:
        calls: (name without the layer, layer, rows) of every call.
    """

    def __init__(self, model: AdaptedModel):
        self.calls: list[tuple[str, int, int]] = []
        for layer, module in enumerate(model.base.base_model.encoder.layer):
            for name, linear in module.named_modules():
                if isinstance(linear, torch.nn.Linear):
                    linear.register_forward_hook(self._hook(name, layer))

    def _hook(self, name: str, layer: int) -> Callable:
        def note(_module, inputs, _output):
            self.calls.append((name, layer, inputs[0].numel() // inputs[0].shape[-1]))

        return note

    def of(self, name: str) -> Counter:
        """Rows in all, by layer."""
        rows: Counter = Counter()
        for called, layer, n_rows in self.calls:
            rows[layer] += n_rows if called == name else 0
        return rows

    def nodes(self, name: str, batch: PackedBatch, n_layers: int, last: int) -> int:
        """Passes of a whole batch through the maps called `name`; the last layer has `last` rows a pass."""
        per_pass = [batch.n_tokens] * (n_layers - 1) + [last]
        passes = [divmod(self.of(name)[layer], rows) for layer, rows in enumerate(per_pass)]
        assert not any(rest for _, rest in passes)
        return sum(whole for whole, _ in passes)


QUERY, KEY, FFN_IN = "attention.self.query", "attention.self.key", "intermediate.dense"


@pytest.fixture(scope="module")
def narrow(tiny_model: Callable) -> Callable[[int], tuple[AdaptedModel, Rows]]:
    """``narrow(layers)``: a very small BERT, and the rows of its calls."""

    def make(layers: int) -> tuple[AdaptedModel, Rows]:
        model, _ = tiny_model("bert", layers=layers, hidden=12, heads=2, size=2)
        return model, Rows(model)

    return make


@pytest.mark.parametrize("tokens_per_pass", [140, 10**9])
def test_78_spans_of_twelve_layers_cost_298_attention_and_376_ffn_passes(
    tokens_per_pass: int, narrow: Callable, tiny_examples: Callable
):
    model, rows = narrow(12)
    batch = pack(tiny_examples("bert", [5, 3, 5, 7]), range(4))
    masks = span_variants(12).masks
    assert len(masks) == 1 + 78
    forward_variants(model, batch, masks, tokens_per_pass=tokens_per_pass)
    # In the last layer only the 4 first tokens ask and go on, and no token is made a key.
    assert rows.nodes(QUERY, batch, 12, last=4) == 298
    assert rows.of(KEY)[11] == 0
    assert rows.nodes(KEY, batch, 11, last=20) == 298 - (1 + 11 * 12 // 2)
    assert rows.nodes(FFN_IN, batch, 12, last=4) == 376
    assert count_work(masks, np.array([5, 3, 5, 7])).layer_evaluations == (298, 376)


@pytest.fixture(scope="module")
def three_layers(narrow: Callable) -> tuple[AdaptedModel, Rows]:
    return narrow(3)


@given(arrays(bool, st.tuples(st.integers(1, 12), st.just(6))), st.integers(1, 200))
@settings(max_examples=50, deadline=None)
def test_work_is_counted_as_it_is_done(three_layers, tiny_examples: Callable, masks, tokens_per_pass: int):
    model, rows = three_layers
    rows.calls.clear()
    batch = pack(tiny_examples("bert", [3, 2, 3]), range(3))
    forward_variants(model, batch, masks, tokens_per_pass=tokens_per_pass)
    done = (rows.nodes(QUERY, batch, 3, last=3), rows.nodes(FFN_IN, batch, 3, last=3))
    assert count_work(masks, np.array([3, 2, 3])).layer_evaluations == done


@given(arrays(bool, st.tuples(st.integers(1, 12), st.just(6))), st.integers(9, 200))
@settings(max_examples=30, deadline=None)
def test_an_adapter_runs_once_for_every_state_that_it_changes(
    three_layers, tiny_examples: Callable, masks, tokens_per_pass: int
):
    """Only where it is on, and once for all the variants that agree up to and including it."""
    model, rows = three_layers
    rows.calls.clear()
    batch = pack(tiny_examples("bert", [3, 2, 3]), range(3))
    forward_variants(model, batch, masks, tokens_per_pass=tokens_per_pass)
    for site in range(6):
        layer, name = site // 2, ("output", "attention.output")[site % 2 == 0]
        per_pass = 3 if layer == 2 else batch.n_tokens
        on = {tuple(mask[: site + 1]) for mask in masks if mask[site]}
        assert rows.of(f"{name}.adapter.down")[layer] == len(on) * per_pass


MASKS = {
    "spans of 24 layers": span_variants(24).masks,
    "only a span on": span_variants(24, complement=True).masks,
    "random": np.random.default_rng(0).random((40, 48)) < 0.5,
    "off from some site on": np.tril(np.ones((49, 48), dtype=bool), -1),
    "on from some site on": ~np.tril(np.ones((49, 48), dtype=bool), -1),
    "on at one site": np.eye(48, dtype=bool),
}


@pytest.mark.parametrize("name", slow_unless("random".__eq__, MASKS))
def test_no_sublayer_takes_more_rows_than_allowed(name: str, narrow: Callable, tiny_examples: Callable):
    masks = MASKS[name]
    model, rows = narrow(24)
    batch = pack(tiny_examples("bert", [4, 2, 4]), range(3))
    for tokens_per_pass in (95, 10 * len(masks)):
        rows.calls.clear()
        forward_variants(model, batch, masks, tokens_per_pass=tokens_per_pass)
        most = max(n_rows for _, _, n_rows in rows.calls)
        assert most <= tokens_per_pass
        assert most > 0.5 * min(tokens_per_pass, 10 * len(np.unique(masks, axis=0)))  # and the room is used


@pytest.mark.parametrize("tokens_per_pass", [1, 5, 10, 11, 19, 20, 29])
def test_small_passes_take_one_batch_or_what_fits(
    tokens_per_pass: int, narrow: Callable, tiny_examples: Callable
):
    model, rows = narrow(3)
    batch = pack(tiny_examples("bert", [4, 2, 4]), range(3))
    forward_variants(model, batch, span_variants(3).masks, tokens_per_pass=tokens_per_pass)
    assert max(n_rows for _, _, n_rows in rows.calls) <= max(10, tokens_per_pass // 10 * 10)


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Rows of hidden states that wait, at every step of the walk; what is being advanced does not wait."""
    alive: list[weakref.ref] = []
    seen: list[int] = []

    class Watched(tree.Branch):
        def __init__(self, *fields):
            super().__init__(*fields)
            alive.append(weakref.ref(self))

    advance = tree._advance

    def watched(model, batch, branch, *rest):
        alive[:] = [ref for ref in alive if ref() is not None]
        waits = [ref().hidden for ref in alive if ref() is not branch]
        held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in waits}
        row = branch.hidden.shape[2] * branch.hidden.element_size()
        seen.append(sum(held.values()) // row)
        return advance(model, batch, branch, *rest)

    monkeypatch.setattr(tree, "Branch", Watched)
    monkeypatch.setattr(tree, "_advance", watched)
    return seen


WAITING = [name for name in MASKS if name != "only a span on"]


@pytest.mark.parametrize("name", slow_unless("random".__eq__, WAITING))
def test_what_waits_is_bounded_by_the_logarithm_of_the_variants(
    name: str, waiting: list[int], narrow: Callable, tiny_examples: Callable
):
    """Half a pass for each time that the variants can be halved, however many layers there are."""
    masks = MASKS[name]
    model, _ = narrow(24)
    batch = pack(tiny_examples("bert", [4, 2, 4]), range(3))
    n_variants = len(np.unique(masks, axis=0))
    forward_variants(model, batch, masks, tokens_per_pass=4 * batch.n_tokens)
    assert 0 < max(waiting) <= 2 * batch.n_tokens * math.log2(n_variants)
