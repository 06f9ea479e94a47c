"""How tasks of lm-evaluation-harness are put to a chat model: its own settings, under its own names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from adapter_probe.errors import AdapterProbeError, DataError
from adapter_probe.settings import Settings, flag_of, setting


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
        """Whether the worked examples are turns of a conversation.

        Raises:
            DataError: they are asked for without a chat template.
        """
        if self.fewshot_as_multiturn and not self.apply_chat_template:
            raise DataError("--fewshot-as-multiturn needs --apply-chat-template, which writes the turns")
        return self.apply_chat_template if self.fewshot_as_multiturn is None else self.fewshot_as_multiturn

    def refuse(self) -> None:
        """Refuse the settings for rows that are not of lm-evaluation-harness.

        Raises:
            DataError: one is given.
        """
        for name, default in vars(Prompting()).items():
            if getattr(self, name) != default:
                raise DataError(
                    f"{flag_of(name)} applies only to tasks of lm-evaluation-harness (--task lm-eval:NAME); "
                    "rows of a file go through the chat template if they are written as messages"
                )


def chat_writer(tokenizer: Any, name: str) -> Callable[..., str]:
    """A function that writes a conversation by a tokenizer's chat template, as lm-evaluation-harness does.

    Raises:
        DataError: the tokenizer has no template.
    """
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
            made: str = tokenizer.apply_chat_template(messages, **options)
        except TemplateError:  # of a template without a turn of the system
            rest = [one for one in messages if one["role"] != "system"]
            made = tokenizer.apply_chat_template(rest, **options)
        return made

    return write
