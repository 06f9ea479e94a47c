"""The configurations of AdapterHub's libraries: names, defaults, what is supported."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapter_probe.errors import CheckpointError
from adapter_probe.models.adapters.imported import BottleneckSpec, SiteKind

from .foreign import BaseShape, refuse

# What a field stands for where a file does not have it.
_BOTTLENECK: dict[str, Any] = {
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
# Configurations that old files give by name alone.
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
# In files without a version, by adapter-transformers before 1.0, names stood for other functions.
_RENAMED = {"gelu": "gelu_new", "gelu_orig": "gelu"}


@dataclass(frozen=True)
class Parts:
    """A configuration, defaults filled in.

    Attributes:
        kinds: what the library calls its parts.
        bottleneck: of the bottlenecks, or None where there are none.
        inner: of what is inside the sublayers, or None.
    """

    kinds: tuple[str, ...]
    bottleneck: dict[str, Any] | None
    inner: dict[str, Any] | None

    def spec(self, layer: int, site: SiteKind, size: int) -> BottleneckSpec:
        """The bottleneck at one site."""
        config = self.bottleneck
        assert config is not None, "asked of a site with a bottleneck"
        scaling, parallel = config["scaling"], bool(config["is_parallel"])
        learned = scaling if isinstance(scaling, str) else "none"
        # Without the LayerNorm before, all there is to skip from is the sublayer's output.
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


def parts_of(document: dict[str, Any], folder: Path) -> Parts:
    """The parts of an ``adapter_config.json``.

    Raises:
        CheckpointError: some are not supported.
    """
    config = document.get("config")
    configs = config["configs"] if isinstance(config, dict) and "configs" in config else [config]
    bottleneck = inner = None
    kinds = []
    for one in configs:
        part = _resolved(one, folder)
        if part.get("architecture") is None:
            if bottleneck is not None:
                raise refuse(folder, "two kinds of bottlenecks in one adapter")
            bottleneck = _bottleneck(part, document, folder)
            kinds.append(_bottleneck_name(bottleneck))
        else:
            if inner is not None:
                raise refuse(folder, "two kinds of LoRA in one adapter")
            inner = _inner(part, document, folder)
            kinds.append("ia3" if inner["composition_mode"] == "scale" else "lora")
    return Parts(tuple(kinds), bottleneck, inner)


def _resolved(config: object, folder: Path) -> dict[str, Any]:
    if isinstance(config, str):
        name = SYNONYMS.get(config, config)
        if name not in NAMED:
            raise CheckpointError(
                f"checkpoint {folder} gives its configuration by the name {config!r}; known are "
                f"{', '.join([*NAMED, *SYNONYMS])}"
            )
        config = NAMED[name]
    if not isinstance(config, dict):
        raise CheckpointError(f"checkpoint {folder}: config is {config!r}, expected an object or a name")
    if config.get("architecture") in REFUSED_ARCHITECTURES:
        raise refuse(folder, REFUSED_ARCHITECTURES[config["architecture"]])
    if config.get("architecture") not in (None, "lora"):
        raise refuse(folder, f"the architecture {config['architecture']!r}")
    return config


def _bottleneck(config: dict[str, Any], document: dict[str, Any], folder: Path) -> dict[str, Any]:
    legacy = "version" not in document
    if config.get("phm_layer"):
        raise refuse(folder, "compacter layers (phm_layer)")
    # Old task adapters name invertible adapters that they never had.
    if config.get("inv_adapter") and document.get("type") != "text_task" and not legacy:
        raise refuse(folder, f"invertible adapters (inv_adapter {config['inv_adapter']!r})")
    filled = {**_BOTTLENECK, **{k: v for k, v in config.items() if k in _BOTTLENECK}}
    if filled["scaling"] not in ("learned", "channel") and not isinstance(filled["scaling"], int | float):
        raise refuse(folder, f"scaling {filled['scaling']!r}")
    if filled["residual_before_ln"] not in (True, False, "post_add"):
        raise refuse(folder, f"residual_before_ln {filled['residual_before_ln']!r}")
    if legacy:
        filled["non_linearity"] = _RENAMED.get(filled["non_linearity"], filled["non_linearity"])
    return filled


def _bottleneck_name(config: dict[str, Any]) -> str:
    if config["is_parallel"]:
        return "par_bn"
    return "double_seq_bn" if config["mh_adapter"] and config["output_adapter"] else "seq_bn"


def _inner(config: dict[str, Any], document: dict[str, Any], folder: Path) -> dict[str, Any]:
    for name, what in REFUSED_FIELDS.items():
        if config.get(name):
            raise refuse(folder, f"{what} ({name})")
    filled = {**_INNER, **{k: v for k, v in config.items() if k in _INNER}}
    if filled["composition_mode"] == "add" and _scaling_was_lost(str(document.get("version", ""))):
        filled["alpha"] = filled["r"]
    return filled


def _scaling_was_lost(version: str) -> bool:
    """Whether the version trained LoRA without alpha / r: adapters 0.x and 1.0."""
    numbers = version.removeprefix("adapters.").split(".")
    if not version.startswith("adapters.") or not all(part.isdigit() for part in numbers[:2]):
        return False
    return tuple(map(int, numbers[:2])) < (1, 1)


def check_bottleneck(folder: Path, config: Parts, found: Sequence[BottleneckSpec], base: BaseShape) -> None:
    """Refuse a file that lacks adapters which its configuration names.

    Raises:
        CheckpointError: one line with the first.
    """
    if config.bottleneck is None:
        return
    layers = base.layers_but(config.bottleneck["leave_out"])
    sites = {"attention": "mh_adapter", "ffn": "output_adapter"}
    wanted = {(layer, site) for layer in layers for site, name in sites.items() if config.bottleneck[name]}
    lacking = sorted(wanted - {(spec.layer, spec.site) for spec in found})
    if lacking:
        layer, site = lacking[0]
        raise CheckpointError(
            f"checkpoint {folder} lacks {len(lacking)} of the adapters that its configuration names, the "
            f"first in layer {layer} after the {site} sublayer; the base has {len(base.layer_names)} layers"
        )


def check_inner(folder: Path, config: Parts, found: Set[int], base: BaseShape) -> None:
    """Refuse a file that lacks the LoRA of some layer.

    Args:
        folder: of the checkpoint, for the message.
        config: what it says of itself.
        found: the layers that have some.
        base: which layers there are.

    Raises:
        CheckpointError: one line with the first such layer.
    """
    if config.inner is None:
        return
    if lacking := sorted(set(base.layers_but(config.inner["leave_out"])) - found):
        raise CheckpointError(
            f"checkpoint {folder} lacks the {config.kinds[-1]} weights of layer {lacking[0]}; the base has "
            f"{len(base.layer_names)} layers"
        )
