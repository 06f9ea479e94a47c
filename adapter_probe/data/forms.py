"""What a form of data reads of a row, and what becomes of the columns that it does not read.

Every form of data declares once, as a `DataForm`, what it asks of which columns, and which other names mean a
part of it. Rows note which of their columns were asked for (`Rows.asked`). What was not asked for is named in
the study's question, or refused where it may be the prompt, the answer, the negative text or the label: the
numbers would then be right for another question than the one that the columns ask.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from adapter_probe.data.naming import Layout, right_columns, sources, words_of
from adapter_probe.data.readers import SPLIT_WORDS
from adapter_probe.data.rows import EMPTY, Rows
from adapter_probe.errors import DataError, listed, quote
from adapter_probe.kinds.row_forms import NO_FORM, RowForm

_RIGHT = ("correct", "right", "true")
_PROMPT = (
    "prompt instruction instructions input inputs question query context system history passage hint article "
    "document dialog dialogue conversation conversations messages message problem story paragraph premise "
    "evidence knowledge background scenario support prefix suffix persona image images audio video examples "
    "demonstrations options"
)
_ANSWER = (
    "completion completions response responses output outputs answer answers target targets label labels "
    "gold golds solution solutions reference references generation generations translation summary summaries "
    "highlights code choice choices ending endings candidate candidates continuation reply truth expected "
    "chosen rejected winner preferred distractors gpt assistant"
)


@dataclass(frozen=True)
class Role:
    """What further columns may be: a part of the example that the form would not read.

    Attributes:
        means: what they may be, such as ``the answer``.
        names: last words of their names, in lower case, separated by blanks.
        way: what to do to have them read.
        of_numbers: whether they have numbers, so that the last word of a name is enough for these too.
    """

    means: str
    names: str
    way: str
    of_numbers: bool = False

    def but(self, *names: str) -> Role:
        """The same without some names."""
        return replace(self, names=" ".join(name for name in self.names.split() if name not in names))


def prompt_role(way: str = "write it into the column prompt") -> Role:
    """What the model may have to read first."""
    return Role("a part of the prompt", _PROMPT, way)


def answer_role(way: str) -> Role:
    """What may be right, or wrong."""
    return Role("the answer", _ANSWER, way)


class ExampleRows:
    """The rows of a study, of any kind of task, with what `Requests` of language models have otherwise.

    Attributes:
        generation: how the answers are written, an `adapter_probe.data.generating.Generation`; None of all
            others.
        documents: the documents of tasks of lm-evaluation-harness; empty of all others.
        scored: the form of a language model's rows; of all others none.
        templated: whether no chat template is missing: all rows went through one, or none could.
    """

    generation: Any = None
    documents: tuple[Any, ...] = ()
    templated = True
    scored: RowForm = NO_FORM

    @property
    def groups(self) -> list[str]:
        """The group of each row; empty where there is none."""
        return []

    def right(self, task: Any) -> str:
        """What is right for the first row of a `TaskSpec`, where its tokens do not say it; else empty."""
        return ""


@dataclass(frozen=True)
class DataForm:
    """A form of data.

    Attributes:
        name: what rows are read as, in the plural.
        asks: the question that a study asks of it, with the columns in backquotes.
        roles: what columns that are not read may be.
        whole: whether a text that is a part of what is read is no other text, such as a prompt beside the
            conversation that begins with it.
        also: columns that may be missing, with what they add to the question.
        layouts: as what else rows with further columns may be read, see `adapter_probe.data.naming`.
    """

    name: str
    asks: str
    roles: tuple[Role, ...] = ()
    whole: bool = False
    also: tuple[tuple[str, str], ...] = ()
    layouts: tuple[Layout, ...] = ()

    def asked(self, columns: Collection[str]) -> str:
        """The question that rows with these columns ask."""
        return self.asks + "".join(words for column, words in self.also if column in columns)


def columns_named(columns: str | Sequence[str]) -> tuple[str, ...]:
    """Columns as a user names them, ``NAME`` or ``NEW=NAME``, in a list or separated by commas."""
    given = tuple(columns.split(",")) if isinstance(columns, str) and columns else tuple(columns)
    names = [part for one in given for part in _renamed(one)]
    if not all(names) or len({*names[::2]}) < len(given):
        raise DataError(
            f"--columns {','.join(given)}: give each name once, such as prompt=instruction,answer"
        )
    return given


def with_columns(table: Rows, columns: Sequence[str], or_new: bool = False) -> Rows:
    """Some columns of a table, under the names that they are to have; all of them as they are for none.

    Args:
        columns: see `columns_named`.
        or_new: whether a column may have its new name already.
    """
    if not columns:
        return table
    there, pairs = table.every_name, list(map(_renamed, columns))
    pairs = [(new, new if or_new and old not in there else old) for new, old in pairs]
    if missing := [old for _, old in pairs if old not in there]:
        said = f"--columns {','.join(columns)}"
        raise DataError(f"{table.path}: no column {missing[0]!r} ({said}); columns: {listed(there)}")
    records = [{new: row[old] for new, old in pairs if old in row} for row in table.records]
    return replace(table, names=tuple(records[0]), records=records)


def columns_of_file(columns: Sequence[str]) -> tuple[str, ...]:
    """The names that these columns have in their file."""
    return tuple(_renamed(one)[1] for one in columns)


def _renamed(column: str) -> tuple[str, str]:
    """The name that a column is to have, and the one that it has."""
    new, sign, old = (part.strip() for part in column.partition("="))
    return new, old if sign else new


def refuse_unread(form: DataForm, tables: Sequence[Rows], read: Iterable[str] | None = None) -> None:
    """Refuse columns that are not read and may be a part of the form's question.

    Args:
        read: the columns that are read; by default those that were asked for.
    """
    for table in tables:
        names = set(table.asked if read is None else read)
        _refuse_splits(table, names)
        for name in table.first_values:
            meant = None if name in names else role_of(name, form.roles, _has_texts(table, name))
            if meant is not None and not _repeats(table, name, names, form.whole):
                raise _without(form, table, names, name, meant)


def _without(form: DataForm, table: Rows, read: Collection[str], name: str, meant: Role) -> DataError:
    """The error of a column that would not be read, with the `--columns` that would be right."""
    values = table.first_values
    own = [one for one in values if one in read]
    right, others = (right_columns(values, form.layouts, needed) for needed in (name, ""))
    rest = others if not right and sources(others) > set(own) else own
    ways = [f"read it with --columns {','.join(right)}"] if right else []
    ways += [meant.way, f"leave it out on purpose with --columns {','.join(rest)}"]
    return DataError(
        f"{table.path}: the rows would be read as {form.name}, columns {listed(own)}, without column "
        f"{quote(name)}, which may be {meant.means}; {', or '.join(ways)}"
    )


def role_of(column: str, roles: Sequence[Role], texts: bool = True) -> Role | None:
    """What a column's name says that it may be: its last word, and if it has no texts each of its words."""
    words = words_of(column)
    for one in roles:
        own = words[-1:] if texts or one.of_numbers else [word for word in words if word not in _RIGHT]
        if own and set(one.names.split()).issuperset(own):
            return one
    return None


