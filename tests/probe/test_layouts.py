"""The layout of a language model's rows: where a context and its continuations may share one."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from refusals import naming
from tiny_families import SINGLE, family

from adapter_probe.data.requests_encoding import EncodedRequests
from adapter_probe.data.token_trees import grow_tree
from adapter_probe.errors import ModelError
from adapter_probe.probe import layouts
from adapter_probe.probe.layouts import choose_layout
from adapter_probe.probe.rows import text_of

SHARED = (
    "llama", "qwen2", "qwen3", "qwen3_moe", "phi", "phi3", "falcon(rotary)", "gpt2", "gpt_bigcode",
    "gpt_neox", "opt", "stablelm", "olmo2", "olmoe", "granite", "cohere",
)  # fmt: skip
OWN = (
    "mistral(window)", "bloom", "mpt", "mamba", "mamba2", "rwkv", "jamba", "recurrent_gemma", "lfm2",
    "qwen3_next",
)  # fmt: skip
QUICK = ("llama", "mamba", "mistral(window)", "cohere")


def requests(shapes: tuple = ((7, (2, 3, 1)), (4, (5, 2)), (9, (3, 3)))) -> EncodedRequests:
    """Items by the tokens of their contexts and continuations."""
    generator = np.random.default_rng(0)

    def tokens(n: int) -> list[int]:
        return generator.integers(5, 100, n).tolist()

    contexts = [(tokens(m), [tokens(k) for k in sizes]) for m, sizes in shapes]
    trees = tuple(grow_tree([(context, own) for own in ends], 60) for context, ends in contexts)
    n_tokens = np.array([[*map(len, ends), 0, 0][:3] for _, ends in contexts])
    return EncodedRequests(trees, np.arange(3), 3, n_tokens, "")


def test_a_text_of_a_tree_is_its_continuation_with_its_context():
    encoded = requests()
    text = text_of(encoded.trees[0], 1)
    assert len(text.tokens) == 7 + 3 - 1
    assert text.is_one_text
    assert text.read.tolist() == [6, 7, 8]
    assert text.tokens[7:].tolist() == text.targets[:2].tolist()


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        pytest.param(name, layout, marks=() if name in QUICK else pytest.mark.slow)
        for names, layout in ((SHARED, "shared"), (OWN, "texts"))
        for name in names
    ],
)
def test_contexts_share_a_row_where_the_scores_stay_the_same(name, layout):
    model, _ = family(name)
    dtype = torch.float32 if name in SINGLE else torch.float64
    found, is_last = choose_layout(model, requests(), dtype, torch.device("cpu"))
    assert found == layout
    assert is_last == (name not in ("cohere", "recurrent_gemma"))  # they scale or cap the logits


def test_a_model_without_finite_logits_is_refused_with_the_reason():
    model, _ = family("llama")
    with torch.no_grad():
        model.get_output_embeddings().weight.fill_(float("inf"))
    with pytest.raises(ModelError, match=naming("NaN", "infinite", "--base")):
        choose_layout(model, requests(), torch.float64, torch.device("cpu"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rwkv", "lfm2", "recurrent_gemma", "qwen3_next"])
def test_the_item_that_decides_is_neither_the_shortest_nor_the_longest(name):
    encoded = requests(((3, (1,)), (10, (2, 3, 4)), (40, (5,))))
    model, _ = family(name)
    assert choose_layout(model, encoded, torch.float64, torch.device("cpu"))[0] == "texts"


def test_likely_continuations_are_held_to_the_rounding_of_their_logits(monkeypatch):
    """Their log-likelihoods are near 0, and what is subtracted to give them is large, and rounded."""
    model, _ = family("llama")
    model = model.bfloat16()
    contexts = np.random.default_rng(0).integers(5, 100, (3, 9)).tolist()
    with torch.no_grad():
        model.get_output_embeddings().weight *= 60
        logits = model(torch.tensor(contexts)).logits[:, -1].float()
    size, likely = float(logits.abs().max()), logits.argmax(-1).tolist()
    assert logits.log_softmax(-1).amax(-1).abs().max() < size / 10
    trees = tuple(grow_tree([(one, [token])], 60) for one, token in zip(contexts, likely))
    encoded = EncodedRequests(trees, np.arange(3), 1, np.ones((3, 1), dtype=np.int64), "")
    computed = layouts._scores
    for rounding, fits in ((2**-8, True), (2**-4, False)):  # bfloat16 has eight bits
        monkeypatch.setattr(layouts, "_scores", lambda *given, by=rounding: computed(*given) + by * size)
        with (
            nullcontext()
            if fits
            else pytest.raises(ModelError, match=naming("bfloat16", "--precision float32"))
        ):
            choose_layout(model, encoded, torch.bfloat16, torch.device("cpu"), share=False)


def test_half_precision_may_be_kept_from_sharing():
    model, _ = family("llama")
    where = torch.device("cpu")
    assert choose_layout(model, requests(), torch.float64, where, share=False)[0] == "texts"


def test_rows_of_positions_that_depend_on_their_length_are_not_padded():
    model, _ = family("llama")
    model.config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    assert choose_layout(model, requests(), torch.float64, torch.device("cpu"))[0] == "alone"


def test_a_model_that_does_not_run_in_a_precision_says_so(monkeypatch):
    model, _ = family("llama")

    def forward(*_args: object, **_kwargs: object) -> None:
        raise RuntimeError("Expected mat_a to be Float32,\ngot Double")  # as experts in float64

    monkeypatch.setattr(model.model, "forward", forward)
    with pytest.raises(ModelError, match=naming("float64", "mat_a")) as caught:
        choose_layout(model, requests(), torch.float64, torch.device("cpu"))
    assert "\n" not in str(caught.value)
