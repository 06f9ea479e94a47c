"""The paper's methods on decoders, by the forward of Transformers: against models written out here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from exact import Float64, assert_close_in_float32, assert_close_in_float64, to_float64
from refusals import naming
from safetensors.torch import load_file
from tiers import slow_unless
from torch import Tensor, nn
from trainings import assert_resumes, request_of
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoTokenizer

import adapter_probe as ap
from adapter_probe.checkpoints.opened_peft import OpenedPlaced
from adapter_probe.checkpoints.opening import open_any
from adapter_probe.checkpoints.places import DECODERS
from adapter_probe.data.packing import pack
from adapter_probe.errors import ModelError
from adapter_probe.models.adapters.bottleneck import TokenBatchNorm
from adapter_probe.models.methods import (
    Adapters,
    Biases,
    FullFineTuning,
    HeadOnly,
    LayerNormOnly,
    Method,
    TopLayers,
)
from adapter_probe.probe.ablation_arguments import AblationArguments
from adapter_probe.probe.request import prepare_ablation
from adapter_probe.probe.resumable import AblationRun
from adapter_probe.training.peft_methods import method_of
from adapter_probe.training.request import build_model, load_inputs

CPU = torch.device("cpu")
LAYERS, RATE, BATCH = 3, 1e-2, 32
_LLAMA = ("model.layers.{}", ("self_attn.o_proj", "mlp.down_proj"), ("self_attn", "mlp"))
_GEMMA = ("model.layers.{}", ("post_attention_layernorm", "post_feedforward_layernorm"), ("self_attn", "mlp"))
WRITTEN: dict[str, tuple[str, tuple[str, str], tuple[str, str]]] = {
    **dict.fromkeys(DECODERS, _LLAMA),
    "gemma2": _GEMMA,
    "gemma3_text": _GEMMA,
    "gpt2": ("transformer.h.{}", ("attn.c_proj", "mlp.c_proj"), ("attn", "mlp")),
    "gpt_neox": ("gpt_neox.layers.{}", ("attention.dense", "mlp.dense_4h_to_h"), ("attention", "mlp")),
    "opt": ("model.decoder.layers.{}", ("self_attn.out_proj", "fc2"), ("self_attn", "")),
}
"""The layers' names, the maps that an adapter follows, and the modules that its tensors are named after."""
SIZES = {"hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 48, "head_dim": 8, "max_position_embeddings": 40, "bos_token_id": 0,
         "eos_token_id": 2}  # fmt: skip
OTHERS = {
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32, "pad_token_id": 1, "dropout": 0.0},
    "gpt2": {"n_inner": 48, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0},
    "gpt_neox": {"classifier_dropout": 0.0},
    "phi3": {"pad_token_id": 1},
}
one = pytest.mark.parametrize("family", slow_unless(("llama",).__contains__, DECODERS))
few = pytest.mark.parametrize("family", slow_unless(("llama", "gpt2").__contains__, DECODERS))


@pytest.fixture(scope="module")
def decoder(tiny_base: Callable[..., Path], tmp_path_factory) -> Callable[..., Path]:
    """A random decoder without dropout, most without a padding token, that knows `tiny_task`'s words."""
    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            folder = made[family] = tmp_path_factory.mktemp(family)
            tokenizer = AutoTokenizer.from_pretrained(tiny_base("roberta"))
            fields = {**SIZES, "pad_token_id": None, **OTHERS.get(family, {})}
            config = AutoConfig.for_model(family, vocab_size=len(tokenizer), **fields)
            torch.manual_seed(0)
            model = AutoModel.from_config(config)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.2 * torch.randn_like(parameter))
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        return made[family]

    return make


@pytest.fixture
def prepared(decoder, short_task) -> Callable[..., tuple]:
    """A model under a method, and the encoded training rows."""

    def make(family: str, method: Method) -> tuple:
        request = request_of(decoder(family), short_task, method)
        inputs = load_inputs(request)
        return build_model(request, inputs.base, CPU), inputs.objective.train

    return make


