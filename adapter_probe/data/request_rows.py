"""The forms of a row that a language model is evaluated on, by its columns, and the example that it makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from adapter_probe.data.formats import READERS
from adapter_probe.data.forms import DataForm, Role, answer_role, parts_in, prompt_role
from adapter_probe.data.messages import ROLES, applied, messages_of
from adapter_probe.data.naming import ANSWERED, SCORED, are_choices, how_to_read
from adapter_probe.data.rows import RowOf
from adapter_probe.errors import DataError, listed
from adapter_probe.kinds.row_forms import ROW_FORMS, Form, RowForm

REFERENCES = ("ref_chosen_logps", "ref_rejected_logps")
"""Columns of a reference model's log-likelihoods, as TRL names them."""


@dataclass(frozen=True)
class Request:
    """One example.

    Attributes:
        context: text before the continuations; may be empty.
        choices: the continuations, without the delimiter before them.
        delimiter: text between context and continuation.
        gold: index of the right choice.
        group: group of the example in the data, or "".
        framed: whether the tokenizer adds its first token; a chat template has written it already.
        counts: characters, bytes and words of every choice, if they differ from those of its text.
        turns: of a chat to train on, where every turn of the assistant begins and ends, in characters of
            context and choice together.
        reference: of a preference, the log-likelihoods of both answers by a reference model, if given.
    """

    context: str
    choices: tuple[str, ...]
    delimiter: str = ""
    gold: int = 0
    group: str = ""
    framed: bool = True
    counts: tuple[tuple[int, int, int], ...] = ()
    turns: tuple[tuple[int, int], ...] = ()
    reference: tuple[float, ...] = ()


def _asked(row: RowOf, tokenizer: Any) -> Request:
    choices = row.choices("choices")
    return Request(row.text("context"), choices, " ", row.index("gold", len(choices)))


def _question(row: RowOf, tokenizer: Any) -> Request:
    if row.record.get("context"):
        raise row.error("context", "no text beside a question; write it into the question")
    choices = row.choices("choices")
    context = f"Question: {row.text('question')}\nAnswer:"  # the prompt of ARC in lm-evaluation-harness
    return Request(context, choices, " ", row.index("answer", len(choices)))


def _pair(row: RowOf, tokenizer: Any) -> Request:
    sentences = row.filled("sentence_good"), row.filled("sentence_bad")
    parts = (row.label(name) for name in ("field", "UID") if name in row.record)
    return Request("", sentences, " ", 0, "/".join(part for part in parts if part))


def _chat(row: RowOf, tokenizer: Any) -> Request:
    """The last turn is the completion of all turns before it, formatted by the tokenizer's template."""
    messages = messages_of(row, "messages", ("assistant",), least=2)
    before = applied(row, "messages", tokenizer, messages[:-1], head=True)
    whole = applied(row, "messages", tokenizer, messages)
    if not whole.startswith(before) or whole == before:
        raise row.error("messages", "turns that the tokenizer's chat template writes in sequence")
    return Request(before, (whole[len(before) :],), framed=False)


def _completion(row: RowOf, tokenizer: Any) -> Request:
    """A completion of a prompt: texts, or messages as TRL has them."""
    if not isinstance(row.record["completion"], list):
        return Request(row.text("prompt"), (row.filled("completion"),))
    before = messages_of(row, "prompt", roles=ROLES)
    after = messages_of(row, "completion", ("assistant",), roles=ROLES)
    head = applied(row, "prompt", tokenizer, before, head=True)
    whole = applied(row, "completion", tokenizer, before + after)
    same = common_length(head, whole)
    return Request(whole[:same], (whole[same:],), framed=False)


def _turns(row: RowOf, tokenizer: Any) -> tuple[tuple[int, int], ...]:
    """Where the turns of the assistant begin and end in a chat that `_chat` has read."""
    messages: Any = row.record["messages"]
    whole = applied(row, "messages", tokenizer, messages)
    parts = [
        (
            applied(row, "messages", tokenizer, messages[:place], head=True),
            applied(row, "messages", tokenizer, messages[: place + 1]),
        )
        for place, message in enumerate(messages)
        if message.get("role") == "assistant"
    ]
    if not all(whole.startswith(after) and after.startswith(before) for before, after in parts):
        raise row.error("messages", "turns that the tokenizer's chat template writes in sequence")
    return tuple((len(before), len(after)) for before, after in parts)


