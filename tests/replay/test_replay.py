"""Replay: parts of layers, what is refused, what is left behind, models spread over devices."""

from __future__ import annotations

import accelerate
import numpy as np
import pytest
import torch
from mask_loop import assert_equal_to_loop, spans
from refusals import naming
from tiers import slow_unless
from tiny_families import family, lora

from adapter_probe.errors import ModelError
from adapter_probe.models.functional import activated_in_place
from adapter_probe.replay.checking import compare
from adapter_probe.replay.replay import Replay, logits
from adapter_probe.replay.sharing import cast_copy
from adapter_probe.replay.walk import Branch
from adapter_probe.units import ATTENTION, FFN, part_of


@pytest.mark.parametrize("name", ["llama", "bert", pytest.param("t5 (labels)", marks=pytest.mark.slow)])
def test_attention_and_feed_forward_network_are_switched_separately(name):
    base, x = family(name)
    replay = Replay(lora(base), x)
    n = len(replay.has_adapter)
    masks = np.random.default_rng(0).random((20, n)) < 0.5
    masks[0] = True
    parts = [part for layer in replay.layers for part in layer.parts]
    assert replay.has_adapter.all()
    assert len(parts) == n
    ours = replay.outputs(x, masks, rows=100)
    with torch.no_grad():
        for mask, logits in zip(masks, ours):
            for modules, on in zip(parts, mask):
                for module in modules:
                    module.enable_adapters(bool(on))
            assert torch.allclose(replay.model(**x).logits, logits, atol=1e-10)


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("self_attn.q_proj", ATTENTION), ("attention.output.dense", ATTENTION), ("output.dense", FFN),
        ("layer.1.EncDecAttention.q", ATTENTION), ("layer.2.DenseReluDense.wi", FFN), ("mlp.experts", FFN),
        ("fc1", FFN), ("mixer.in_proj", None), ("input_layernorm", None), ("attn.c_proj", ATTENTION),
        ("post_attention_layernorm", None),  # which sublayer it belongs to is not certain
    ],
)  # fmt: skip
def test_parts_are_told_apart_by_the_outermost_name(path, part):
    assert part_of(path) == part


def test_a_layer_whose_parts_cannot_be_told_apart_is_one_site():
    base, x = family("mamba")
    replay = Replay(lora(base, target_modules=["in_proj"]), x)
    assert replay.has_adapter.tolist() == [True, False] * 4
    assert replay.layers[0].unclear.endswith("layers.0.mixer.in_proj")


def test_model_is_left_as_it_was():
    base, x = family("bart")
    model = lora(base)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with torch.no_grad():
        before = model(**x).logits
    caching = model.config.use_cache
    Replay(model, x).outputs(x, spans(6).repeat(2, axis=1))
    with torch.no_grad():
        assert torch.equal(model(**x).logits, before)
    assert not any(p.requires_grad for p in model.parameters())
    assert model.config.use_cache == caching
    assert not model.training
    assert not any("forward" in m.__dict__ for m in model.get_base_model().modules())


@pytest.mark.parametrize("rows", slow_unless((9).__eq__, (4096, 30, 9)))
def test_pairs_of_two_stages_in_few_rows(rows):
    """A part of a batch without padding has no mask, where the whole has one."""
    base, x = family("t5 (labels)")
    replay = Replay(lora(base), x)
    generator = np.random.default_rng(0)
    masks, examples = generator.random((12, len(replay.has_adapter))) < 0.5, generator.integers(0, 3, 12)
    found = replay.outputs_of_pairs(x, examples, masks, rows=rows)[:, 0]
    own = torch.stack([replay.own(x, mask)[example] for mask, example in zip(masks, examples)])
    assert torch.allclose(found, own, atol=1e-10)


@pytest.mark.parametrize(("bounds", "waiting"), [([0, 5, 6, 7, 8], 0), ([0, 1, 2, 3, 8], 1)])
def test_of_a_branchs_halves_the_one_with_fewer_masks_is_next(bounds, waiting):
    nodes, states = torch.arange(4), {(0, 0): torch.arange(4.0)}
    halves = Branch(1, np.array(bounds), nodes, states, None, 1, nodes).halves()
    wanted = [(bounds[:3], [0, 1]), (bounds[2:], [2, 3])]
    for half, (own, rows) in zip(halves, wanted if waiting == 0 else reversed(wanted)):
        assert (half.bounds.tolist(), half.roots.tolist()) == (own, rows)
        assert half.states[0, 0].tolist() == half.examples.tolist() == rows
    assert (
        halves[0].states[0, 0].untyped_storage().nbytes() < states[0, 0].nbytes
    )  # which is freed before its turn


def test_after_the_first_batch_layers_run_for_variants_alone():
    base, x = family("llama")
    replay, called = Replay(lora(base), x), []
    for layer in replay.layers:
        layer.module.mlp.register_forward_hook(lambda *_: called.append(1))
    intact = np.ones((1, len(replay.has_adapter)), dtype=bool)
    other, counts = {name: values.flip(0) for name, values in x.items()}, []
    for batch in (x, other, other):
        found = replay.outputs(batch, intact)
        counts.append(len(called))
        assert torch.allclose(found[0], replay.own(batch, intact[0]), atol=1e-10)
        called.clear()
    n = len(replay.layers)
    assert counts == [2 * n, n, n]


