"""Messages in the words of Python: its arguments where a command has options, and no files that are gone."""

from __future__ import annotations

import re
from dataclasses import fields

from adapter_probe.metrics import BY_NAME
from adapter_probe.settings import annotations_of, choices_of, kinds_of

from .checkpoint_arguments import Ablate

_OPTION = re.compile(r"--(?P<name>[a-z][a-z-]*[a-z])(?: (?P<value>'[^']*'|[A-Z][A-Z_]+\b|[\w.-]*\w))?")
_ROWS = re.compile(r"[^\s:;,()]*rows-[0-9a-f]{12}\.jsonl")
_OTHER = {"slurm": "cluster", "subfolder": "adapter"}  # options that have another name in Python


def in_python(message: str) -> str:
    """A message of a command for a caller of the function: ``metric='kl'`` in place of ``--metric kl``."""
    return _OPTION.sub(_argument, _ROWS.sub("data", message))


def _argument(found: re.Match[str]) -> str:
    name, value = found["name"].replace("-", "_"), found["value"] or ""
    name = _OTHER.get(name, name)
    if name not in (known := {one.name: one for one in fields(Ablate)}):
        return found[0]
    default = known[name].default
    if isinstance(default, bool):
        return f"{name}=True" + (f" {value}" if value else "")
    if value.isupper() or value[:1] == "'" or re.fullmatch(r"-?[\d.]+", value):
        return f"{name}={value}"
    if re.fullmatch(r"\d+-\d+", value):  # layers
        return f"{name}={value!r}"
    kinds = kinds_of(annotations_of(Ablate)[name])
    choices = [choice for kind in kinds for choice in choices_of(kind)]
    if value in (*choices, *(BY_NAME if name == "metric" else ()), "off"):
        return f"{name}={value!r}"
    return f"{name}=" + (f" {value}" if value else "")
