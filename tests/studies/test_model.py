"""`ap.open`: logits with any adapters off, against the transformers model's own forward."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from refusals import refuses

import adapter_probe as ap
from adapter_probe.spans import Span

TEXTS = ["the cat saw a dog", "fine", "a bird was cruel and the house was big", "the dog met the bad cat"]


@pytest.fixture(scope="module")
def model(checkpoint) -> ap.Model:
    return ap.open(checkpoint, dtype="float64")


def own_logits(model: ap.Model, texts: list, first: int | np.ndarray | None = None, last: int | None = None):
    """One example at a time by the transformers model, which knows nothing of packing or of the tree."""

    def run() -> np.ndarray:
        rows = [[text] if isinstance(text, str) else text for text in texts]
        with torch.no_grad():
            inputs = [model.tokenizer(*row, return_tensors="pt").to(model.base.device) for row in rows]
            out = [model.base(**own).logits[0] for own in inputs]
        return torch.stack(out).float().cpu().numpy()

    if first is None:
        return run()
    with model.switched_off(first, last):
        return run()


def test_intact_logits(model):
    np.testing.assert_allclose(model.logits(TEXTS), own_logits(model, TEXTS), atol=1e-6)
    np.testing.assert_allclose(model.logits(TEXTS[0]), own_logits(model, TEXTS[:1]), atol=1e-6)


def test_pairs(model):
    pairs = [("the cat", "a dog"), ("fine house", "bad"), ("a", "the old bird saw")]
    np.testing.assert_allclose(model.logits(pairs), own_logits(model, pairs), atol=1e-6)


@pytest.mark.parametrize("off", [(0, 0), (1, 2), (0, 2), 1])
def test_a_span_off(model, off):
    first, last = off if isinstance(off, tuple) else (off, off)
    expected = own_logits(model, TEXTS, first, last)
    np.testing.assert_allclose(model.logits(TEXTS, off=off), expected, atol=1e-6)
    assert np.abs(expected - own_logits(model, TEXTS)).max() > 1e-3


def test_any_masks_and_switching_ends_with_the_block(model):
    masks = np.random.default_rng(0).random((5, model.n_sites)) < 0.5
    together = model.variants(TEXTS, masks)
    assert together.shape == (5, len(TEXTS), 2)
    assert together.dtype == np.float32
    for mask, logits in zip(masks, together):
        np.testing.assert_allclose(logits, own_logits(model, TEXTS, mask), atol=1e-6)
        np.testing.assert_allclose(logits, model.logits(TEXTS, off=mask), atol=1e-6)
    with pytest.raises(RuntimeError), model.switched_off(0, 2):
        raise RuntimeError
    np.testing.assert_allclose(own_logits(model, TEXTS), model.logits(TEXTS), atol=1e-6)


def test_a_span_object_is_the_span(model):
    np.testing.assert_array_equal(model.logits(TEXTS, off=Span(0, 1)), model.logits(TEXTS, off=(0, 1)))
    with model.switched_off(Span(0, 1)):
        np.testing.assert_allclose(own_logits(model, TEXTS), model.logits(TEXTS, off=(0, 1)), atol=1e-6)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda m: m.logits([]), ("no texts", "at least one")),
        (lambda m: m.logits(["a", ("b", "c")]), ("texts", "strings", "pairs")),
        (lambda m: m.logits(["a"], off=(2, 1)), ("off=(2, 1)", "0 <= first <= last", "2-1")),
        (lambda m: m.logits(["a"], off=(0, 3)), ("off=(0, 3)", "0 to 2")),
        (lambda m: m.logits(np.array("a")), ("texts=array('a', dtype='<U1')", "list")),
        (lambda m: m.logits(["a"], off=(0, True)), ("masks", "int64", "[1, 2]", "bool", "[variants, 6]")),
        (lambda m: m.logits(["a"], off=-1), ("off=-1", "0 <= first <= last")),
        (lambda m: m.logits(["a"], off=1.5), ("off=1.5", "span", "'float'", "integer")),
        (lambda m: m.logits(["a"], off=(0, 1.5)), ("off=(0, 1.5)", "span", "'float'", "integer")),
        (lambda m: m.logits(["a"], off=True), ("off=True", "layer", "number", "span", "mask")),
        (lambda m: m.logits([3]), ("texts", "strings", "pairs")),
        (lambda m: m.logits(None), ("texts=None", "list")),
        (lambda m: m.logits({"text": "a"}), ("texts={'text': 'a'}", "list")),
        (lambda m: m.logits(pd.DataFrame({"text": ["a"]})), ("texts=", "text 0", "list")),
        (lambda m: m.variants(7, np.ones((1, 6), bool)), ("texts=7", "list")),
        (lambda m: m.logits(["a"], off="0"), ("off='0'", "span", "'str'", "integer")),
        (lambda m: m.logits(["a"], off=10**400), ("off=", "…", "0 to 2")),
        (
            lambda m: m.logits(["a"], off=[[True], [False, True]]),
            ("off=[[True], [False, True]]", "span", "mask"),
        ),
        (lambda m: m.variants(["a"], None), ("masks", "None", "ndarray")),
        (lambda m: m.logits([("a", None)]), ("None", "string")),
        (lambda m: m.logits("\udcff"), (r"'\udcff'", "string", "Unicode")),
        (lambda m: m.variants(["a"], np.ones((1, 3), bool)), ("bool", "[1, 3]", "[variants, 6]")),
        (lambda m: m.variants(["a"], np.ones((1, 6))), ("float64", "[1, 6]", "bool", "[variants, 6]")),
        (lambda m: m.variants(["a"], np.ones((0, 6), bool)), ("bool", "[0, 6]", "[variants, 6]")),
    ],
)
def test_what_does_not_fit_is_one_line(model, wrong, words):
    refuses(ap.AdapterProbeError, words, wrong, model)


def test_a_base_given_as_a_path_is_the_base(checkpoint, tiny_base):
    given = ap.open(checkpoint, base=Path(tiny_base("bert")), dtype="float64")
    np.testing.assert_array_equal(given.logits(TEXTS), ap.open(checkpoint, dtype="float64").logits(TEXTS))


def test_what_it_says_of_itself(model):
    assert (model.n_layers, model.n_sites, model.has_adapter.tolist()) == (3, 6, [True] * 6)
    assert "3 layers" in repr(model)
    assert "6 of 6 sites" in repr(model)
    assert len(model.label_names) == 2
