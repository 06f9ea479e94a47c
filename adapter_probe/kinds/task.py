"""What every kind of task answers about its data, its head and its words."""

from __future__ import annotations

from dataclasses import dataclass

from adapter_probe.metrics import Kind

AT_RANDOM = ("random choice", "a choice at random")


@dataclass(frozen=True)
class TaskKind:
    """What a kind of task is.

    Attributes:
        name: its name in records and messages.
        example: what one of its examples is called; several are `examples`.
        drawn: what resamples draw as one: paragraphs, whose questions are not independent, or examples.
        guess: what answers without any skill are called, and what gives them.
        right_by: what an example's outcome goes by, after a comma, where that is not its prediction; else
            empty.
        label: what is asked of an example: a class, labels, or a number.
        has_classes: whether the head has an output for each of the task's labels.
        one_class: whether every example has one of these labels, and every output is a label's.
        head: what a model computes for it, see `adapter_probe.checkpoints.model_class`; empty for its name.
        n_outputs: number of outputs of the head where the labels do not say it; None where nothing does.
        reads_all: whether what is scored is read at many positions of a text, and not at one.
        in_windows: whether a text that is too long is read in windows.
        lists: what the lists of its column of labels hold; empty where a label is one value.
        of_words: whether texts are given as lists of words.
        is_language_model: whether tokens are predicted, so that there is no head for the task.
    """

    name: Kind
    example: str = "example"
    examples: str = "examples"
    drawn: str = "examples"
    guess: tuple[str, str] = ("majority class", "always answering with the most frequent class")
    right_by: str = ""
    label: str = "class"
    has_classes: bool = False
    one_class: bool = False
    head: str = ""
    n_outputs: int | None = None
    reads_all: bool = False
    in_windows: bool = False
    lists: str = ""
    of_words: bool = False
    is_language_model: bool = False

    @property
    def is_number(self) -> bool:
        """Whether the head has one output, a number."""
        return self.n_outputs == 1
