"""Log-likelihoods of continuations against transformers' own forward, each text run whole and alone."""

from __future__ import annotations

from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import peft
import pytest
import torch
from exact import assert_close_in_float32
from tiers import slow_unless
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from adapter_probe.data.batches import NO_TAG
from adapter_probe.data.requests_encoding import EncodedRequests
from adapter_probe.data.token_trees import grow_tree
from adapter_probe.probe import likelihoods
from adapter_probe.probe.layouts import choose_layout
from adapter_probe.probe.likelihoods import (
    WrittenScores,
    compare_states,
    score_states,
    summed_by_continuation,
)
from adapter_probe.probe.rows import Scorer, rows_of
from adapter_probe.replay.replay import Replay

CPU = torch.device("cpu")
WORDS, LAYERS, RANK, SCALE = 50, 3, 2, 1.5
SMALL = {"vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
CONFIGS = {
    "gpt2": GPT2Config(n_layer=LAYERS, n_embd=24, n_head=3, n_positions=24, **SMALL),
    "llama": LlamaConfig(
        num_hidden_layers=LAYERS, hidden_size=24, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=40, max_position_embeddings=24, **SMALL,
    ),
}  # fmt: skip
# One map in the attention sublayer and one in the feed-forward sublayer: a layer's two sites.
TARGETS = {"gpt2": ("attn.c_attn", "mlp.c_fc"), "llama": ("self_attn.v_proj", "mlp.down_proj")}
LAYER = {"gpt2": "transformer.h.{}.", "llama": "model.layers.{}."}


@pytest.fixture(params=CONFIGS)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


def plain_and_tuned(family: str) -> tuple[nn.Module, peft.PeftModel, list[str]]:
    """The model of transformers without LoRA, and PEFT's with it, far from the identity; float64."""
    torch.manual_seed(0)
    plain = AutoModelForCausalLM.from_config(CONFIGS[family]).double().eval()
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    names = [LAYER[family].format(i) + target for i in range(LAYERS) for target in TARGETS[family]]
    config = peft.LoraConfig(
        task_type="CAUSAL_LM", r=RANK, lora_alpha=SCALE * RANK, target_modules=[*TARGETS[family]],
        fan_in_fan_out=family == "gpt2",
    )  # fmt: skip
    model = peft.get_peft_model(deepcopy(plain), config).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.5 * torch.randn_like(parameter))
    return plain, model, names


def merged(plain: nn.Module, model: peft.PeftModel, names: list[str], mask: np.ndarray) -> nn.Module:
    """Transformers' model with the LoRA products of the sites that are on added to its weights."""
    own, whole = dict(model.get_base_model().named_parameters()), deepcopy(plain)
    for on, name in zip(mask, names):
        if on:
            change = SCALE * own[f"{name}.lora_B.default.weight"] @ own[f"{name}.lora_A.default.weight"]
            weight = whole.get_submodule(name).weight
            weight.data += change if change.shape == weight.shape else change.T
    return whole


def outputs(
    model: nn.Module, encoded: EncodedRequests, items: np.ndarray, masks: np.ndarray, rows: int
) -> dict[str, np.ndarray]:
    """What replay finds in rows that share contexts."""
    layout, is_last = choose_layout(model, encoded, torch.float64, CPU)
    assert (layout, is_last) == ("shared", True)
    found: dict[str, np.ndarray] = {}
    replay = None
    for batch in rows_of(encoded, items, layout, torch.float64, CPU):
        read = Scorer(batch, is_last)
        replay = replay or Replay(model, batch.inputs, read=read)
        scored = replay.outputs(batch.inputs, masks, rows=rows, read=read)
        for name, own in summed_by_continuation(batch.batch, scored, len(items)).items():
            found[name] = (
                own if name not in found else found[name] & own if name == "greedy" else found[name] + own
            )
    return found


def separately(whole, context: list[int], continuation: list[int], most: int) -> tuple[float, bool]:
    """Sum over the continuation's tokens, from one run of the whole text."""
    text = (context + continuation)[-(most + 1) :]
    with torch.no_grad():
        logits = whole(torch.tensor([text[:-1]])).logits[0].log_softmax(-1)[-len(continuation) :]
    targets = torch.tensor(continuation)
    chosen = logits[torch.arange(len(targets)), targets]
    return float(chosen.sum()), bool((logits.argmax(-1) == targets).all())


