"""How language models are asked and write: the settings of prompts and of `--generate`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from adapter_probe.errors import AdapterProbeError, DataError, must_be
from adapter_probe.settings import Settings, flag_of, setting


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
        "likeliest token.", metavar="T", slug="t{}",
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
        return tuple(text.replace(r"\n", "\n").replace(r"\t", "\t") for text in self.until)

    @property
    def identity(self) -> dict[str, Any]:
        """What determines the texts, and not their scores."""
        return {k: v for k, v in self.to_json().items() if k not in ("generate", "extract")} | {
            "max_new_tokens": self.max_new_tokens
        }


@dataclass(frozen=True, kw_only=True)
class Prompting(Settings):
    """The prompt of a task of lm-evaluation-harness."""

    panel = "Prompts"
    error: ClassVar[type[AdapterProbeError]] = DataError

    apply_chat_template: bool = setting(
        False, "put each question of a task of lm-evaluation-harness into the chat template that was saved "
        "with the adapter, or else that of the base.", slug="chat",
    )  # fmt: skip
    fewshot_as_multiturn: bool | None = setting(
        None, "give the worked examples before a question as turns of a conversation, or all in one; with a "
        "chat template, turns are the default.",
        flags=["--fewshot-as-multiturn/--no-fewshot-as-multiturn"], slug="multiturn-{}",
    )  # fmt: skip
    num_fewshot: int | None = setting(
        None, "number of worked examples before each question; by default the task's. A task that sets 0 "
        "itself keeps 0.", least=0, slug="{}shot", metavar="NUMBER",
    )  # fmt: skip
    system_instruction: str | None = setting(
        None, "text of the system's turn, or before the question without a chat template.",
        metavar="TEXT", slug="system",
    )  # fmt: skip

    @property
    def as_multiturn(self) -> bool:
        """Whether the worked examples are turns of a conversation."""
        if self.fewshot_as_multiturn and not self.apply_chat_template:
            raise DataError("--fewshot-as-multiturn needs --apply-chat-template, which writes the turns")
        return self.apply_chat_template if self.fewshot_as_multiturn is None else self.fewshot_as_multiturn

    def refuse(self) -> None:
        """Refuse the settings for rows that are not of lm-evaluation-harness."""
        for name, default in vars(Prompting()).items():
            if getattr(self, name) != default:
                raise DataError(
                    f"{flag_of(name)} applies only to tasks of lm-evaluation-harness (--task lm-eval:NAME); "
                    "rows of a file go through the chat template if they are written as messages"
                )


def chat_writer(tokenizer: Any, name: str) -> Callable[..., str]:
    """A function that writes a conversation by a tokenizer's chat template, as lm-evaluation-harness does."""
    if not getattr(tokenizer, "chat_template", None):
        raise DataError(
            f"{name}: --apply-chat-template needs a chat template, and neither the checkpoint nor its base "
            "has one; leave it out, or give a base with one (--base)"
        )
    from jinja2 import TemplateError

    def write(messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        options = {"tokenize": False, "add_generation_prompt": add_generation_prompt}
        options["continue_final_message"] = not add_generation_prompt
        try:
            return tokenizer.apply_chat_template(messages, **options)
        except TemplateError:  # of a template without a turn of the system
            rest = [one for one in messages if one["role"] != "system"]
            return tokenizer.apply_chat_template(rest, **options)

    return write