def parts_in(names: Iterable[str]) -> list[str]:
    """The columns that may be a part of a prompt, or an answer."""
    return [name for name in names if role_of(name, (prompt_role(), answer_role("")))]


def _refuse_splits(table: Rows, read: Collection[str]) -> None:
    """Refuse rows of several splits in one file, where nothing says which are asked for."""
    for name in table.first_values:
        found = {str(record.get(name)): None for record in table.records} if name not in read else {}
        known = SPLIT_WORDS & {value.lower() for value in found}
        if len(found) > 1 and (len(known) == len(found) or (known and name == "split")):
            own = [one for one in table.first_values if one in read]
            raise DataError(
                f"{table.path}: the column {name} says the rows are of {listed(found)}; give a file with "
                f"the rows of one split, or --columns {','.join(own)} for all of them"
            )


def _has_texts(table: Rows, name: str) -> bool:
    """Whether a column has texts or lists, and not numbers alone, such as ratings."""
    return any(isinstance(record.get(name), str | list | dict) for record in table.records)


def _repeats(table: Rows, name: str, read: Iterable[str], whole: bool) -> bool:
    """Whether a column has in every row what another one has, or is a part of what is read as a whole."""
    others = [one for one in read if one != name]
    for record in table.records:
        value, theirs = record.get(name), [record.get(other) for other in others]
        several: Any = record.get(f"{name}s")  # an answer among the answers
        several = several.get("text") if isinstance(several, dict) else several
        if value in EMPTY or value in theirs or (isinstance(several, list) and value in several):
            continue
        texts = [text for one in theirs for text in _texts(one)] if whole and isinstance(value, str) else ()
        if not any(str(value).strip() in text for text in texts):
            return False
    return True


def _texts(value: object) -> list[str]:
    """The texts of a value: of messages, their contents."""
    if isinstance(value, list):
        return [
            text for one in value for text in _texts(one.get("content") if isinstance(one, dict) else one)
        ]
    return [value] if isinstance(value, str) else []


def refuse_disagreeing(rows: Rows, column: str, others: Iterable[str], meant: Sequence[str]) -> None:
    """Refuse another column of labels that does not say the same as the one that is read, by any names.

    Args:
        meant: the columns that are read.
    """
    for other in others:
        found = [(record.get(column), record.get(other)) for record in rows.records]
        if all(isinstance(value, list) for pair in found for value in pair):  # such as tags
            found = [pair for one, two in found for pair in zip_longest(one, two)]
        pairs = {(str(one).strip(), str(two).strip()) for one, two in found if two not in EMPTY}
        sides = [{pair[side] for pair in pairs} for side in (0, 1)]
        swapped = sides[0] == sides[1] and any(one != two for one, two in pairs)  # which are no other names
        if swapped or any(len(side) != len(pairs) for side in sides):
            raise both_meant(rows, column, other, meant)


def both_meant(rows: Rows, one: str, other: str, meant: Sequence[str]) -> DataError:
    """The error of columns of which either may be what is asked for."""
    return DataError(
        f"{rows.path}: {one} and {other} may both be meant, and they differ; remove what is not, or name "
        f"what is with --columns {','.join(meant)}"
    )