def written(base: Path, family: str, tensors: dict[str, Tensor], on: np.ndarray | None = None) -> nn.Module:
    """Transformers' model with these tensors, and the adapters among them written out."""
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=2).eval()
    own = {name: t for name, t in tensors.items() if ".adapter." not in name}
    assert not model.load_state_dict(own, strict=False).unexpected_keys
    layers, ends, holders = WRITTEN[family]
    on = np.ones(2 * LAYERS, dtype=bool) if on is None else on
    for site in np.flatnonzero(on):
        layer = layers.format(site // 2)
        holder = f"{layer}.{holders[site % 2]}".rstrip(".")
        weights = [tensors[f"{holder}.adapter.{part}"] for part in
                   ("down.weight", "down.bias", "up.weight", "up.bias")]  # fmt: skip

        def adapt(_m: nn.Module, _i: tuple, x: Tensor, w: list[Tensor] = weights) -> Tensor:
            inner = nn.functional.gelu(nn.functional.linear(x, w[0], w[1]))
            return x + nn.functional.linear(inner, w[2], w[3])

        model.get_submodule(f"{layer}.{ends[site % 2]}").register_forward_hook(adapt)
    return model


def alone(model: nn.Module, ids: list[np.ndarray]) -> Tensor:
    """Logits of every text by itself, so that no padding is needed."""
    return torch.cat([model(input_ids=torch.from_numpy(one)[None]).logits for one in ids])


@few
def test_rows_with_padding_give_what_every_text_gives(family: str, prepared, decoder):
    model, encoded = prepared(family, Adapters(4, 0.5))
    tensors = {name: tensor.detach().double() for name, tensor in model.named_delta().items()}
    reference = to_float64(written(decoder(family), family, tensors))
    with Float64(), torch.no_grad():
        batch = pack(encoded, range(9))
        assert len(set(batch.lengths)) > 2
        own = alone(reference, [encoded.input_ids[i] for i in batch.index])
        assert_close_in_float64(to_float64(model).eval()(batch), own)


@pytest.mark.parametrize("family", slow_unless(("llama", "opt").__contains__, DECODERS))
@pytest.mark.parametrize(
    "method",
    [Adapters(4), TopLayers(0), TopLayers(1), LayerNormOnly(), FullFineTuning(), HeadOnly()],
    ids=str,
)
def test_what_trains(family: str, method: Method, prepared):
    model, _ = prepared(family, method)
    prefix = f"{model.base.base_model_prefix}."
    norms = {n for n, m in model.base.named_modules() if "Norm" in type(m).__name__}
    outer = {n for n in norms if ".layers." not in n and ".h." not in n}
    top = WRITTEN[family][0].format(LAYERS - 1) + "."

    def expected(name: str) -> bool:
        module = name.rpartition(".")[0]
        match method:
            case Adapters():
                return ".adapter." in name or module in norms
            case TopLayers():
                return module in outer or (method.k == 1 and name.startswith(top))
            case LayerNormOnly():
                return module in norms
        return isinstance(method, FullFineTuning)

    found = {name for name, p in model.base.named_parameters() if p.requires_grad}
    every = {name for name, _ in model.base.named_parameters()}
    assert len(outer) == 1
    assert found == {name for name in every if not name.startswith(prefix) or expected(name)}
    assert {id(p) for _, _, p in model.named_roles()} == {id(p) for p in model.base.parameters()}
    assert len(model.named_delta()) == len(found)


@one
@pytest.mark.slow
def test_a_trained_checkpoint_is_opened_and_ablated(family: str, decoder, short_task, train, tmp_path):
    base, out = decoder(family), tmp_path / "c"
    said = train(base, short_task, out, method=Adapters(4, 0.5), epochs=1)
    request = prepare_ablation(AblationArguments(str(out)), CPU)
    with AblationRun(request, tmp_path / "out") as ablation:
        ablation.compute(lambda _: None)
        results = ablation.results()
    tensors, ids = load_file(out / "delta.safetensors"), list(request.encoded.input_ids)
    with torch.no_grad():
        expected = [alone(written(base, family, tensors, mask), ids).numpy() for mask in results.masks]
    assert np.ptp(np.stack(expected), axis=0).max() > 0.003
    assert_close_in_float32(results.outputs, np.stack(expected), layers=LAYERS)
    right = results.outputs[0].argmax(axis=1) == request.examples.labels
    assert right.mean() == said.scores["accuracy"]


@pytest.mark.parametrize(
    "method", [Adapters(4, 0.1), pytest.param(TopLayers(1), marks=pytest.mark.slow)], ids=str
)
def test_a_training_that_was_interrupted_ends_in_the_same_bytes(method, decoder, short_task, tmp_path):
    request = request_of(decoder("gpt2"), short_task, method, epochs=2, batch_size=BATCH)
    assert_resumes(request, tmp_path, 4)
    assert isinstance(open_any(tmp_path / "cut"), OpenedPlaced)


def test_padding_is_not_counted_in_a_batch_norm():
    torch.manual_seed(0)
    x, counted = torch.randn(2, 3, 4), torch.tensor([True, True, False, True, True, True])
    norm, plain = TokenBatchNorm(4), nn.BatchNorm1d(4)
    norm.counted = counted
    expected = plain(x.flatten(0, 1)[counted])
    torch.testing.assert_close(norm(x).flatten(0, 1)[counted], expected)
    torch.testing.assert_close(norm.running_var, plain.running_var)


@pytest.mark.parametrize(
    ("family", "method", "options", "message"),
    [
        ("llama", Biases(), {}, naming("bitfit")),
        (
            "llama",
            Adapters(4, norm="batchnorm"),
            {"checkpointing": True},
            naming("--checkpointing", "batchnorm"),
        ),
    ],
)
def test_what_does_not_fit_is_refused(family, method, options, message, decoder, short_task):
    request = request_of(decoder(family), short_task, method, **options)
    with pytest.raises(ModelError, match=message):
        build_model(request, load_inputs(request).base, CPU)


@pytest.fixture
def falcon(decoder, tmp_path) -> Path:
    """A decoder of a family that adapters are placed in nowhere."""
    return base_of("falcon", {}, decoder, tmp_path / "falcon")


def base_of(family: str, fields: dict, decoder: Callable[[str], Path], folder: Path) -> Path:
    tokenizer = AutoTokenizer.from_pretrained(decoder("llama"))
    sizes = {name: SIZES[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
    config = AutoConfig.for_model(family, vocab_size=len(tokenizer), **{**sizes, **fields})
    AutoModel.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("family", "fields", "message"),
    [
        ("falcon", {"alibi": False}, naming("adapters", "falcon", "lora:r=8")),
        ("opt", {"do_layer_norm_before": False, **OTHERS["opt"]}, naming("OPT", "do_layer_norm_before")),
    ],
)
def test_families_without_places_are_refused(family, fields, message, decoder, short_task, tmp_path):
    base = base_of(family, fields, decoder, tmp_path)
    request = request_of(base, short_task, Adapters(4))
    with pytest.raises(ModelError, match=message) as caught:
        build_model(request, load_inputs(request).base, CPU)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tag_task", "label_task"])
@pytest.mark.parametrize("method", [Adapters(4, 0.1), HeadOnly()], ids=str)
def test_tags_and_several_labels(kind: str, method: Method, decoder, train, tmp_path, request):
    base, task = decoder("llama"), request.getfixturevalue(kind)
    said = train(base, task, tmp_path / "c", method=method)
    opened = open_any(tmp_path / "c")
    asked = request_of(base, task, method)
    inputs = load_inputs(asked)
    encoded = inputs.objective.validation
    batch = pack(encoded, range(len(encoded)))
    model = build_model(asked, inputs.base, CPU)
    tensors = load_file(tmp_path / "c" / "delta.safetensors")
    with torch.no_grad():
        for name, own in model.named_delta().items():
            own.copy_(tensors[name])
        ids = [torch.from_numpy(encoded.input_ids[i])[None] for i in batch.index]
        alone = [opened.model(input_ids=one).logits[0] for one in ids]
        expected = torch.cat(alone) if kind == "tag_task" else torch.stack(alone)
        assert_close_in_float32(model.eval()(batch), expected, layers=LAYERS)
    if isinstance(method, Adapters):
        study = ap.ablate(tmp_path / "c", progress=False)
        assert study.summary.intact_score == pytest.approx(next(iter(said.scores.values())))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["short_task", "tag_task", "label_task"])
def test_peft_trains_classifiers_of_other_families(kind, falcon, train, tmp_path, request):
    task = request.getfixturevalue(kind)
    said = train(falcon, task, tmp_path / "c", method=method_of("lora:r=2"))
    study = ap.ablate(tmp_path / "c", progress=False)
    assert said.scores == {study.summary.metric: pytest.approx(study.summary.intact_score, abs=1e-9)}
