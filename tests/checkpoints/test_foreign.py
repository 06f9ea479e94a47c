"""Checkpoints of other libraries, against the logits that these libraries computed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from changed_files import retensor
from exact import Float64, assert_close_in_float32, assert_close_in_float64, to_float64
from mask_loop import read
from peft_cases import base_of, texts
from refusals import names, refuses
from tiers import slow_unless

from adapter_probe.checkpoints.base import SharedBase, load_any_base
from adapter_probe.checkpoints.opened_peft import OpenedPlaced
from adapter_probe.checkpoints.opening import open_any
from adapter_probe.errors import CheckpointError
from adapter_probe.replay.replay import Replay

FIXTURES = Path(__file__).parent / "fixtures"
CASES = sorted(
    path.parent.relative_to(FIXTURES).as_posix() for path in FIXTURES.glob("adapterhub/*/expected.npz")
)
PEFT = sorted(path.parent.relative_to(FIXTURES).as_posix() for path in FIXTURES.glob("peft/*/expected.npz"))


def own_logits(model: torch.nn.Module) -> np.ndarray:
    """Of every text, or of all its tokens, by the model's own forward of each."""
    with torch.no_grad():
        outs = [model(input_ids=torch.from_numpy(ids)[None]) for ids in texts().input_ids]
    found = [
        torch.stack([out.start_logits[0], out.end_logits[0]], -1)
        if hasattr(out, "start_logits")
        else out.logits.flatten(0, -2)
        for out in outs
    ]
    return torch.cat(found).double().numpy()


def test_there_are_cases_of_both_libraries():
    assert len(CASES) >= 24
    assert len(PEFT) >= 11


# A bottleneck, one joined to a LoRA, and logits of every token; the heads are compared below.
QUICK = ("adapterhub/gated-channel", "adapterhub/qa-flex", "adapterhub/union", "peft/gpt2-ia3", "peft/qa")
# Heads that differ most, in either precision.
QUICK_HEADS = {
    torch.float64: ("distilbert-flex", "flex-pooled", "qa-flex"),
    torch.bfloat16: ("flex-first", "roberta-flex"),
}


@pytest.mark.parametrize("case", slow_unless(QUICK.__contains__, [*CASES, *PEFT]))
def test_logits_are_the_librarys_own(case: str):
    folder = FIXTURES / case
    expected = np.load(folder / "expected.npz")
    opened = open_any(folder, base_of(folder))
    model, masks = opened.model, np.repeat(~expected["skipped"], 2, axis=1)
    thorough = case in ("adapterhub/houlsby", "adapterhub/gated-channel") or case not in QUICK
    assert len(masks) == 7, "the intact model and six spans"
    if model.config.pad_token_id is None:
        model.config.pad_token_id = -1
    assert_close_in_float32(own_logits(model), expected["logits"][0], layers=3)
    to_float64(model)
    every_token = opened.description.task.kind == "extractive"
    starts = np.concatenate([[0], np.cumsum(texts().lengths if every_token else np.ones(len(texts()), int))])
    with Float64():
        assert_close_in_float64(own_logits(model), expected["logits"][0])
        for length in np.unique(texts().lengths):
            items = np.flatnonzero(texts().lengths == length)
            inputs = {"input_ids": torch.from_numpy(np.stack([texts().input_ids[i] for i in items]))}
            rows = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in items])
            wanted = expected["logits"][:, rows]
            replay = Replay(model, inputs, read=read)
            # The bound on memory splits the tree; a copy in another order must change nothing either.
            ways = [(length, slice(None, None, -1)), (10_000, slice(None))]
            for most, order in ways if thorough else ways[:1]:
                found = replay.outputs(inputs, masks[order], rows=int(most), read=read)
                assert_close_in_float64(found.reshape(wanted.shape), wanted[order])
            if thorough and not every_token:
                kinds, places = np.indices(wanted.shape[:2]).reshape(2, -1)
                pairs = replay.outputs_of_pairs(inputs, places, masks[kinds], rows=10_000)
                assert_close_in_float64(pairs[:, 0], wanted[kinds, places])


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        pytest.param(case, dtype, marks=() if Path(case).name in quick else pytest.mark.slow)
        for case in CASES
        if "-flex" in case or "/flex-" in case
        for dtype, quick in QUICK_HEADS.items()
    ],
    ids=str,
)
def test_a_librarys_own_head_opens_in_any_precision(case: str, dtype: torch.dtype):
    folder = FIXTURES / case
    model = open_any(folder, base_of(folder), dtype=dtype).model
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    wanted = np.load(folder / "expected.npz")["logits"][0]
    logits = own_logits(model)
    if dtype == torch.float64:
        assert_close_in_float32(logits, wanted, layers=1)
    else:
        np.testing.assert_allclose(logits, wanted, rtol=0, atol=0.1 * wanted.std())