def random_texts(seed: int, n_items: int) -> list[list[tuple[list[int], list[int]]]]:
    """Contexts with several continuations; many begin alike, one is a beginning of another."""
    draw = np.random.default_rng(seed)
    items = []
    for _ in range(n_items):
        context = draw.integers(3, WORDS, draw.integers(1, 9)).tolist()
        first = draw.integers(3, WORDS, draw.integers(1, 6)).tolist()
        others = [
            first[: draw.integers(0, len(first) + 1)] + draw.integers(3, WORDS, 2).tolist() for _ in range(2)
        ]
        items.append([(context, continuation) for continuation in (first, *others, [*first, 5])])
    items.append([([7], [8, 9, 10])])
    # As many tokens and as many read, but they part elsewhere.
    items.append([([7, 8], [9, 10, 11]), ([7, 8], [9, 12, 13])])
    items.append([([7, 8], [9, 10, 11]), ([7, 8], [12, 13])])
    return items


def encoded_of(items, most: int) -> EncodedRequests:
    n = max(map(len, items))
    counts = np.array([[len(c) for _, c in texts] + [0] * (n - len(texts)) for texts in items])
    return EncodedRequests(tuple(grow_tree(t, most) for t in items), np.arange(len(items)), n, counts, "")


@pytest.mark.parametrize(
    ("most", "chunk", "tokens_per_pass"),
    [pytest.param(24, 8 << 20, 4096, marks=pytest.mark.slow), (9, 3 * WORDS, 40)],
)
@pytest.mark.parametrize("family", slow_unless("llama".__eq__, CONFIGS))
def test_each_continuation_scores_as_if_run_whole(family, most, chunk, tokens_per_pass, monkeypatch):
    monkeypatch.setitem(likelihoods.LOGITS_PER_CHUNK, "cpu", chunk)
    plain, model, names = plain_and_tuned(family)
    items = random_texts(1, 6)
    generator = np.random.default_rng(2)
    masks = np.array([[True] * 6, [False] * 6, *(generator.random((4, 6)) < 0.5)])
    order = np.array([3, 8, 0, 6, 5, 7, 1, 2, 4])
    out = outputs(model, encoded_of(items, most), order, masks, tokens_per_pass)
    for row, mask in enumerate(masks):
        whole = merged(plain, model, names, mask)
        for place, item in enumerate(order):
            expected = [separately(whole, *text, most) for text in items[item]]
            sums, greedy = zip(*expected)
            found = out["logits"][row, place]
            assert_close_in_float32(found[: len(sums)], sums, LAYERS)
            assert (found[len(sums) :] == 0).all()
            np.testing.assert_array_equal(out["greedy"][row, place, : len(greedy)], greedy)
    assert np.ptp(out["logits"][:, :, 0], axis=0).min() > 0.05  # the masks matter


def test_what_is_likeliest_is_greedy(family):
    plain, model, names = plain_and_tuned(family)
    context = [4, 9, 3]
    with torch.no_grad():
        text = list(context)
        for _ in range(3):
            text.append(
                int(
                    merged(plain, model, names, np.ones(6, bool))(torch.tensor([text])).logits[0, -1].argmax()
                )
            )
    items = [[(context, text[3:]), (context, [*text[3:5], (text[5] + 1) % WORDS])]]
    out = outputs(model, encoded_of(items, 24), np.array([0]), np.ones((1, 6), bool), 99)
    assert out["greedy"][0, 0].tolist() == [True, False]


def test_no_beginning_runs_twice():
    tree = grow_tree([([1, 2, 3], [4, 5]), ([1, 2, 3], [4, 6, 7]), ([1, 2, 3], [8])], 24)
    assert tree.tokens.tolist() == [1, 2, 3, 4, 6]  # the last token of a text is only scored
    assert tree.parents.tolist() == [-1, 0, 1, 2, 3]
    assert tree.is_one_text
    scored = [(int(tree.tokens[tree.read[a]]), t) for a, t in zip(tree.after, tree.targets.tolist())]
    assert [[scored[i] for i in own] for own in tree.scored] == [
        [(3, 4), (4, 5)], [(3, 4), (4, 6), (6, 7)], [(3, 8)],
    ]  # fmt: skip


