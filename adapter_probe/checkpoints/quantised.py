"""Bases that are stored quantised: what runs them, and how (without torch)."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from adapter_probe.errors import CheckpointError, install_extra

from .files import quote

# The module that runs each method, and the package that has it, as transformers 5.23 asks for them.
_PACKAGES = {
    "bitsandbytes": ("bitsandbytes", "bitsandbytes"),
    "torchao": ("torchao", "torchao"),
    "gptq": ("gptqmodel", "gptqmodel"),
    "awq": ("gptqmodel", "gptqmodel"),
    "hqq": ("hqq", "hqq"),
    "quanto": ("optimum.quanto", "optimum-quanto"),
    "compressed-tensors": ("compressed_tensors", "compressed-tensors"),
    "auto-round": ("auto_round", "auto-round"),
    "aqlm": ("aqlm", "aqlm"),
    "vptq": ("vptq", "vptq"),
    "eetq": ("kernels", "kernels"),
}
_IN_EXTRA = ("bitsandbytes", "torchao")
_OUTLIERS = 6.0  # the threshold of LLM.int8() where a configuration gives none
_QUANTISED_NAME = re.compile(r"(?:-unsloth)?-bnb-4bit$", re.IGNORECASE)


def method_of(fields: Mapping[str, Any]) -> str | None:
    """The quantisation method in the fields of a base's config.json; None for an unquantised base."""
    config = fields.get("quantization_config")
    if not config:
        return None
    if not isinstance(config, Mapping):
        return "?"
    if config.get("load_in_4bit") or config.get("load_in_8bit"):  # transformers before 4.36 named no method
        return "bitsandbytes"
    return str(config.get("quant_method", "?"))


def refuse_without_package(name: str, fields: Mapping[str, Any]) -> None:
    """Refuse a quantised base whose package is not installed."""
    method = method_of(fields)
    if method is None:
        return
    if not isinstance(fields["quantization_config"], Mapping):
        shown = quote(fields["quantization_config"])
        raise CheckpointError(
            f"base {name}: quantization_config in its config.json is {shown}, expected an object"
        )
    module, package = _PACKAGES.get(method, ("", ""))
    for needed, of in ((module, package), ("accelerate", "accelerate")):
        if needed and not _installed(needed):
            how = install_extra("quantised") if method in _IN_EXTRA else f"install {of}"
            raise CheckpointError(
                f"base {name} is quantised with {method}, which needs the package {of}; {how}, or give the "
                "unquantised model with --base, which is another model"
            )


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # of a module inside a package that is missing or blocked
        return False


def mixes_examples(fields: Mapping[str, Any]) -> bool:
    """Whether a text's outputs depend on the other texts of its batch.

    With LLM.int8(), a column of the activations is computed in half precision where any text of the batch has
    an outlier, see Dettmers et al. 2022 (arXiv 2208.07339), section 3.2.
    """
    config = fields.get("quantization_config")
    if method_of(fields) != "bitsandbytes" or not isinstance(config, Mapping):
        return False
    return bool(config.get("load_in_8bit")) and float(config.get("llm_int8_threshold", _OUTLIERS)) > 0


@contextlib.contextmanager
def quiet_quantisers() -> Iterator[None]:
    """Import libraries that look for faster code on a network, without that and without their warning.

    bitsandbytes 0.50 asks the package `kernels` at import for a product on the Hugging Face Hub.
    """
    logger, absent = logging.getLogger("bitsandbytes"), "kernels" not in sys.modules
    level = logger.level
    logger.setLevel(logging.ERROR)
    if absent:
        sys.modules["kernels"] = None  # type: ignore[assignment]  # an import of it fails
    try:
        yield
    finally:
        logger.setLevel(level)
        if absent:
            sys.modules.pop("kernels", None)


def twin_of(name: str) -> str | None:
    """The unquantised model beside one of Unsloth's quantised ones, by its name; None for other names."""
    twin = _QUANTISED_NAME.sub("", name)
    return twin if twin != name else None
