"""Weights of AdapterHub's libraries: translated, and compared with the configuration."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from adapter_probe.errors import CheckpointError
from adapter_probe.models.adapters.imported import BottleneckSpec, HeadSpec, ImportedMethod, InnerSpec

from .adapterhub_config import parts_of
from .files import CONFIG, unsupported
from .foreign import BaseShape, ForeignCheckpoint, TranslatedCheckpoint, refuse_left

HEAD_CONFIG = "head_config.json"
_LEGACY = re.compile(r"\.(attention|layer)_text_(task|lang)_adapters(?=\.)")
REFUSED_KEYS = {
    "invertible": "invertible adapters",
    "prefix_tunings": "prefix tuning",
    "prefix_gates": "prefix tuning",
    "prompt_tunings": "prompt tuning",
    "refts": "ReFT",
    "shared_parameters": "parameters that layers share (compacter or VeRA)",
    "adapter_fusion_layer": "AdapterFusion",
    "phm": "compacter layers",
}
_BOTTLENECK = {
    "adapter_up.weight": "up.weight",
    "adapter_up.bias": "up.bias",
    "adapter_norm_after.weight": "ln_after.weight",
    "adapter_norm_after.bias": "ln_after.bias",
    "scaling": "factor",
    "gate.weight": "gate.weight",
    "gate.bias": "gate.bias",
}
_MATRICES = ("q", "k", "v")


def translate(source: ForeignCheckpoint, base: BaseShape) -> TranslatedCheckpoint:
    """Translate a checkpoint into this project's representation.

    Raises:
        CheckpointError: it has parts that are not supported, or that do not fit the base.
    """
    return _Translation(source, base).run()


class _Translation:
    """The translation of one checkpoint; `out` collects its tensors, by the names of this project's model."""

    def __init__(self, source: ForeignCheckpoint, base: BaseShape):
        self.source, self.folder, self.base = source, source.folder, base
        self.config = parts_of(source.documents[CONFIG], source.folder)
        self.out: dict[str, Tensor] = {}

    def _error(self, said: str) -> CheckpointError:
        return CheckpointError(f"checkpoint {self.folder}{said}")

    def run(self) -> TranslatedCheckpoint:
        tensors, base = dict[str, Tensor](), self.base
        for key, tensor in self.source.tensors.items():
            for word, what in REFUSED_KEYS.items():
                if word in key and not key.startswith("heads."):
                    raise unsupported(self.folder, f"{what} ({key})")
            tensors[_LEGACY.sub(".adapters", key)] = tensor
        document, wanted = self.source.documents[CONFIG], base.config
        family, hidden = document.get("model_type"), document.get("hidden_size")
        if family not in (None, wanted.model_type) or hidden not in (None, wanted.hidden_size):
            raise self._error(
                f" was trained on a {family} model of hidden size {hidden}, the base is a "
                f"{wanted.model_type} model of hidden size {wanted.hidden_size}"
            )
        head = None
        if HEAD_CONFIG in self.source.documents:
            head = self._head(self.source.documents[HEAD_CONFIG], tensors)
        found: dict[str, dict[str, dict[str, Tensor]]] = {
            what: defaultdict(dict) for what in ("adapters", "loras")
        }
        for key in list(tensors):
            match = re.fullmatch(rf"(.+)\.(adapters|loras)\.{re.escape(self.source.name)}\.(.+)", key)
            if match:
                found[match[2]][match[1]][match[3]] = tensors.pop(key)
        refuse_left(self.folder, tensors)
        bottlenecks: list[BottleneckSpec] = []
        inner: list[InnerSpec] = []
        for module, parts in found["adapters"].items():
            bottlenecks += self._bottlenecks(module, parts)
        for module, parts in found["loras"].items():
            inner.append(self._inner(module, parts))
        self._check_bottlenecks(bottlenecks)
        self._check_inner(inner)
        method = ImportedMethod(
            self.source.library, self.config.kinds, tuple(bottlenecks), tuple(inner), head
        )
        # A head that is tied to the input embedding is saved with the adapter all the same.
        frozen = frozenset(name for name in base.tied if name in self.out)
        return TranslatedCheckpoint(method, self.out, self._notes(), frozen)

    def _notes(self) -> tuple[str, ...]:
        notes = [
            "The library saves neither LayerNorms nor a pooler: if they were trained too, their values are "
            "lost, and those of the base are used."
        ]
        if self.base.config.model_type == "deberta":
            notes.append(
                "The library adds random biases to the attention of DeBERTa without saving them, so its "
                "logits differ from run to run; here these biases are left out."
            )
        if self.config.bottleneck is not None and self.config.bottleneck["use_gating"]:
            notes.append(
                "Gates average over the tokens of an example; the library also averages over padding."
            )
        return tuple(notes)

    def _layers_of(self, module: str) -> tuple[list[int], str]:
        """The layers that a module belongs to (several if they share it), and its name inside them."""
        inside, names = module.removeprefix(self.base.prefix), self.base.layer_names
        for name in dict.fromkeys(names):
            if inside.startswith(f"{name}."):
                numbers = [number for number, other in enumerate(names) if other == name]
                return numbers, inside.removeprefix(f"{name}.")
        raise self._error(f" has an adapter at {module}, which is in none of the base's {len(names)} layers")

    def _head(self, document: dict[str, Any], tensors: dict[str, Tensor]) -> HeadSpec | None:
        """Take the head's weights out of `tensors`.

        Returns:
            the module that replaces the family's head; None if it is the family's head.
        """
        config = document.get("config")
        if config is None:
            for key in [k for k in tensors if ".adapters." not in k and ".loras." not in k]:
                self.out[key] = tensors.pop(key)
            return None
        pattern = re.compile(rf"heads\.{re.escape(str(document.get('name')))}\.(\d+)\.(weight|bias)")
        found: dict[int, dict[str, Tensor]] = {}
        for key in list(tensors):
            if match := pattern.fullmatch(key):
                found.setdefault(int(match[1]), {})[match[2]] = tensors.pop(key)
        if config["head_type"] == "causal_lm":
            if [set(parts) for parts in found.values()] != [{"weight"}]:
                raise self._error(
                    " has a causal head with a bias or several layers; only the output embedding is supported"
                )
            name = next(name for name in ("lm_head", "embed_out") if name in self.base.modules)
            self.out[f"{name}.weight"] = next(iter(found.values()))["weight"]
            return None
        extractive = config["head_type"] == "question_answering"
        layers = int(config.get("layers", 1 if extractive else 2))
        if len(found) != layers:
            raise self._error(f": the head has {len(found)} linear maps, not {layers}")
        if extractive and layers != 1:
            raise self._error(f" has a question answering head of {layers} layers; only 1 is supported")
        last = self.base.places.span_head if extractive else self.base.places.head
        for number, (_, parts) in enumerate(sorted(found.items())):
            name = last if extractive else f"{last}.{number}"
            self.out.update({f"{name}.{part}": tensor for part, tensor in parts.items()})
        if extractive:
            return None
        activation = config.get("activation_function", "tanh")
        return HeadSpec(layers, activation, bool(config.get("use_pooler")), bool(config.get("bias", True)))

    def _bottlenecks(self, module: str, parts: Mapping[str, Tensor]) -> list[BottleneckSpec]:
        numbers, inside = self._layers_of(module)
        site = "attention" if inside.startswith("attention") else "ffn"
        if self.config.bottleneck is None:
            raise self._error(f" has a bottleneck at {module}, but {CONFIG} has none")
        down = "1" if self.config.bottleneck["ln_before"] else "0"
        names = dict(_BOTTLENECK)
        for part in ("weight", "bias"):
            names[f"adapter_down.{down}.{part}"] = f"down.{part}"
            if down == "1":
                names[f"adapter_down.0.{part}"] = f"ln_before.{part}"
        parts = {k: v for k, v in parts.items() if not k.startswith("adapter_norm_before.")}  # present twice
        refuse_left(self.folder, (f"{module}: {name}" for name in parts.keys() - names.keys()))
        if "down.weight" not in {names[name] for name in parts}:
            raise self._error(f" lacks the down-projection of {module}")
        size = len(parts[f"adapter_down.{down}.weight"])
        specs = []
        for number in numbers:
            specs.append(self.config.spec(number, site, size))
            prefix = self.base.prefix + self.base.adapter_name(number, site)
            self.out.update({f"{prefix}.{names[name]}": tensor for name, tensor in parts.items()})
        return specs

    def _inner(self, module: str, parts: Mapping[str, Tensor]) -> InnerSpec:
        name = self.base.full_name(module)
        self._layers_of(name)
        if name not in self.base.modules:
            raise self._error(f" has an adapter in {module}, which the base does not have")
        if self.config.inner is None:
            raise self._error(f" has an adapter in {module}, but {CONFIG} configures none")
        lora, scales = self.config.inner, self.config.inner["composition_mode"] == "scale"
        r = int(lora["r"])
        wanted = {"lora_B"} if scales else {"lora_A", "lora_B"}
        refuse_left(self.folder, (f"{module}: {part}" for part in parts.keys() - wanted))
        if lacking := wanted - parts.keys():
            raise self._error(f" lacks {min(lacking)} of {module}")
        projections = self.base.places.projections
        merged = len(projections) == 1 and name.endswith(f".{projections[0]}")
        enabled = [matrix in lora["attn_matrices"] for matrix in _MATRICES]
        lost = self.config.lost_scaling and not merged  # what wraps three maps in one was never affected
        scale = 1.0 if lost else float(lora["alpha"]) / (1 if scales else r)
        if scales:
            factor = parts["lora_B"].flatten()
            if merged:  # a vector over the enabled ones of q, k, v becomes one over all three
                pieces = iter(factor.chunk(sum(enabled)))
                ones = torch.ones(len(factor) // sum(enabled))
                factor = torch.cat([next(pieces) if on else ones for on in enabled])
            self.out[f"{name}.adapter.factor"] = factor
            return InnerSpec(name, "scale_output", scale=scale)
        up, down = parts["lora_B"], parts["lora_A"]
        wanted_rank = r * sum(enabled) if merged else r
        if down.dim() != 2 or up.dim() != 2 or (len(down), up.shape[1]) != (wanted_rank, r):
            raise self._error(
                f": lora_A and lora_B of {module} have shapes {list(down.shape)} and {list(up.shape)}, which "
                f"do not fit the r {r} of {CONFIG}"
            )
        if merged:  # [enabled * width, rank], a matrix each for q, k, v, becomes [3 * width, enabled * rank]
            blocks = torch.block_diag(*up.chunk(sum(enabled))).chunk(sum(enabled))
            rows = iter(blocks)
            up = torch.cat([next(rows) if on else torch.zeros_like(blocks[0]) for on in enabled])
        self.out |= {f"{name}.adapter.down.weight": down, f"{name}.adapter.up.weight": up}
        return InnerSpec(name, "low_rank", rank=len(down), scale=scale)

    def _check_bottlenecks(self, found: list[BottleneckSpec]) -> None:
        if self.config.bottleneck is None:
            return
        layers, names = self.base.layers_but(self.config.bottleneck["leave_out"]), self.base.layer_names
        sites = {"attention": "mh_adapter", "ffn": "output_adapter"}
        chosen = [site for site, name in sites.items() if self.config.bottleneck[name]]
        wanted = {(layer, site) for layer in layers for site in chosen}
        held = {(spec.layer, spec.site) for spec in found}
        if lacking := sorted(wanted - held):
            layer, site = lacking[0]
            raise self._error(
                f" lacks {len(lacking)} of the adapters in its configuration, the first in layer {layer} "
                f"after the {site} sublayer; the base has {len(names)} layers"
            )
        if others := sorted(held - wanted):
            layer, site = others[0]
            raise self._error(
                f" has {len(others)} adapters that are not in its configuration, the first in layer {layer} "
                f"after the {site} sublayer"
            )
        factors = self.config.bottleneck["reduction_factor"]
        for spec in found:
            factor = factors
            if isinstance(factors, Mapping):
                module = list(dict.fromkeys(names)).index(names[spec.layer])
                factor = factors.get(str(module), factors.get("default"))
            size = int(self.base.config.hidden_size // factor) if factor else 0
            if spec.size != size:
                raise self._error(
                    f": the adapter of layer {spec.layer} after the {spec.site} sublayer has size "
                    f"{spec.size}, but the reduction_factor of its configuration gives {size}"
                )

    def _check_inner(self, found: list[InnerSpec]) -> None:
        if self.config.inner is None:
            return
        lora, names, kind = self.config.inner, self.base.places.projections, self.config.kinds[-1]
        layers = self.base.layers_but(lora["leave_out"])
        inside_layers: dict[int, set[str]] = defaultdict(set)  # the modules with LoRA in each layer
        for spec in found:
            numbers, module = self._layers_of(spec.module)
            for number in numbers:
                inside_layers[number].add(module)
        if lacking := sorted(set(layers) - inside_layers.keys()):
            raise self._error(
                f" lacks the {kind} weights of layer {lacking[0]}; the base has "
                f"{len(self.base.layer_names)} layers"
            )
        wanted = set(names)  # one map, or those that are chosen of three
        if len(names) > 1:
            wanted = {name for name, matrix in zip(names, _MATRICES) if matrix in lora["attn_matrices"]}
        attention = wanted if lora["selfattn_lora"] and lora["attn_matrices"] else set()
        n_others = lora["intermediate_lora"] + lora["output_lora"]
        for layer, held in sorted(inside_layers.items()):
            inside = {name for name in held if name in names}
            if layer not in layers or inside != attention or len(held - inside) != n_others:
                raise self._error(
                    f" contains {kind} weights in {', '.join(sorted(held))} of layer {layer}, which are not "
                    "the modules in its configuration"
                )