def _preference(row: RowOf, tokenizer: Any) -> Request:
    """The chosen answer and the rejected one after their prompt, which may be what they have in common."""
    given = {name: row.record[name] for name in ("chosen", "rejected")}
    prompt, reference = row.record.get("prompt"), _reference(row)
    if not any(isinstance(value, list) for value in given.values()):
        chosen, rejected = (row.filled(name) for name in given)
        if prompt is not None:
            return Request(row.text("prompt"), (chosen, rejected), reference=reference)
        same = _shared(chosen, rejected)
        same -= same > 0 and chosen[same - 1] == " "  # the space belongs to the answers, as in TRL
        return Request(chosen[:same], (chosen[same:], rejected[same:]), reference=reference)
    chosen, rejected = (messages_of(row, name, ("assistant",), roles=ROLES) for name in given)
    before = messages_of(row, "prompt", roles=ROLES) if isinstance(prompt, list) else None
    if before is None:  # a text repeats the user's turn, which the answers begin with
        same = _shared(chosen, rejected)
        before, chosen, rejected = chosen[:same], chosen[same:], rejected[same:]
        if not before and prompt is not None:
            before = [{"role": "user", "content": row.text("prompt")}]
        elif prompt and not any(str(prompt).strip() in str(turn["content"]) for turn in before):
            raise row.error("prompt", "the user's turn with which both answers begin, or no prompt")
    written = [applied(row, "chosen", tokenizer, before + own) for own in (chosen, rejected)]
    head = applied(row, "chosen", tokenizer, before, head=True) if before else ""
    same = min(common_length(head, text) for text in written)
    answers = tuple(text[same:] for text in written)
    return Request(head[:same], answers, framed=False, reference=reference)


