"""Texts under many masks against Transformers' own `generate` with PEFT's switches, token for token."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mask_loop import spans, switched
from peft.tuners.tuners_utils import BaseTunerLayer
from tiny_families import ROWS, TARGETS, family, ids, lora

from adapter_probe.replay.decoding import Decoder, Decoding
from adapter_probe.replay.replay import Replay, layers_in_order
from adapter_probe.replay.sharing import cast_copy
from adapter_probe.replay.switches import Switches
from adapter_probe.replay.two_weights import TwoWeights, finish_maps

NEW, EOS = 6, 3
# How rows are shared where not as states: some of these models' own code reads the rows of the prompts after
# a layer, and some keep no cache, or adapters that cannot be switched by rows.
SHARED = {
    "gemma3n_text": "rows", "gpt_bigcode": "rows", "falcon(alibi)": "none", "falcon(rotary)": "none",
    "deepseek_v3": "none", "recurrent_gemma": "none", "switch": "none", "switch(small capacity)": "none",
}  # fmt: skip
NOT_HERE = {
    "rwkv": "its own generate of a padded batch depends on earlier calls",
    "prophetnet": "its own generate does not run on a batch that is padded on the right",
    **dict.fromkeys(("gemma2", "bloom", "mpt"), "its own logits of padded prompts are NaN in float64"),
}
KINDS = ("CausalLM", "LMHeadModel", "ConditionalGeneration")
FAMILIES = [name for name, row in ROWS.items() if row["model"].endswith(KINDS) and name not in NOT_HERE]
QUICK = ["llama"]
NAMES = [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in FAMILIES]


def prepared(name: str) -> tuple[torch.nn.Module, Decoder, dict[str, torch.Tensor]]:
    base, _ = family(name)
    base.generation_config.pad_token_id, base.generation_config.eos_token_id = 1, EOS
    base.config.output_router_logits = False  # with which Mixtral's own generate fails
    model = lora(base, target_modules=TARGETS.get(name, "all-linear"))
    with torch.no_grad():
        for own, parameter in model.named_parameters():
            if "lora_B" in own:
                parameter.mul_(3)
    both = base.config.is_encoder_decoder
    x = ids(pad="right" if both else "left")
    start = {"decoder_input_ids": torch.full((3, 1), 2)} if both else {}
    replay = Replay(model, x | start)
    return model, Decoder(model, replay.layers, Switches(), replay, x), x


def own(model: torch.nn.Module, layers: list, x: dict, masks: np.ndarray) -> np.ndarray:
    """The tokens of `generate` for every mask of layers, ``[variants, prompts, new tokens]``."""
    inside = [[m for m in layer.module.modules() if isinstance(m, BaseTunerLayer)] for layer in layers]
    base, found = model.get_base_model(), []
    start = 1 if base.config.is_encoder_decoder else x["input_ids"].shape[1]
    for mask in masks:
        for modules, on in zip(inside, mask):
            switched(modules, bool(on))
        with torch.no_grad():
            made = base.generate(**x, max_new_tokens=NEW, do_sample=False)[:, start:]
        found.append(torch.nn.functional.pad(made, (0, NEW - made.shape[1]), value=1))
    for modules in inside:
        switched(modules, True)
    return torch.stack(found).numpy()


def as_generate(tokens: np.ndarray) -> np.ndarray:
    return np.where(tokens < 0, 1, tokens)


@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_those_of_generate_for_every_span_and_random_masks(name):
    model, decoder, x = prepared(name)
    assert decoder.shared == SHARED.get(name, "states"), decoder.reason
    n = len(decoder.layers)
    masks = np.concatenate([spans(n), np.random.default_rng(0).random((4, n)) < 0.5])
    ours = decoder.texts(x, masks.repeat(2, axis=1), Decoding(NEW))
    assert len(np.unique(ours.reshape(len(masks), -1), axis=0)) > 4  # the masks matter
    expected = own(model, decoder.layers, x, masks)
    assert (as_generate(ours) == expected).all()


@pytest.mark.slow
def test_few_rows_of_finished_weights_differ_from_the_others_by_the_change(monkeypatch):
    model, alone, x = prepared("llama")
    finished = cast_copy(model, torch.float64)
    finish_maps(finished)
    replay = Replay(finished, x)
    decoder = Decoder(finished, replay.layers, Switches(), replay, x)
    seen: list[torch.nn.Module] = []
    change = TwoWeights.change
    monkeypatch.setattr(TwoWeights, "change", lambda module, x: (seen.append(module), change(module, x))[1])
    single = np.eye(len(decoder.layers), dtype=bool)
    one_off = np.concatenate([np.ones_like(single[:1]), ~single])
    for masks in (one_off, ~one_off):
        seen.clear()
        ours = decoder.texts(x, masks.repeat(2, axis=1), Decoding(NEW))
        assert seen
        assert (ours == alone.texts(x, masks.repeat(2, axis=1), Decoding(NEW))).all()


@pytest.mark.slow
def test_layers_below_a_span_compute_a_prompt_once_and_texts_that_agree_share_their_steps():
    """Counts of rows: one per prompt before the switched layer, and finished texts are left out."""
    _, decoder, x = prepared("llama")
    masks = np.ones((3, 2 * len(decoder.layers)), dtype=bool)
    masks[1, 4:6] = masks[2, 6:8] = False  # layers 2 and 3 of 4
    rows: list[list[int]] = [[] for _ in decoder.layers]
    hooks = [
        layer.module.mlp.register_forward_pre_hook(lambda m, given, own=own: own.append(len(given[0])))
        for layer, own in zip(decoder.layers, rows)
    ]
    written = decoder.texts(x, masks, Decoding(NEW))
    for hook in hooks:
        hook.remove()
    # Before step t, texts are told apart by the t tokens so far and by what is switched below.
    for layer, own_rows in enumerate(rows):
        kinds = [tuple(mask[: 2 * layer + 2]) for mask in masks]
        for step, found in enumerate(own_rows):
            assert found == len({
                (prompt, kind, tuple(written[v, prompt, :step]))
                for v, kind in enumerate(kinds) for prompt in range(3)
                if step == 0 or written[v, prompt, step - 1] not in (EOS, -1)
            })  # fmt: skip


def test_without_a_replay_each_variant_is_written_alone():
    base, _ = family("llama")
    model, x = lora(base), ids(pad="left")
    layers = layers_in_order(model, x)
    decoder = Decoder(model, layers, Switches(), None, x, "it is not described")
    masks = spans(len(layers))[:4]
    assert (decoder.shared, decoder.reason) == ("none", "it is not described")
    ours = as_generate(decoder.texts(x, masks.repeat(2, axis=1), Decoding(NEW)))
    base.generation_config.pad_token_id = 1
    assert (ours == own(model, layers, x, masks)).all()


def test_draws_depend_on_seed_and_example_and_not_on_the_batch_or_the_variant():
    _, decoder, x = prepared("llama")
    masks = np.ones((2, 2 * len(decoder.layers)), dtype=bool)
    masks[1, 2] = False
    hot, other = (Decoding(NEW, temperature=1.5, seed=seed) for seed in (0, 1))
    both = decoder.texts(x, masks, hot, np.array([5, 6, 7]))
    alone = decoder.texts({k: v[1:2] for k, v in x.items()}, masks[:1], hot, np.array([6]))
    assert (both[:1, 1:2] == alone).all()
    assert (both != decoder.texts(x, masks, other, np.array([5, 6, 7]))).any()
    twice = decoder.texts(x, np.concatenate([masks, masks[:1]]), hot, np.array([5, 6, 7]))
    assert (twice[0] == twice[2]).all()


def test_draws_have_the_probabilities_of_the_softmax():
    base, _ = family("llama")
    model = lora(base)
    x = {k: v[:1] for k, v in ids(pad=None).items()}
    layers = layers_in_order(model, x)
    decoder = Decoder(model, layers, Switches(), None, x)
    n, temperature = 1500, 0.8
    many = {k: v.expand(n, -1) for k, v in x.items()}
    mask = np.ones((1, 2 * len(layers)), dtype=bool)
    first = decoder.texts(many, mask, Decoding(1, temperature), np.arange(n))[0, :, 0]
    with torch.no_grad():
        expected = torch.softmax(model(**x).logits[0, -1] / temperature, -1).numpy()
    counts = np.bincount(first, minlength=len(expected))
    kept = n * expected > 5
    chi = ((counts - n * expected) ** 2 / (n * expected))[kept].sum()
    assert chi < kept.sum() + 5 * np.sqrt(2 * kept.sum())
