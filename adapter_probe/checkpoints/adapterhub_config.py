"""Configurations of AdapterHub's libraries: each field is read, known to have no effect, or refused.

Checked against the configuration classes of adapters 1.1 and 1.3. Fields of earlier releases, those of
adapter-transformers included, are taken to mean the same; logits of adapters 1.0.1 are among the fixtures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapter_probe.errors import CheckpointError
from adapter_probe.models.adapters.imported import BottleneckSpec, SiteKind

from .files import (
    CONFIG,
    flag_field,
    number_field,
    quote,
    refuse_unknown,
    text_list_field,
    unsupported,
    whole_number_field,
)

# Default values of fields that a file does not have.
BOTTLENECK: dict[str, Any] = {
    "mh_adapter": False,
    "output_adapter": True,
    "reduction_factor": 16,
    "non_linearity": "relu",
    "original_ln_before": False,
    "original_ln_after": True,
    "ln_before": False,
    "ln_after": False,
    "is_parallel": False,
    "scaling": 1.0,
    "use_gating": False,
    "residual_before_ln": True,
    "adapter_residual_before_ln": False,
    "leave_out": [],
}
_INNER: dict[str, Any] = {
    "selfattn_lora": True,
    "intermediate_lora": False,
    "output_lora": False,
    "r": 8,
    "alpha": 8,
    "attn_matrices": ["q", "v"],
    "composition_mode": "add",
    "leave_out": [],
}
# Initialisation and training of the weights, and settings of features that are off.
_NO_EFFECT = (
    "architecture", "init_weights", "init_weights_seed", "dropout", "stochastic_depth", "dtype",
    "inv_adapter", "inv_adapter_reduction_factor", "invertible_adapter", "cross_adapter",
    "phm_layer", "phm_dim", "phm_rank", "phm_bias", "phm_c_init", "phm_init_range", "learn_phm",
    "shared_phm_rule", "factorized_phm_rule", "shared_W_phm", "factorized_phm_W", "hypercomplex_nonlinearity",
)  # fmt: skip
_LIBRARY = "adapters 1.3"
# Configurations that old files give only by name.
NAMED: dict[str, dict[str, Any]] = {
    "pfeiffer": {"original_ln_before": True},
    "houlsby": {"mh_adapter": True, "non_linearity": "swish"},
    "parallel": {"is_parallel": True, "reduction_factor": 2, "scaling": 4.0},
    "lora": {"architecture": "lora"},
    "ia3": {
        "architecture": "lora",
        "intermediate_lora": True,
        "r": 1,
        "alpha": 1,
        "attn_matrices": ["k", "v"],
        "composition_mode": "scale",
    },
}
SYNONYMS = {
    "seq_bn": "pfeiffer",
    "double_seq_bn": "houlsby",
    "par_bn": "parallel",
    "scaled_parallel": "parallel",
}
REFUSED_ARCHITECTURES = {
    "prefix_tuning": "prefix tuning",
    "prompt_tuning": "prompt tuning",
    "reft": "ReFT",
    "mtl_lora": "multi-task LoRA",
}
REFUSED_FIELDS = {"use_dora": "DoRA", "vera_d": "VeRA", "vera_b": "VeRA", "use_gating": "gated LoRA"}
# In files without a version, written before adapter-transformers 1.0, names meant other functions.
_RENAMED = {"gelu": "gelu_new", "gelu_orig": "gelu"}


@dataclass(frozen=True)
class AdapterHubConfig:
    """A configuration with defaults filled in.

    Attributes:
        kinds: the library's names of its parts.
        bottleneck: configuration of the bottlenecks, or None.
        inner: configuration of adapters inside the sublayers, or None.
        lost_scaling: the version forgot LoRA's and (IA)^3's scaling where it wrapped a linear map.
    """

    kinds: tuple[str, ...]
    bottleneck: dict[str, Any] | None
    inner: dict[str, Any] | None
    lost_scaling: bool = False

    def spec(self, layer: int, site: SiteKind, size: int) -> BottleneckSpec:
        """The bottleneck at one site."""
        config = self.bottleneck
        assert config is not None, "only called for sites with a bottleneck"
        scaling, parallel = config["scaling"], bool(config["is_parallel"])
        learned = scaling if isinstance(scaling, str) else "none"
        # Without the LayerNorm before it, the skip connection starts at the sublayer's output.
        before = config["residual_before_ln"] if config["original_ln_before"] else True
        return BottleneckSpec(
            layer=layer,
            site=site,
            size=size,
            activation=str(config["non_linearity"]).lower(),
            parallel=parallel,
            norm_before=bool(config["original_ln_before"]) and not parallel,
            norm_after=bool(config["original_ln_after"]),
            skip={True: "output", "post_add": "sum", False: "normed"}[before],
            ln_before=bool(config["ln_before"]),
            ln_after=bool(config["ln_after"]),
            ln_after_skip=bool(config["adapter_residual_before_ln"]),
            scale=1.0 if isinstance(scaling, str) else float(scaling),
            learned_scale={"learned": "one"}.get(learned, learned),
            gate=bool(config["use_gating"]),
        )


def parts_of(document: dict[str, Any], folder: Path) -> AdapterHubConfig:
    """The parts of an ``adapter_config.json``."""
    config = document.get("config")
    configs = [config]
    if isinstance(config, dict) and "configs" in config:
        refuse_unknown(folder / CONFIG, config, ("architecture", "configs"), _LIBRARY)
        if config.get("architecture") != "union":
            raise unsupported(
                folder, f"several configs of the architecture {quote(config.get('architecture'))}"
            )
        configs = config["configs"]
        if not isinstance(configs, list) or not configs:
            raise CheckpointError(f"{folder / CONFIG}: configs is {quote(configs)}, expected a list")
    bottleneck = inner = None
    kinds = []
    for one in configs:
        part = _resolved(one, folder)
        if part.get("architecture") is None:
            if bottleneck is not None:
                raise unsupported(folder, "two kinds of bottlenecks in one adapter")
            bottleneck = _bottleneck(part, document, folder)
            both = bottleneck["mh_adapter"] and bottleneck["output_adapter"]
            kinds.append("par_bn" if bottleneck["is_parallel"] else "double_seq_bn" if both else "seq_bn")
        else:
            if inner is not None:
                raise unsupported(folder, "two kinds of LoRA in one adapter")
            inner = _inner(part, folder)
            kinds.append("ia3" if inner["composition_mode"] == "scale" else "lora")
    return AdapterHubConfig(
        tuple(kinds), bottleneck, inner, _scaling_was_lost(str(document.get("version", "")))
    )


def _resolved(config: object, folder: Path) -> dict[str, Any]:
    if isinstance(config, str):
        name = SYNONYMS.get(config, config)
        if name not in NAMED:
            raise CheckpointError(
                f"checkpoint {folder} has the configuration {quote(config)}; known names are "
                f"{', '.join([*NAMED, *SYNONYMS])}"
            )
        config = NAMED[name]
    if not isinstance(config, dict):
        raise CheckpointError(f"checkpoint {folder}: config is {quote(config)}, expected an object or a name")
    architecture = config.get("architecture")
    if isinstance(architecture, str) and architecture in REFUSED_ARCHITECTURES:
        raise unsupported(folder, REFUSED_ARCHITECTURES[architecture])
    if architecture not in (None, "lora"):
        raise unsupported(folder, f"the architecture {quote(architecture)}")
    return config


def _bottleneck(config: dict[str, Any], document: dict[str, Any], folder: Path) -> dict[str, Any]:
    path, legacy = folder / CONFIG, "version" not in document
    if config.get("phm_layer"):
        raise unsupported(folder, "compacter layers (phm_layer)")
    # Old task adapters list invertible adapters that they never had.
    if config.get("inv_adapter") and document.get("type") != "text_task" and not legacy:
        raise unsupported(folder, f"invertible adapters (inv_adapter {quote(config['inv_adapter'])})")
    if config.get("cross_adapter"):
        raise unsupported(folder, "adapters after cross-attention (cross_adapter)")
    filled = _filled(path, config, BOTTLENECK)
    if filled["scaling"] not in ("learned", "channel"):
        number_field(path, "scaling", filled["scaling"])
    if filled["residual_before_ln"] != "post_add":
        flag_field(path, "residual_before_ln", filled["residual_before_ln"])
    factors = filled["reduction_factor"]
    for name, factor in factors.items() if isinstance(factors, dict) else ((None, factors),):
        number_field(
            path, "reduction_factor" if name is None else f"reduction_factor of {name!r}", factor, 1e-6
        )
    if not isinstance(filled["non_linearity"], str):
        raise CheckpointError(f"{path}: non_linearity is {quote(filled['non_linearity'])}, expected a name")
    if legacy:
        filled["non_linearity"] = _RENAMED.get(filled["non_linearity"], filled["non_linearity"])
    return filled


def _filled(path: Path, config: dict[str, Any], defaults: Mapping[str, Any], *others: str) -> dict[str, Any]:
    """A configuration with defaults, its truth values and layers checked."""
    refuse_unknown(path, config, (*defaults, *_NO_EFFECT, *others), _LIBRARY)
    filled = {**defaults, **{name: value for name, value in config.items() if name in defaults}}
    for name, default in defaults.items():
        if isinstance(default, bool) and name != "residual_before_ln":
            filled[name] = flag_field(path, name, filled[name])
    if not isinstance(filled["leave_out"], list):
        raise CheckpointError(f"{path}: leave_out is {quote(filled['leave_out'])}, expected a list of layers")
    for layer in filled["leave_out"]:
        whole_number_field(path, "leave_out", layer)
    return filled


def _inner(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    for name, what in REFUSED_FIELDS.items():
        if config.get(name):
            raise unsupported(folder, f"{what} ({name})")
    filled = _filled(path, config, _INNER, *REFUSED_FIELDS)
    if filled["composition_mode"] not in ("add", "scale"):
        raise CheckpointError(
            f"{path}: composition_mode is {quote(filled['composition_mode'])}, expected add or scale"
        )
    filled["r"] = whole_number_field(path, "r", filled["r"], 1)
    filled["alpha"] = number_field(path, "alpha", filled["alpha"])
    if unknown := sorted(
        set(text_list_field(path, "attn_matrices", filled["attn_matrices"])) - {"q", "k", "v"}
    ):
        raise CheckpointError(f"{path}: attn_matrices has {quote(unknown[0])}, expected q, k and v")
    return filled


def _scaling_was_lost(version: str) -> bool:
    """Whether the version omitted alpha / r when it wrapped a linear map: adapters 0.x and 1.0."""
    numbers = version.removeprefix("adapters.").split(".")
    if not version.startswith("adapters.") or not all(part.isdigit() for part in numbers[:2]):
        return False
    return tuple(map(int, numbers[:2])) < (1, 1)