def common_length(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How much two sequences have in common at their beginning."""
    differing = (n for n, pair in enumerate(zip(one, other)) if pair[0] != pair[1])
    return next(differing, min(len(one), len(other)))


def _shared(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How much two answers have in common at their beginning, without the last part of either."""
    return min(common_length(one, other), len(one) - 1, len(other) - 1)


def _reference(row: RowOf) -> tuple[float, ...]:
    """The reference model's log-likelihoods, if the row has both."""
    found = [row.number(name, "a log-likelihood in nats") for name in REFERENCES if name in row.record]
    if len(found) == 1:
        raise DataError(f"{row.place}: give both {listed(REFERENCES)}, or neither of them")
    return tuple(found)


def _prompt_alone(row: RowOf, _: Any) -> Request:
    """A text under another name."""
    if isinstance(row.record["prompt"], list):
        raise row.error(
            "prompt", f"a text: messages without an answer are no text to score; {_AFTER_PROMPT}, or name "
            "what is to be scored after them completion, or chosen and rejected"
        )  # fmt: skip
    return Request("", (row.filled("prompt"),))


_Reader = Callable[[RowOf, Any], Request]


class RowReader(NamedTuple):
    """Columns of a language model's rows: their form, what makes an example, and what it reads."""

    form: Form
    read: _Reader
    about: DataForm

    @property
    def scored(self) -> RowForm:
        """What is scored of a row."""
        return ROW_FORMS[self.form]


_AFTER_PROMPT = "give --generate to score what the model writes beside a column answer"
_OF_TEXTS = "name the columns prompt and completion to score one after the other"
_PREFERENCE = DataForm(
    "preferences", "`chosen` above `rejected`",
    (
        prompt_role(),
        answer_role("name what is preferred chosen and the other answer rejected"),
        Role("the reference's", "logps", f"name both {' and '.join(REFERENCES)}", of_numbers=True),
    ),
    also=(("prompt", ", after `prompt`"),), layouts=SCORED,
)  # fmt: skip
_CHOICES = answer_role("name the texts choices, and the number of the right one gold or answer")
FORMS: dict[tuple[str, ...], RowReader] = {
    ("context", "choices", "gold"): RowReader("choice", _asked, DataForm(
        "choices", "the likeliest of `choices` after `context`, right is `gold`",
        (_CHOICES, prompt_role("write it into the column context")), layouts=SCORED,
    )),
    ("question", "choices", "answer"): RowReader("choice", _question, DataForm(
        "questions with choices", "the likeliest of `choices` after `question`, right is `answer`",
        (_CHOICES, prompt_role("write it into the column question")), layouts=SCORED,
    )),
    ("sentence_good", "sentence_bad"): RowReader("choice", _pair, DataForm(
        "minimal pairs", "`sentence_good` likelier than `sentence_bad`",
        (_CHOICES, prompt_role("write it into both sentences")), whole=True,
    )),
    ("prompt", "completion"): RowReader("completion", _completion, DataForm(
        "completions", "likelihood of `completion` after `prompt`",
        (answer_role("name what is to be scored completion; of preferences, name the columns chosen and "
                     "rejected"), prompt_role()), layouts=SCORED,
    )),
    ("chosen", "rejected"): RowReader("preference", _preference, _PREFERENCE),
    ("messages",): RowReader("completion", _chat, DataForm(
        "conversations", "likelihood of the last turn of `messages`",
        (answer_role("write it into messages as the last turn"), prompt_role("write it into messages")),
        whole=True,
    )),
    ("text",): RowReader("text", lambda row, _: Request("", (row.filled("text"),)), DataForm(
        "texts", "likelihood of `text`",
        (answer_role(_OF_TEXTS), prompt_role(_OF_TEXTS)), whole=True, layouts=SCORED,
    )),
    ("prompt",): RowReader("text", _prompt_alone, DataForm(
        "texts", "likelihood of `prompt` as a text",
        (answer_role(_AFTER_PROMPT), prompt_role()), layouts=SCORED,
    )),
}  # fmt: skip
"""By the columns that determine it, the form of a row and what makes its example."""


def are_preferences(names: Iterable[str]) -> bool:
    """Whether columns are those of preferences."""
    return {"chosen", "rejected"} <= set(names)


def refuse_preferences(place: object, names: Iterable[str]) -> None:
    """Refuse preferences where labelled texts are read."""
    if are_preferences(names) or {"chosen_ids", "rejected_ids"} <= set(names):
        raise DataError(
            f"{place}: chosen and rejected are preferences; ablate scores a language model on them, or a "
            "reward model with one output, and TRL trains them"
        )


def refuse_other_rows(place: object, names: Iterable[str]) -> None:
    """Refuse rows without texts that are known to be something else: preferences, or tokens."""
    refuse_preferences(place, names)
    if "input_ids" in names:
        raise DataError(
            f"{place}: the rows have input_ids and no text; of a model in memory, batches= takes them, with "
            "their labels or labels=; data= takes texts"
        )


def columns_of(row: RowOf) -> tuple[str, ...]:
    """The columns that determine the form of a row, a key of `FORMS`."""
    place, record = row.place, row.record
    found = [columns for columns in FORMS if set(columns) <= set(record)]
    if not found:
        refuse_other_rows(place, record)
    # If there are the columns of another kind, a text or prompt column often repeats their content.
    if are_preferences(record):  # which a completion or messages repeat too
        found = [columns for columns in found if not FORMS[columns].scored.are_completions]
    found = [columns for columns in found if not FORMS[columns].scored.are_texts] or found[:1]
    if len(found) > 1:
        kinds = " and ".join(f"({listed(columns)})" for columns in found)
        raise DataError(
            f"{place}: the columns fit several kinds of row, {kinds}; remove the columns of all kinds but one"
        )
    if found:
        return found[0]
    allowed = "; ".join(", ".join(columns) for columns in FORMS)
    values, parts = dict(record), parts_in(record)
    hint = how_to_read(values, SCORED, parts) or how_to_read(values, ANSWERED, parts, "--generate and ")
    if not hint and are_choices(values):
        hint = "; write choices as a list choices, the number of the right one as gold, and their context"
    raise DataError(
        f"{place}: columns {listed(record)} match no form of language model data: {allowed}"
        f" (or a .txt file among {', '.join(READERS)}){hint}"
    )


def request_of(row: RowOf, tokenizer: Any, turns: bool = False) -> tuple[tuple[str, ...], Request]:
    """The columns that determine a row's form, and its example.

    Args:
        turns: whether a chat is to have the turns of the assistant.
    """
    columns = columns_of(row)
    read = FORMS[columns].read
    made = read(row, tokenizer)
    return columns, replace(made, turns=_turns(row, tokenizer)) if turns and read is _chat else made
