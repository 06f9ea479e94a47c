"""What trains under each method in every family, and what is frozen below it."""

from __future__ import annotations

import pytest
import torch
from encoder_families import FAMILIES, random_examples, trained_model
from refusals import refuses
from torch.nn import functional as F
from training_models import expected_to_train, one_step, trained

from adapter_probe.data.encoding import Encoded
from adapter_probe.data.packing import pack
from adapter_probe.errors import ModelError
from adapter_probe.models.functional import can_pack_weight, packed_frozen_maps
from adapter_probe.models.methods import Adapters, FullFineTuning, HeadOnly, LayerNormOnly, Method, TopLayers
from adapter_probe.training.model import TrainingModel

METHODS: tuple[Method, ...] = (
    Adapters(4, 0.1),
    Adapters(4, 0.1, train_pooler=True, norm="layernorm", placement="parallel"),
    *(TopLayers(k) for k in range(4)),
    LayerNormOnly(),
    FullFineTuning(),
    HeadOnly(),
)
POSSIBLE = {"albert": (0, 3), "albert, two groups": (0, 1, 3)}  # layers that share weights train together


def made(name: str, method: Method) -> TrainingModel | None:
    """None where the family cannot: its layers share their weights."""
    if isinstance(method, TopLayers) and method.k not in POSSIBLE.get(name, (0, 1, 2, 3)):
        return None
    return trained_model(name, method)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_what_changes_in_a_step_is_what_trains(kind: str, method: Method):
    model = made(kind, method)
    if model is None:
        possible = ", ".join(map(str, POSSIBLE.get(kind, (0, 3))))
        refuses(ModelError, (f"k {method.k}", possible), trained_model, kind, method)
        return
    family = FAMILIES[kind]
    layers = [family.layer.format(module) for module in family.modules]
    assert all("Norm" in type(model.base.get_submodule(norm)).__name__ for norm in family.outer_norms)
    after = family.outer_norms[-1] if family.pre_norm else None
    expected = expected_to_train(model, method, layers, after)
    assert set(trained(model)) == set(model.named_delta()) == expected
    assert one_step(model, random_examples([7, 4, 7, 12, 5, 9] * 2)) == expected
    assert len({name for _, name, _ in model.named_roles()}) == len(list(model.base.parameters()))


def test_every_layer_has_adapters_of_its_own(family: str):
    model, shape = trained_model(family), FAMILIES[family]
    shared = len(set(shape.modules)) < 3
    places = {
        ".".join(part for part in (shape.layer.format(module), holder, "adapter", number) if part)
        for layer, module in enumerate(shape.modules)
        for holder in shape.holders
        for number in [str(layer) if shared else ""]
    }
    tensors = {name: tensor for name, tensor in model.named_delta().items() if ".adapter." in name}
    names = {name.rsplit(".", 2)[0] for name in tensors}  # without down.weight
    assert names == places
    assert sum(tensor.numel() for tensor in tensors.values()) == 6 * (2 * 32 * 5 + 32 + 5)


def in_bfloat16(model: TrainingModel, encoded: Encoded, exact: bool = False) -> torch.Tensor:
    """All gradients of a step with frozen weights in bfloat16, as they are in training; or unrounded."""
    for parameter in model.base.parameters():
        if not parameter.requires_grad:
            parameter.data = parameter.data.to(torch.bfloat16)
    if exact:
        model.double()
    batch = pack(encoded, range(len(encoded)))
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False, enabled=not exact):
        logits = model.train()(batch).float()
    F.cross_entropy(logits, torch.from_numpy(batch.index) % 3).backward()
    found = [own.grad for own in trained(model).values() if own.grad is not None]
    return torch.cat([gradient.flatten() for gradient in found])


@pytest.mark.slow
def test_packed_frozen_maps_give_the_same_gradients(family: str):
    method, encoded = Adapters(4, 0.1), random_examples([7, 4, 7, 12, 5, 9, 1, 12])
    exact, plain = (in_bfloat16(trained_model(family, method).float(), encoded, one) for one in (True, False))
    model = trained_model(family, method).float()
    for parameter in model.base.parameters():
        if not parameter.requires_grad:
            parameter.data = parameter.data.to(torch.bfloat16)
    with packed_frozen_maps(model.layers):
        packed = [name for name, module in model.base.named_modules() if "forward" in vars(module)]
        found = in_bfloat16(model, encoded)
    assert not any("forward" in vars(module) for module in model.base.modules())
    if not can_pack_weight(torch.ones(1, dtype=torch.bfloat16)):
        pytest.skip("this processor does not multiply bfloat16")
    inside = tuple(f"{FAMILIES[family].layer.format(module)}." for module in FAMILIES[family].modules)
    maps = [(n, m) for n, m in model.base.named_modules() if n.startswith(inside)]
    linear = {n for n, m in maps if type(m) is torch.nn.Linear and not m.weight.requires_grad}
    assert set(packed) == linear
    assert 0 < (plain - exact).norm() < 0.1 * exact.norm()
    assert (found - exact).norm() < 1.3 * (plain - exact).norm()  # the same rounding, in another order
