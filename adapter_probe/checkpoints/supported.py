"""What can be opened, as a table that is made from the readers themselves."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from adapter_probe.models.bases.anatomy import supported_model_types

from . import adapter_bert, adapterhub, adapterhub_config, adapterhub_head, peft, peft_config
from .converting import FORMATS
from .description import DESCRIPTION
from .native import DELTA

BEGIN, END = "<!-- made from the code: begin -->", "<!-- made from the code: end -->"


def support_table() -> str:
    """Markdown: a table a library, and the families."""
    configs = [*adapterhub_config.NAMED, *adapterhub_config.SYNONYMS]
    refused = sorted(
        {
            *adapterhub_config.REFUSED_ARCHITECTURES.values(),
            *adapterhub.REFUSED_KEYS.values(),
            *adapterhub.REFUSED_FILES.values(),
            *adapterhub_config.REFUSED_FIELDS.values(),
        },
        key=str.casefold,
    )
    head_types = ", ".join(f"`{name}`" for name in adapterhub_head.SUPPORTED_HEADS)
    rows = [
        ("**this project**", f"`{DESCRIPTION}`, `{DELTA}`", "all", "none"),
        (
            "**AdapterHub** (`adapters`, `adapter-transformers`)",
            _files(adapterhub.CONFIG, adapterhub.WEIGHTS, adapterhub_head.HEAD_WEIGHTS),
            f"bottlenecks, LoRA, (IA)³ and unions of one of each ({_code(configs)}, or any setting of their "
            f"own); heads: {head_types}",
            ", ".join(refused),
        ),
        (
            "**PEFT**",
            _files(peft_config.CONFIG, peft.WEIGHTS),
            f"types {_code(peft_config.SUPPORTED_TYPES)}; task types {_code(peft_config.TASK_TYPES)} or none",
            ", ".join(peft_config.REFUSED_FIELDS.values()),
        ),
        (
            f"**[{adapter_bert.LIBRARY}](https://github.com/{adapter_bert.LIBRARY})**, the paper's own code",
            f"`*{adapter_bert.INDEX}`, `*.data-*-of-*`, `{adapter_bert.LATEST}`",
            "bottlenecks on BERT, with the head of `run_classifier.py`; TensorFlow is not needed",
            "variables in slices, compressed or big-endian files",
        ),
    ]
    lines = ["| written by | files | opened | refused, by name |", "| --- | --- | --- | --- |"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    families = _code(supported_model_types())
    return "\n".join(
        [*lines, "", f"Families of the base: {families}.", "", f"Written by `convert`: {_code(FORMATS)}."]
    )


def update(path: Path) -> None:
    """Put the table into a Markdown file, between its two marks."""
    text = path.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    path.write_text(f"{before}{BEGIN}\n\n{support_table()}\n\n{END}{after}", encoding="utf-8")


def _code(names: Iterable[object]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _files(config: str, *weights: tuple[str, ...]) -> str:
    return ", ".join([f"`{config}`", *(" or ".join(f"`{name}`" for name in names) for names in weights)])
