"""Tuners of PEFT in the training loop, against PEFT and the Trainer of Transformers themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from refusals import names, refuses
from safetensors.torch import load_file
from tiers import slow_unless
from trainings import request_of
from transformers import AutoModelForSequenceClassification

import adapter_probe as ap
from adapter_probe.checkpoints.opening import open_any
from adapter_probe.errors import CheckpointError, ModelError
from adapter_probe.models.methods import Biases, Method, method_from_json
from adapter_probe.training import peft_tuners
from adapter_probe.training.model import TrainingModel
from adapter_probe.training.peft_methods import INITS, initialised, method_of, peft_method
from adapter_probe.training.request import build_model, load_inputs

CPU = torch.device("cpu")


def built(text: str | Method, base: Path, task: Path, seed: int = 0) -> TrainingModel:
    """A base under a method, before any step."""
    request = request_of(base, task, text, seed=seed)
    return build_model(request, load_inputs(request).base, CPU)


def test_a_peft_that_does_not_save_the_biases_does_not_train_them(tiny_base, tiny_task, monkeypatch):
    asked = "lora:r=4,bias=lora_only", tiny_base("bert"), tiny_task
    saves = peft_tuners.saved_tensors
    assert any("base_layer.bias" in name for name in built(*asked).saved())
    monkeypatch.setattr(
        peft_tuners, "saved_tensors", lambda model: {n: t for n, t in saves(model).items() if "bias" not in n}
    )
    refuses(ModelError, ("base_layer.bias", "0.21", "bias=all"), built, *asked)


@pytest.mark.slow
def test_the_checkpoint_is_ablated_with_its_task(tiny_base, short_task, train, tmp_path):
    base, folder = tiny_base("bert"), tmp_path / "c"
    described = train(base, short_task, folder, method=peft_method("lora:r=4"), epochs=1)
    study = ap.ablate(folder, spans="suffix", progress=False)
    assert study.summary.intact_score == described.scores["accuracy"]
    assert ap.inspect(folder)["task"] == described.task.name
    assert ap.load(study.folder).spans.equals(study.spans)
    weights = load_file(folder / "adapter_model.safetensors")
    weights[next(iter(weights))] += 1
    from safetensors.torch import save_file

    save_file(weights, folder / "adapter_model.safetensors")
    for opening in (open_any, ap.inspect):
        refuses(CheckpointError, (str(folder), "sha256"), opening, folder)


def test_what_has_no_switch_says_so_after_its_training(tiny_base, short_task, train, tmp_path):
    method = peft_method("prompt_tuning:num_virtual_tokens=3")
    train(tiny_base("bert"), short_task, tmp_path / "c", method=method, epochs=1)
    refuses(CheckpointError, ("PROMPT_TUNING",), ap.ablate, tmp_path / "c", progress=False)


def test_the_starts_differ_by_seed(tiny_base, short_task):
    first, second = (built("lora:r=8", tiny_base("bert"), short_task, seed).named_delta() for seed in (0, 1))
    assert all(not torch.equal(first[n], second[n]) for n in first if "lora_A" in n)
    assert {n for n in first if "classifier" in n and "weight" in n} == {
        n for n in first if "classifier" in n and "weight" in n and not torch.equal(first[n], second[n])
    }


def test_biases_and_the_head_train_alone(tiny_base, short_task):
    model = built(Biases(), tiny_base("bert"), short_task)
    trained = {name for name, p in model.base.named_parameters() if p.requires_grad}
    biases = {name for name, _ in model.base.named_parameters() if name.endswith("bias")}
    assert trained == biases | {"classifier.weight"}


TEXTS = {
    "lora:r=8": ("lora", 8, "lora:r=8"),
    "LoRA": ("lora", 8, "lora:r=8"),
    "dora:r=2": ("dora", 2, "dora:r=2"),
    "rslora:lora_alpha=16": ("rslora:lora_alpha=16", 8, "rslora:r=8,lora_alpha=16"),
    "lora:r=4,target_modules=value+query": (
        "lora:target_modules=query+value", 4, "lora:r=4,target_modules=query+value",
    ),
    "ia3": ("ia3", None, "ia3"),
    'peft:{"peft_type": "VERA", "r": 16}': ("vera", 16, "vera:r=16"),
    "lora:init_std=0.001": ("lora", 8, "lora:r=8,init_std=0.001"),
    'peft:{"peft_type": "LORA", "rank_pattern": {"a": 2, "b": 4}, "init_std": 0.001}': (
        "lora:rank_pattern={'a': 2, 'b': 4}", 8,
        'peft:{"peft_type": "LORA", "r": 8, "rank_pattern": {"a": 2, "b": 4}, "init_std": 0.001}',
    ),
    'peft:{"peft_type": "TRAINABLE_TOKENS", "token_indices": [3, 4]}': (
        "trainable_tokens:token_indices=3+4", None,
        'peft:{"peft_type": "TRAINABLE_TOKENS", "token_indices": [3, 4]}',
    ),
    "prompt_tuning:num_virtual_tokens=4": ("prompt_tuning", 4, "prompt_tuning:num_virtual_tokens=4"),
}  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_a_method_is_a_family_and_a_size(text):
    method = peft_method(text)
    assert (method.family, method.size, method.text) == TEXTS[text]
    assert peft_method(method.text) == method  # what is shown can be given again
    assert method_from_json(json.loads(json.dumps(method.to_json()))) == method


def test_the_same_configuration_in_every_form_is_one_method(tmp_path):
    from peft import LoraConfig

    config = LoraConfig(
        r=4, target_modules=["value", "query"], task_type="SEQ_CLS", modules_to_save=["classifier"]
    )
    config.save_pretrained(tmp_path)
    mapping = {"peft_type": "LORA", "r": 4, "target_modules": ["query", "value"], "lora_alpha": 8}
    assert peft_method(config) == peft_method(mapping) == peft_method(tmp_path)


BAD = {
    "lorra:r=8": ("adapters, top_layers", "dora, rslora"),
    "": ("adapters, top_layers", "dora, rslora"),
    "lora:r": ("'r'", "name=value"),
    "lora:r=0": ("r", "0", "at least 1"),
    "lora:rank=8": ("LORA", "'rank'", "alora_invocation_tokens, alpha_pattern"),
    "lora:r=x": ("r", '"x"', "number"),
    "prompt_tuning": ("PROMPT_TUNING", "num_virtual_tokens=20"),
    "adalora": ("ADALORA", "ranks"),
    "lora:init_std=0": ("init_std", "0", "1e-12 to 100"),
    "ia3:init_std=1": ("init_std", "LoRA"),
    "peft:{": ("'{'", "JSON"),
    'peft:{"peft_type":"NO"}': ("peft_type", '"NO"', "PEFT"),
}


@pytest.mark.parametrize("text", BAD)
def test_a_method_that_is_not_allowed_is_one_line(text):
    with pytest.raises(ModelError) as caught:
        method_of(text)
    assert "--method" in str(caught.value)
    assert names(str(caught.value).replace(text, ""), *BAD[text])


UNFIT = {
    "lora:r=33": ("rank 33", "width 32", "bert.encoder.layer.0.attention.self.query"),
    "lora:target_modules=nope": ("PEFT", "word_embeddings, position_embeddings"),
    "adaption_prompt:adapter_len=4,adapter_layers=2": ("head", "ADAPTION_PROMPT"),
    "lora:layers_to_transform=9": ("PEFT",),
}


@pytest.mark.parametrize("text", UNFIT)
def test_a_tuner_that_does_not_fit_the_base_is_one_line(text, tiny_base, short_task, train, tmp_path):
    with pytest.raises(ModelError) as caught:
        train(tiny_base("bert"), short_task, tmp_path / "c", method=peft_method(text))
    assert names(str(caught.value), f"--method {peft_method(text).text}", *UNFIT[text])


def lora_parts(model: torch.nn.Module, part: str) -> dict[str, torch.Tensor]:
    """Every matrix A or B, by its module's name."""
    return {
        name: module[next(iter(module))].weight.detach()
        for name, module in model.named_modules()
        if name.endswith(part)
    }


