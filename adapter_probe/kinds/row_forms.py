"""The forms of a language model's rows: what is scored of one, and by which metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from adapter_probe.metrics import BY_NAME

Form = Literal["choice", "completion", "text", "generation", "preference"]


@dataclass(frozen=True)
class RowForm:
    """A form of rows.

    Attributes:
        name: its name in records and messages.
        usual: its usual metric.
        are_texts: whether whole texts are scored by their likelihood.
        are_choices: whether one of several continuations is right.
        are_completions: whether one continuation is scored by its likelihood.
        are_preferences: whether they are a chosen and a rejected answer.
        are_written: whether the model writes, and what it writes is scored.
    """

    name: Form | None
    usual: str
    are_texts: bool = False
    are_choices: bool = False
    are_completions: bool = False
    are_preferences: bool = False
    are_written: bool = False

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that fit, the usual one first."""
        fitting = (metric for metric, own in BY_NAME.items() if self.name in own.forms)
        return tuple(dict.fromkeys((self.usual, *fitting)))


_FORMS = (
    RowForm("choice", "accuracy", are_choices=True),
    RowForm("completion", "nll", are_completions=True),
    RowForm("text", "bits_per_byte", are_texts=True),
    RowForm("generation", "text_match", are_written=True),
    RowForm("preference", "pairwise_accuracy", are_preferences=True),
)  # fmt: skip
ROW_FORMS: dict[Form, RowForm] = {one.name: one for one in _FORMS if one.name}
"""All of them, by name."""
NO_FORM = RowForm(None, "")
"""That of rows of all other kinds of tasks."""
