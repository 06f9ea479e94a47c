"""How a language model writes texts that are scored: the settings of `--generate`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from adapter_probe.errors import AdapterProbeError, DataError, must_be
from adapter_probe.settings import Settings, flag_of, setting

_ESCAPES = {r"\n": "\n", r"\t": "\t"}
_OF_SCORES = ("extract",)


@dataclass(frozen=True, kw_only=True)
class Generation(Settings):
    """How texts are written, and what of them is scored."""

    panel = "Generation"
    error: ClassVar[type[AdapterProbeError]] = DataError

    generate: bool = setting(
        False, "let the model write the answers, and score what it writes, of rows with prompt (or messages) "
        "and answer. The metrics are exact_match, contains, number, token_f1 and rouge_l.", slug="generated",
    )  # fmt: skip
    max_new_tokens: int = setting(
        64, "the most tokens of a written text.", least=1, slug="new{}", metavar="NUMBER"
    )
    until: Sequence[str] = setting(
        (), r"text that ends a written text where it first occurs, and is left out, such as '\n'.",
        metavar="TEXT", shell=list[str], slug="until",
    )  # fmt: skip
    temperature: float = setting(
        0.0, "draw tokens at this temperature, with the same random numbers for every variant; 0 takes the "
        "likeliest token.", metavar="T", slug="t{:g}",
    )  # fmt: skip
    seed: int = setting(0, "seed of the draws.", least=0, metavar="NUMBER", slug="seed{}")
    extract: str | None = setting(
        None, "regular expression of what is scored of a written text: its first group, or the whole match; "
        "a text without a match is wrong.", metavar="REGEX", slug="extracted",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise DataError(must_be("--temperature", "a finite number of at least 0", self.temperature))
        if "" in self.until:
            raise DataError("--until is empty; give the text that ends a written one")
        if self.generate:
            return
        for one in fields(Generation):
            value = getattr(self, one.name)
            if (tuple(value) if one.name == "until" else value) != one.default:
                flag = flag_of(one.name)
                raise DataError(f"{flag} applies only to texts that the model writes; give --generate too")

    @property
    def ends(self) -> tuple[str, ...]:
        r"""The texts that end a written one; ``\n`` and ``\t`` mean the characters."""
        return tuple(_unescaped(text) for text in self.until)

    @property
    def identity(self) -> dict[str, Any]:
        """What determines the texts, and not their scores."""
        return {k: v for k, v in self.to_json().items() if k not in ("generate", *_OF_SCORES)} | {
            "max_new_tokens": self.max_new_tokens
        }


def _unescaped(text: str) -> str:
    for said, meant in _ESCAPES.items():
        text = text.replace(said, meant)
    return text