def test_errors_of_this_package_are_not_said_of_the_model(monkeypatch):
    base, x = family("llama")
    replay, masks = Replay(lora(base), x), spans(4).repeat(2, axis=1)
    with monkeypatch.context() as changed:
        changed.setattr("adapter_probe.replay.walk.taken", None)
        with pytest.raises(TypeError, match="not callable"):
            replay.outputs(x, masks)

    def fails(message):
        def forward(_):
            raise RuntimeError(message)

        return forward

    layer = replay.layers[1].module.mlp
    monkeypatch.setattr(layer, "forward", fails("shapes differ"))
    with pytest.raises(ModelError, match=naming("shapes differ")):
        replay.outputs(x, masks)
    monkeypatch.setattr(layer, "forward", fails("can't allocate memory: you tried to allocate 4 bytes"))
    with pytest.raises(RuntimeError, match="allocate memory"):
        replay.outputs(x, masks)


def test_training_mode_is_refused():
    base, x = family("llama")
    with pytest.raises(ModelError, match="training mode"):
        Replay(lora(base).train(), x)


class Wrapped(torch.nn.Module):
    """A layer with something between it and the next one."""

    def __init__(self, layer, kind, store):
        super().__init__()
        self.layer, self.kind, self.store = layer, kind, store

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)

    def forward(self, hidden, **kwargs):
        out = self.layer(hidden, **kwargs)
        if self.kind == "mean over the batch":
            return out + 0.1 * out.mean(0, keepdim=True)
        before = self.store.get("x")
        self.store["x"] = out
        return out if before is None or before.shape != out.shape else out + 0.1 * before


@pytest.mark.parametrize("kind", ["mean over the batch", "hidden variable"])
def test_layers_that_are_no_functions_of_their_arguments_are_refused(kind):
    base, x = family("llama")
    model, store = lora(base), {}
    layers = model.get_base_model().model.layers
    layers[1], layers[2] = Wrapped(layers[1], kind, store), Wrapped(layers[2], kind, store)
    with pytest.raises(ModelError):
        Replay(model, x)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_what_one_precision_showed_is_used_in_another(name):
    base, x = family(name)
    exact = lora(base)
    single = Replay(cast_copy(exact, torch.float32), x, instead=activated_in_place)
    replay = single.in_precision(cast_copy(exact, torch.float64), x, logits, activated_in_place)
    faster = [
        [name for name, module in one.model.named_modules() if "forward" in vars(module)]
        for one in (single, replay)
    ]
    assert faster[0] == faster[1] != []
    assert_equal_to_loop(replay, x, spans(4))


def test_what_holds_in_one_precision_alone_is_found():
    class Coupled(torch.nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, hidden, **kwargs):
            out = self.layer(hidden, **kwargs)
            return out + 0.1 * out.mean(0, keepdim=True) if out.dtype == torch.float64 else out

    base, x = family("llama")
    exact = lora(base)
    layers = exact.get_base_model().model.layers
    for number, layer in enumerate(layers):
        layers[number] = Coupled(layer)
    single = Replay(cast_copy(exact, torch.float32), x)
    with pytest.raises(ModelError, match="own forward"):
        single.in_precision(cast_copy(exact, torch.float64), x, logits, None)


@pytest.mark.slow
def test_layers_spread_over_devices_are_moved_by_nobody(tmp_path):
    base, x = family("llama")
    model = lora(base)
    names = [f"base_model.model.model.layers.{number}" for number in range(4)]
    outer = ("embed_tokens", "norm", "rotary_emb")
    places = {f"base_model.model.model.{name}": "cpu" for name in outer} | {"base_model.model.lm_head": "cpu"}
    places |= {name: "disk" if number > 1 else "cpu" for number, name in enumerate(names)}
    want = Replay(model, x).outputs(x, spans(4).repeat(2, axis=1))
    model = accelerate.dispatch_model(model, places, main_device="cpu", offload_dir=tmp_path)
    before = {name: p.device for name, p in model.named_parameters()}
    assert {device.type for device in before.values()} == {"cpu", "meta"}
    replay = Replay(model, x)
    assert_equal_to_loop(replay, x, spans(4))
    assert torch.equal(replay.outputs(x, spans(4).repeat(2, axis=1)), want)
    assert {name: p.device for name, p in model.named_parameters()} == before


@pytest.mark.slow
def test_a_list_of_single_maps_is_no_stack_of_layers():
    base, x = family("gemma3n_text")
    replay = Replay(lora(base), x)
    assert [layer.name.rpartition(".")[2] for layer in replay.layers] == ["0", "1", "2", "3"]
    assert all(".layers." in layer.name for layer in replay.layers)
    assert replay.has_adapter[::2].all()  # with maps that belong to neither sublayer
    assert_equal_to_loop(replay, x, spans(4))


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_sums_in_float32_of_a_model_in_bfloat16_may_differ_as_bfloat16_rounds(precision):
    """A reader of log-likelihoods returns float32 whatever the model computes in."""
    base, x = family("llama")
    replay = Replay(lora(base.to(precision)), x)
    calls = iter(range(1, 10_000))

    def unsteady(*given):
        return logits(*given).float() * (1 + 1e-3 * (next(calls) % 2))

    if precision == torch.bfloat16:
        assert 1e-4 < replay.check(x, unsteady) < 5e-2
    else:
        with pytest.raises(ModelError, match=r"own forward"):
            replay.check(x, unsteady)


def test_log_likelihoods_near_0_are_held_to_the_rounding_of_their_logits_in_half_precision():
    own, ours = torch.tensor([-0.30, -0.02]), torch.tensor([-0.33, -0.02])
    assert compare(ours, own, torch.bfloat16, logit=16.0) == pytest.approx(0.03 / 16, rel=1e-5)
    for precision, logit in ((torch.bfloat16, 0.0), (torch.float32, 16.0)):
        with pytest.raises(ModelError, match="differs from the model's own forward"):
            compare(ours, own, precision, logit)
    zeros = torch.zeros(2)
    assert compare(zeros, zeros) == 0
    with pytest.raises(ModelError, match="inf"):
        compare(ours, zeros)