@pytest.mark.slow
@pytest.mark.parametrize(
    "base", sorted({base_of(FIXTURES / case) for case in CASES}), ids=lambda b: Path(b).name
)
def test_on_one_base_in_memory_each_is_what_it_is_alone(base: str):
    shared: dict[str, SharedBase] = {}

    def logits(case: str, shared: SharedBase | None) -> np.ndarray:
        opened = open_any(FIXTURES / case, base, load=shared.load if shared else load_any_base)
        model, sites = opened.model, 2 * opened.description.base.n_layers
        masks = np.tri(sites + 1, sites, dtype=bool)
        inputs = [{"input_ids": torch.from_numpy(ids)[None]} for ids in texts().input_ids]
        found = [Replay(model, one, read=read).outputs(one, masks, read=read) for one in inputs]
        return torch.cat([one.reshape(len(masks), -1, one.shape[-1]) for one in found], dim=1).numpy()

    cases = [case for case in CASES if base_of(FIXTURES / case) == base]
    for case in (*cases, *reversed(cases)):
        own = open_any(FIXTURES / case, base).model
        kept = shared.setdefault(type(own).__name__, SharedBase(torch.device("cpu")))
        np.testing.assert_array_equal(logits(case, kept), logits(case, None), err_msg=case)


def test_notes_tell_what_cannot_be_known():
    opened = open_any(FIXTURES / "adapterhub" / "gated-channel", str(FIXTURES / "bases" / "bert"))
    assert any(names(note, "neither", "LayerNorms", "pooler") for note in opened.notes)
    assert any("padding" in note for note in opened.notes)
    everywhere = open_any(FIXTURES / "peft" / "lora-everywhere", str(FIXTURES / "bases" / "bert"))
    assert any("bert.pooler.dense" in note for note in everywhere.notes)


def test_labels_are_the_checkpoints():
    opened = open_any(FIXTURES / "adapterhub" / "houlsby", str(FIXTURES / "bases" / "bert"))
    assert opened.description.task.label_names == ("bad", "fair", "good")
    assert opened.description.task.kind == "classification"
    assert opened.description.max_length == 24


# --- causal language models

PREFIXES = {"gpt2": "transformer", "llama": "model", "mistral": "model"}
CAUSAL = sorted(path.parent.name for path in FIXTURES.glob("causal/*/logits.npz"))


@pytest.fixture
def causal_base(tmp_path: Path) -> Callable[[str], str]:
    """``causal_base(family) -> folder``: the fixtures' base under the names of a causal model.

    The files hold the encoder alone: GPT-2's output embedding is tied to the input embedding. That of the
    others is 0 here, so that only the one in the adapters' heads makes logits.
    """

    def make(family: str) -> str:
        folder = Path(shutil.copytree(FIXTURES / "bases" / family, tmp_path / family))

        def renamed(plain: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            head = {} if family == "gpt2" else {"lm_head.weight": 0 * plain["embed_tokens.weight"]}
            return {f"{PREFIXES[family]}.{name}": tensor for name, tensor in plain.items()} | head

        retensor(folder / "model.safetensors", renamed)
        return str(folder)

    return make


def case_of(name: str):
    quick = name.startswith("gpt2") or name == "llama-houlsby"
    return name if quick else pytest.param(name, marks=pytest.mark.slow)


@pytest.mark.parametrize("case", [case_of(name) for name in CAUSAL])
def test_logits_of_a_language_model_are_the_librarys_own(case: str, causal_base):
    opened = open_any(FIXTURES / "causal" / case, causal_base(case.partition("-")[0]))
    assert opened.description.task.kind == "causal"
    assert isinstance(opened, OpenedPlaced)
    to_float64(opened.model)
    with Float64():
        got = own_logits(opened.model)
    assert_close_in_float64(got, np.load(FIXTURES / "causal" / case / "logits.npz")["logits"])


def test_a_head_that_is_more_than_an_embedding_is_refused(causal_base, tmp_path: Path):
    folder = Path(shutil.copytree(FIXTURES / "causal" / "gpt2-flex", tmp_path / "c"))
    path = folder / "pytorch_model_head.bin"
    tensors = torch.load(path, weights_only=True)
    torch.save({**tensors, "heads.task.0.bias": torch.zeros(53)}, path)
    refuses(CheckpointError, (str(folder), "causal head", "bias"), open_any, folder, causal_base("gpt2"))
