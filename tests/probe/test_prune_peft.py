"""A checkpoint that PEFT loads is pruned to one that PEFT loads: its own switches are the reference."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import peft
import pytest
import torch
import tuners
from byte_tokenizer import byte_tokenizer
from mask_loop import switched
from peft import LoraConfig
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from peft_cases import IDS, by_peft, write_adapter, write_base
from peft_folders import written
from refusals import naming, refuses
from safetensors.torch import load_file
from tiers import slow_unless
from transformers import AutoModelForCausalLM, GPT2LMHeadModel, MixtralForCausalLM
from where import DEVICE

import adapter_probe as ap
from adapter_probe.ablation_settings import AblationSettings
from adapter_probe.checkpoints.peft_loading import saved_tensors
from adapter_probe.errors import CheckpointError, ResultsError
from adapter_probe.probe.ablation_arguments import AblationArguments
from adapter_probe.probe.prune import PruneMeasurement, prune_checkpoint
from adapter_probe.probe.request import prepare_ablation
from adapter_probe.spans import Span

L = ["q_proj", "o_proj"]
SHARED = ("dora", "ia3", "ln_tuning", "vera", "adalora", "vblora", "fourierft", "randlora")
TUNERS = {
    "lora": LoraConfig(r=4, target_modules=L),
    "some layers": LoraConfig(r=4, target_modules=L, layers_to_transform=[0, 1, 2]),
    "all linear maps but one": LoraConfig(r=4, target_modules="all-linear", exclude_modules=["v_proj"]),
    "modules to save": LoraConfig(
        r=4, target_modules=[*L, "embed_tokens"], modules_to_save=["lm_head", "input_layernorm"]
    ),
    "tokens": LoraConfig(r=4, target_modules=L, trainable_token_indices=[7]),
    "replicated layers": LoraConfig(r=4, target_modules=L, layer_replication=[[0, 2], [1, 3]]),
    "experts": LoraConfig(
        r=4, target_modules=L, target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    ),
    **{name: tuners.TUNERS[name] for name in SHARED},
}
ROWS = [{"context": "the cat", "choices": ["saw a dog", "was"], "gold": n % 2} for n in range(6)]
Made = Callable[..., Path]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = byte_tokenizer(True)
    folder = tmp_path_factory.mktemp("base")
    write_base(folder, "mixtral", MixtralForCausalLM, vocab_size=len(tokenizer))
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def made(base: Path, tmp_path: Path) -> Made:
    def write(tuner: peft.PeftConfig) -> Path:
        config = copy.deepcopy(tuner)
        config.task_type = "CAUSAL_LM"
        written(tmp_path, ROWS)
        return write_adapter(tmp_path / "adapter", base, AutoModelForCausalLM, config)

    return write


def prune(checkpoint: Path, span: Span, out: Path, strength: float = 0.0) -> PruneMeasurement:
    data = (str(checkpoint.parent / "rows.jsonl"),)
    arguments = AblationArguments(str(checkpoint), AblationSettings(strength=strength), data=data)
    request = prepare_ablation(arguments, DEVICE)
    return prune_checkpoint(request, checkpoint, span, out)


@torch.no_grad()
def assert_equal(base: Path, checkpoint: Path, out: Path, change: Callable, within: float = 0.0) -> None:
    """PEFT's models of both have the same logits once `change` was made to the first one's layers."""
    whole = by_peft(checkpoint, base)
    intact, model = whole(IDS).logits, whole.get_base_model()
    change(model.model.layers if hasattr(model, "model") else model.transformer.h)
    expected = whole(IDS).logits
    torch.testing.assert_close(by_peft(out, base)(IDS).logits, expected, rtol=0, atol=within)
    assert (intact - expected).abs().max() > 1e-3


def off(layer: torch.nn.Module) -> None:
    kinds = (BaseTunerLayer, AuxiliaryTrainingWrapper)
    switched([module for module in layer.modules() if isinstance(module, kinds)], False)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "lora" else pytest.mark.slow) for n in TUNERS]
)
def test_peft_loads_what_is_left_and_computes_the_same(name: str, made: Made, base: Path, tmp_path: Path):
    checkpoint, out = made(TUNERS[name]), tmp_path / "pruned"
    pruned = prune(checkpoint, Span(1, 1), out)
    assert_equal(base, checkpoint, out, lambda layers: off(layers[1]))
    assert pruned.adapters_after < pruned.adapters_before
    assert pruned.seconds_after > 0


@pytest.mark.parametrize("bias", [pytest.param("all", marks=pytest.mark.slow), "lora_only"])
@pytest.mark.slow
def test_trained_biases_stay(bias: str, tmp_path: Path):
    """PEFT's own model with the layer's switches off is the reference, on a base with biases."""
    tokenizer = byte_tokenizer(True)
    place = write_base(tmp_path / "gpt2", "gpt2", GPT2LMHeadModel, vocab_size=len(tokenizer))
    tokenizer.save_pretrained(place)
    written(tmp_path, ROWS)
    config = LoraConfig(r=2, target_modules=["c_attn", "c_fc"], bias=bias, fan_in_fan_out=True)
    config.task_type = "CAUSAL_LM"
    checkpoint = write_adapter(tmp_path / "adapter", place, AutoModelForCausalLM, config)
    prune(checkpoint, Span(1, 1), tmp_path / "out")
    whole = by_peft(checkpoint, place)
    assert saved_tensors(whole).keys() == load_file(checkpoint / "adapter_model.safetensors").keys()
    base = AutoModelForCausalLM.from_pretrained(place)
    trained = whole.get_base_model().transformer.h[1].attn.c_attn.base_layer.bias
    assert not torch.equal(trained, base.transformer.h[1].attn.c_attn.bias)
    assert_equal(place, checkpoint, tmp_path / "out", lambda layers: off(layers[1]))


def scaled(layer: torch.nn.Module, strength: float) -> None:
    """Scale a layer's adapters in PEFT's modules, each in its own way."""
    for module in [m for m in layer.modules() if isinstance(m, (BaseTunerLayer, AuxiliaryTrainingWrapper))]:
        if isinstance(module, peft.tuners.lora.LoraLayer):
            module.set_scale("default", strength)
        elif isinstance(module, peft.tuners.ia3.IA3Layer):
            factor = module.ia3_l["default"]
            factor.copy_(1 + strength * (factor - 1))
        else:
            norm = isinstance(module, BaseTunerLayer)
            own = module.ln_tuning_layers["default"] if norm else module.modules_to_save["default"]
            base = module.get_base_layer() if norm else module.original_module
            for one, other in zip(own.parameters(), base.parameters()):
                one.copy_(other + strength * (one - other))


BY_PEFT = ("lora", "some layers", "modules to save", "replicated layers", "experts", "ia3", "ln_tuning")
UNSCALABLE = {"dora": "DoRA", "randlora": "RANDLORA", "vblora": "VBLORA"}


@pytest.mark.parametrize("name", slow_unless(("lora", "dora").__contains__, TUNERS))
def test_peft_loads_scaled_adapters_and_computes_the_same(name: str, made: Made, base: Path, tmp_path: Path):
    checkpoint, out = made(TUNERS[name]), tmp_path / "scaled"
    if name in UNSCALABLE:
        refuses(CheckpointError, ("PEFT", "-0.5", UNSCALABLE[name]), prune, checkpoint, Span(1, 1), out, -0.5)
        assert not out.exists()
        return
    pruned = prune(checkpoint, Span(1, 1), out, -0.5)
    assert (pruned.adapters_after, pruned.strength) == (pruned.adapters_before, -0.5)
    if name in BY_PEFT:  # `prune` itself compares with the model's switches, which have their own tests
        assert_equal(base, checkpoint, out, lambda layers: scaled(layers[1], -0.5), 1e-5)


def test_a_converted_adapter_is_scaled_as_a_whole(made: Made, base: Path, tmp_path: Path):
    checkpoint, out = made(TUNERS["lora"]), tmp_path / "half"
    ap.convert(checkpoint, out, to="peft", strength=0.5)
    assert_equal(base, checkpoint, out, lambda layers: scaled(layers, 0.5), 1e-5)
    with pytest.raises(ResultsError, match=naming("strength must", "float32", "inf")):
        ap.convert(checkpoint, tmp_path / "no", to="peft", strength=float("inf"))


@pytest.mark.slow
def test_modules_are_removed_by_name(made: Made, base: Path, tmp_path: Path):
    checkpoint, out = made(TUNERS["lora"]), tmp_path / "pruned"
    given = {"data": checkpoint.parent / "rows.jsonl", "progress": False}
    pruned = ap.prune(checkpoint, out=out, span=(0, 1), sites="o_proj", **given)
    assert_equal(base, checkpoint, out, lambda layers: [off(one.self_attn.o_proj) for one in layers[:2]])
    assert pruned.adapter_parameters_after < pruned.adapter_parameters_before
    by_module = ap.ablate(checkpoint, data=given["data"], by="module", progress=False)
    with pytest.raises(ResultsError, match=naming("span=", "sites=")):
        ap.prune(checkpoint, out=tmp_path / "no", within=1.0, ablation=by_module, **given)


@pytest.mark.parametrize("how", ["prune", "convert"])
@pytest.mark.slow
def test_every_layer_or_module_is_scaled_by_its_own_strength(how, made, base, tmp_path):
    checkpoint, rows = made(TUNERS["lora"]), tmp_path / "rows.jsonl"
    n = len(AutoModelForCausalLM.from_pretrained(base).model.layers)
    by_pattern = tmp_path / "strengths.json"
    by_pattern.write_text(json.dumps({"*.o_proj": 0.5, "layers.1.self_attn.o_proj": -2}))

    def change_modules(layers: torch.nn.ModuleList) -> None:
        for place, layer in enumerate(layers):
            scaled(layer.self_attn.o_proj, -2 if place == 1 else 0.5)

    for given, change in (
        ([1, 0.25, *[1] * (n - 2)], lambda layers: scaled(layers[1], 0.25)),
        (by_pattern, change_modules),
    ):
        out = tmp_path / type(given).__name__
        if how == "prune":
            ap.prune(checkpoint, out=out, strength=given, data=rows, progress=False)
        else:
            ap.convert(checkpoint, out, to="peft", strength=given)
        assert_equal(base, checkpoint, out, change, 1e-5)


@pytest.mark.parametrize(
    "name", ["lora", *(pytest.param(n, marks=pytest.mark.slow) for n in ("ia3", "ln_tuning", "dora"))]
)
@pytest.mark.slow
def test_without_any_adapter_the_model_itself_is_left(name: str, made: Made, base: Path, tmp_path: Path):
    checkpoint = made(TUNERS[name])
    pruned = prune(checkpoint, Span(0, 2), tmp_path / "out")
    assert pruned.adapters_after == 0
    assert not (tmp_path / "out" / "adapter_config.json").exists()
    left = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad(), by_peft(checkpoint, base).disable_adapter():
        assert torch.equal(left(IDS).logits, AutoModelForCausalLM.from_pretrained(base).eval()(IDS).logits)


def test_a_model_is_not_overwritten(made: Made, base: Path):
    refuses(CheckpointError, (str(base), "already"), prune, made(TUNERS["lora"]), Span(0, 2), base)
