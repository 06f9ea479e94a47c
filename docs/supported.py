"""`python docs/supported.py`: what can be opened, as a part of a page that is made from the readers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from adapter_probe.checkpoints import (
    adapter_bert,
    adapter_folder,
    adapterhub,
    adapterhub_config,
    mlx,
    peft_fields,
)
from adapter_probe.checkpoints.files import CONFIG, DELTA, DESCRIPTION
from adapter_probe.checkpoints.places import FAMILIES
from adapter_probe.settings import annotations_of, choices_of
from adapter_probe.studies.inspect_convert import Convert

PAGE = Path(__file__).parent / "guides" / "peft-adapterhub.md"
BEGIN, END = "<!-- made from the code: begin -->", "<!-- made from the code: end -->"


def _libraries() -> list[tuple[str, str, list[str], str]]:
    """Of each library its name, its files, what of it is opened, and what is refused by name."""
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
    return [
        ("adapter-probe", f"`{DESCRIPTION}`, `{DELTA}`", ["all checkpoints"], ""),
        (
            "PEFT",
            _files(CONFIG, adapter_folder.WEIGHTS),
            [
                "by PEFT's own loader, every type with a switch in the layers, on every text model of "
                "Transformers"
            ],
            f"types {_code(peft_fields.UNSWITCHED)}; {'; '.join(peft_fields.REFUSED_SETTINGS.values())}",
        ),
        (
            "MLX-LM",
            _files(CONFIG, (mlx.WEIGHTS,)),
            ["LoRA and DoRA of language models (`fine_tune_type` `lora`, `dora`), translated into PEFT's"],
            "full fine-tuning, LoRA of experts, MLX-VLM's adapters of models of texts and images, bases that "
            "are quantised in MLX's own format",
        ),
        (
            "AdapterHub: `adapters` and `adapter-transformers`",
            _files(adapterhub.CONFIG, adapterhub.WEIGHTS, adapterhub.HEAD_WEIGHTS),
            [
                "bottleneck adapters, LoRA, (IA)³, and unions with at most one of each",
                f"configurations {_code(configs)}, or custom settings",
                f"heads {_code(adapterhub.SUPPORTED_HEADS)}",
            ],
            ", ".join(refused),
        ),
        (
            f"The paper's code: [{adapter_bert.LIBRARY}](https://github.com/{adapter_bert.LIBRARY})",
            f"`*{adapter_bert.INDEX}`, `*.data-*-of-*`, `{adapter_bert.LATEST}`",
            ["bottleneck adapters on BERT, with the head of `run_classifier.py` (extra `tensorflow`)"],
            "variables that are not of floating point, variables that this code does not have",
        ),
    ]


def support_sections() -> str:
    """Markdown: a section for each library, then the families."""
    lines = []
    for library, files, opened, never in _libraries():
        lines += [f"### {library}", "", f"- **Files:** {files}", f"- **Opened:** {'; '.join(opened)}"]
        lines += [f"- **Refused, by name:** {never}"] * bool(never) + [""]
    families = _code(FAMILIES)
    formats = list(choices_of(annotations_of(Convert)["to"]))
    lines += [
        "### For all of them",
        "",
        f"- **Model types that take bottlenecks:** {families}",
    ]
    return "\n".join([*lines, f"- **Formats that `convert` writes:** {_code(formats)}"])


def update(path: Path) -> None:
    """Put the sections into a Markdown file, between its two marks."""
    text = path.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    path.write_text(f"{before}{BEGIN}\n\n{support_sections()}\n\n{END}{after}", encoding="utf-8")


def _code(names: Iterable[object]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _files(config: str, *weights: tuple[str, ...]) -> str:
    return ", ".join([f"`{config}`", *(" or ".join(f"`{name}`" for name in names) for names in weights)])


if __name__ == "__main__":
    update(PAGE)