def test_the_matrix_a_of_a_lora_has_the_std_asked_for_and_b_is_zero(tiny_base, tiny_task):
    for method in initialised("lora:r=8", (1e-7, 1.0), ()):
        model = built(method, tiny_base("bert"), tiny_task).base
        drawn = torch.cat([t.flatten() for t in lora_parts(model, "lora_A").values()])
        # The standard error of the std of n normal values is std / sqrt(2 n).
        assert drawn.std().item() == pytest.approx(method.init_std, rel=4 / (2 * len(drawn)) ** 0.5)
        assert not any(t.any() for t in lora_parts(model, "lora_B").values())


@pytest.mark.parametrize("name", slow_unless(lambda name: name == "pissa", (*INITS, "pissa_niter_4")))
def test_initialisations_by_name_are_those_of_peft(name, tiny_base, tiny_task):
    from peft import LoraConfig, get_peft_model

    (method,) = initialised("lora:r=4", (), [name])
    own = built(method, tiny_base("bert"), tiny_task, seed=3).base
    model = AutoModelForSequenceClassification.from_pretrained(tiny_base("bert"), num_labels=2).float()
    config = LoraConfig(
        r=4, init_lora_weights={"kaiming": True}.get(name, name), task_type="SEQ_CLS",
        modules_to_save=sorted(name.partition(".")[0] for name, _ in model.named_parameters()
                               if name.startswith("classifier.weight")),
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(3)
        theirs = get_peft_model(model, config)
    for part in ("lora_A", "lora_B", "base_layer"):
        one, other = (
            lora_parts(m, part)
            if part != "base_layer"
            else {n: p.detach() for n, p in m.named_parameters() if ".base_layer.weight" in n}
            for m in (own, theirs)
        )
        assert len(one) == len(other) > 2
        for mine, expected in zip(one.values(), other.values(), strict=True):
            torch.testing.assert_close(mine, expected, rtol=0, atol=0)


def test_initialisations_that_are_none(tiny_base):
    assert [one.init_std for one in initialised("lora:r=3", (0.1,), None)] == [0.1, None, None, None, None]
    for method, inits, words in (
        ("ia3", None, ("LoRA",)),
        ("lora:r=2,init_std=1", None, ("init_std",)),
        ("lora:r=2", ["xavier"], ("--inits", "kaiming, gaussian, orthogonal, olora, pissa")),
    ):
        refuses(ModelError, words, initialised, method, (0.1,), inits)