def test_divergences_in_parts_are_those_of_whole_distributions(monkeypatch):
    """Of tokens that share positions, with logits of minus infinity and parts of a few tokens."""
    generator = torch.Generator().manual_seed(0)
    read, variants, words = 5, 3, 23
    after = torch.tensor([0, 0, 1, 2, 3, 4, 4])
    batch = SimpleNamespace(
        after=after, targets=torch.tensor([3, 0, 22, 7, 9, 11, 2]), ends=np.array([2, 3, 4, 5, 7])
    )
    logits = torch.randn(variants + 1, read, words, generator=generator, dtype=torch.float64)
    logits[:, 1, 4] = logits[0, 2, 5] = -torch.inf  # of all models; of the intact one
    logits[3, 4, 6] = -torch.inf  # of a variant only: infinitely far
    made = []

    def parts(states: torch.Tensor, size: int):
        """The states are places among the logits."""
        for first in range(0, words, size):
            made.append(states.shape[0] * min(size, words - first))
            yield first, logits[states[:, 0].long(), states[:, 1].long(), first : first + size].clone()

    places = torch.stack(torch.meshgrid(torch.arange(4.0), torch.arange(5.0), indexing="ij"), -1).double()
    for rows, most in ((1024, 12), (2, 8), (1024, 1 << 20)):
        monkeypatch.setattr(likelihoods, "_ROWS_PER_CHUNK", rows)
        monkeypatch.setitem(likelihoods.LOGITS_PER_CHUNK, "cpu", most)
        made.clear()
        found = compare_states(parts, batch, list(places[1:]), places[0])
        assert max(made) <= max(most, min(rows, read))  # logits at a time, with any number of variants
        assert sum(made) == (variants + 1) * read * words  # and the intact model's once for all of them
        own = logits.log_softmax(-1)
        apart = (own[0].exp() * (own[0] - own[1:]).masked_fill(own[0].exp() == 0, 0)).sum(
            -1
        )  # [variants, read]
        torch.testing.assert_close(found[..., 2], apart[:, after], rtol=1e-12, atol=1e-12)
        same = (logits[1:].argmax(-1) == logits[0].argmax(-1))[:, after]
        assert torch.equal(found[..., 3], same.double())
        assert 0 < same.sum() < same.numel()
        plain = torch.stack([score_states(parts, batch, states) for states in places[1:]])
        torch.testing.assert_close(found[..., :2], plain, rtol=1e-12, atol=1e-12)
    assert torch.isinf(found[2, after == 4, 2]).all()


@pytest.mark.parametrize("columns", [2, 4])
def test_sums_of_tokens_by_continuation(columns):
    """Two items of three slots; a token that both continuations begin with counts for each."""
    generator = torch.Generator().manual_seed(0)
    scored = torch.rand(3, 5, columns, generator=generator)
    scored[..., 1] = (scored[..., 1] < 0.5).float()
    own = {(0, 0): [0, 1], (0, 1): [0, 2], (1, 0): [3], (1, 2): [4]}
    members = [token for tokens in own.values() for token in tokens]
    slots = [3 * item + place for (item, place), tokens in own.items() for _ in tokens]
    batch = SimpleNamespace(members=torch.tensor(members), slots=torch.tensor(slots), n_continuations=3)
    found = summed_by_continuation(batch, scored, 2)
    for item, place in np.ndindex(2, 3):
        tokens = scored[:, own.get((item, place), [])].double().numpy()
        np.testing.assert_allclose(found["logits"][:, item, place], tokens[..., 0].sum(1), rtol=1e-6)
        np.testing.assert_array_equal(found["wrong"][:, item, place], (tokens[..., 1] == 0).sum(1))
        np.testing.assert_array_equal(found["greedy"][:, item, place], (tokens[..., 1] == 1).all(1))
        if place == 0 and columns == 4:
            np.testing.assert_allclose(found["differences"][:, item], tokens[..., 2:].sum(1), rtol=1e-12)
    assert ("differences" in found) == (columns == 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_scores_of_written_texts_are_sums_over_their_tokens(dtype):
    """Tokens 0 and the last of the vocabulary among them; positions without a token do not count."""
    tokens = torch.tensor([[0, 4, NO_TAG], [NO_TAG, 2, 1], [NO_TAG, NO_TAG, NO_TAG]])
    logits = torch.randn(2 * 3, 3, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    logits[0, 0, 0] = 9
    found = WrittenScores(tokens)(None, lambda: {"logits": logits}, 2)
    assert found.shape == (2, 3, 2)
    assert found.dtype == torch.promote_types(dtype, torch.float32)
    own = logits.double().numpy()
    for copy, text in np.ndindex(2, 3):
        there = [(i, int(t)) for i, t in enumerate(tokens[text]) if t != NO_TAG]
        rows = own[3 * copy + text]
        sums = sum(rows[i, t] - np.log(np.exp(rows[i]).sum()) for i, t in there)
        assert found[copy, text, 0].item() == pytest.approx(sums, rel=1e-6)
        assert found[copy, text, 1] == sum(rows[i].argmax() != t for i, t in there)
