"""Models on several devices, with layers on the host and on disk: every score is that of the model on one."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from accelerate import dispatch_model
from mask_loop import randomise
from peft import LoraConfig, PeftModel, get_peft_model
from peft_cases import WORDS
from refusals import naming
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

import adapter_probe as ap
from adapter_probe.errors import AdapterProbeError

TEXTS = ["the cat saw a dog", "fine", "the house was big", "a cruel bird"]
CLASSES = [{"text": text, "label": n % 2} for n, text in enumerate(TEXTS)]
COMPLETIONS = [{"prompt": text, "completion": " the dog"} for text in TEXTS]
ANSWERS = [{"prompt": text, "answer": "the dog"} for text in TEXTS]
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
PLACES = {
    "two devices": ("pretend:0", "pretend:0", "pretend:1", "pretend:1"),
    "devices and the host": ("pretend:0", "cpu", "pretend:1", "cpu"),
    "devices, disk and the host": ("pretend:0", "pretend:1", "disk", "cpu"),
    "one device and disk": ("disk", "disk", "pretend:0", "pretend:0"),
}


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(WORDS)


def model_of(family: str, tokenizer) -> torch.nn.Module:
    torch.manual_seed(0)
    n = len(tokenizer)
    if family == "bert":
        made = BertForSequenceClassification(BertConfig(vocab_size=n, **SMALL, max_position_embeddings=64))
        targets, task = ["query", "output.dense"], "SEQ_CLS"
    elif family == "llama":
        more = {"tie_word_embeddings": True, "eos_token_id": 3, "num_key_value_heads": 2}
        made = LlamaForCausalLM(LlamaConfig(vocab_size=n, **SMALL, **more))
        targets, task = ["q_proj", "down_proj"], "CAUSAL_LM"
    else:
        sizes = {"d_model": 32, "d_ff": 64, "d_kv": 8, "num_heads": 4, "num_layers": 2}
        made = T5ForConditionalGeneration(T5Config(vocab_size=n, **sizes, decoder_start_token_id=0))
        targets, task = ["q", "wo"], "SEQ_2_SEQ_LM"
    made = get_peft_model(made.double(), LoraConfig(r=4, target_modules=targets, task_type=task))
    randomise(made, 0.3)
    return made.double().eval()


def spread(model: torch.nn.Module, places: tuple[str, ...], folder) -> torch.nn.Module:
    """The model by accelerate, a share of the layers in each place, everything else where the ends are."""
    model = copy.deepcopy(model)
    stacks = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) > 1]
    layers = [layer for stack in stacks for layer in stack]
    named = {module: name for name, module in model.named_modules()}
    found = {named[layer]: places[i * len(places) // len(layers)] for i, layer in enumerate(layers)}
    main = next(place for place in places if place.startswith("pretend"))
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{own}.") or own.startswith(f"{name}.") for own in found)
        if name and name not in found and not inside and next(module.parameters(), None) is not None:
            found[name] = main
    found = {name: p for name, p in found.items() if not any(name.startswith(f"{o}.") for o in found)}
    # accelerate takes what it reads from disk for a tied weight that had the same address before.
    vars(model)["_kept"] = [parameter.data for parameter in model.parameters()]
    return dispatch_model(model, found, main_device=main, offload_dir=folder, force_hooks=True)


CASES = [
    ("bert", CLASSES, {}), ("llama", COMPLETIONS, {}), ("llama", COMPLETIONS, {"metric": "kl"}),
    ("llama", ANSWERS, {"generate": True, "max_new_tokens": 3}), ("t5", COMPLETIONS, {}),
]  # fmt: skip
IDS = ["classes", "likelihoods", "divergences", "texts", "encoder and decoder"]


QUICK = {
    ("classes", "two devices"), ("likelihoods", "devices, disk and the host"),
    ("texts", "devices and the host"), ("encoder and decoder", "one device and disk"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "rows", "options", "where"),
    [
        pytest.param(*case, place, id=f"{n}, {place}", marks=() if (n, place) in QUICK else pytest.mark.slow)
        for case, n in zip(CASES, IDS)
        for place in PLACES
    ],
)
def test_every_score_is_that_of_the_model_on_one(
    family, rows, options, where, tokenizer, devices, tmp_path_factory
):
    model = model_of(family, tokenizer)
    given = {"tokenizer": tokenizer, "data": rows, "precision": "float64", "progress": False, **options}
    expected = ap.ablate(model, **given)
    with devices(2) as machine:
        placed = spread(model, PLACES[where], tmp_path_factory.mktemp("disk"))
        before = {name: (p.device, type(p)) for name, p in placed.named_parameters()}
        found = ap.ablate(placed, **given)
        assert machine.copies["down"]
        assert {name: (p.device, type(p)) for name, p in placed.named_parameters()} == before
    np.testing.assert_array_equal(found.results.spans, expected.results.spans)
    if options.get("generate"):
        assert list(found.results.predictions.ravel()) == list(expected.results.predictions.ravel())
    else:
        np.testing.assert_allclose(found.results.outputs, expected.results.outputs, atol=1e-6)
        assert np.ptp(expected.results.outputs, axis=0).max() > 1e-3


def test_a_base_that_is_loaded_with_a_device_map_gets_its_adapters_where_its_layers_are(
    tokenizer, devices, tmp_path
):
    model = model_of("llama", tokenizer)
    given = {"tokenizer": tokenizer, "data": COMPLETIONS, "precision": "float64", "spans": "single"}
    expected = ap.ablate(model, progress=False, **given).results.outputs
    model.save_pretrained(tmp_path / "lora")
    model.unload().save_pretrained(tmp_path / "base")
    ends = dict.fromkeys(("model.embed_tokens", "lm_head", "model.norm", "model.rotary_emb"), "pretend:0")

    def based(place: str) -> torch.nn.Module:
        layers = {f"model.layers.{k}": "pretend:0" if k < 2 else place for k in range(4)}
        where = {"device_map": ends | layers, "dtype": torch.float64}
        return LlamaForCausalLM.from_pretrained(tmp_path / "base", **where)

    with devices(2) as machine:
        placed = PeftModel.from_pretrained(
            based("pretend:1"), tmp_path / "lora", autocast_adapter_dtype=False
        )
        found = ap.ablate(placed, progress=False, **given).results.outputs
        assert machine.copies["across"]
        np.testing.assert_allclose(found, expected, atol=1e-6)
        empty = get_peft_model(based("cpu"), LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM"))
        with pytest.raises(
            AdapterProbeError, match=naming("layers.2", "q_proj", "meta", "device_map='auto'")
        ):
            ap.ablate(empty, progress=False, **given)


def test_what_such_a_model_cannot_do_is_refused_in_one_line(tokenizer, devices, tmp_path):
    model = model_of("bert", tokenizer)
    given = {"tokenizer": tokenizer, "data": CLASSES, "progress": False}
    with devices(2):
        placed = spread(model, PLACES["devices, disk and the host"], tmp_path)
        for options, words in [({"precision": "mixed"}, ("mixed", "float32"))]:
            with pytest.raises(AdapterProbeError, match=naming(*words)):
                ap.ablate(placed, **given, **options)
