"""Columns that contain texts and labels, given by the user or found by their usual names."""

from __future__ import annotations

from collections.abc import Sequence

from adapter_probe.data.formats import QUESTION_COLUMNS
from adapter_probe.data.forms import both_meant, refuse_disagreeing
from adapter_probe.data.labels import HIDDEN
from adapter_probe.data.naming import COMPARED, LABELLED, PREFERENCES, SCORED, how_to_read
from adapter_probe.data.readers import is_raw_cola, uncompressed
from adapter_probe.data.request_rows import refuse_other_rows
from adapter_probe.data.rows import Rows, is_text
from adapter_probe.data.task_spec import RAW_COLA, Columns
from adapter_probe.errors import DataError, listed, shown
from adapter_probe.kinds.task import TaskKind

# In order of preference, compared in lower case.
_PAIRS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("text_a", "text_b"),
    ("sentence_a", "sentence_b"),
    ("text1", "text2"),
    ("text", "text_b"),
    ("text", "text_pair"),
    ("question", "passage"),
)
_TEXTS = ("text", "sentence", "review", "content", "comment", "tweet", "question")
# With one of these beside a single text, it is not known whether the task is about one text or two.
_SECONDS = ("context", "passage", "paragraph", "document", "article", "query", "answer", "response", "claim")
_SECONDS += ("evidence", "aspect", "text_pair", "text2", *(name for pair in _PAIRS for name in pair))
LABEL_COLUMNS = ("label", "labels", "gold_label", "class", "category", "target", "sentiment", "is_duplicate")
LABEL_COLUMNS += ("score", "stars", "rating", "quality", "relatedness_score")
_HIDDEN = ("", None, -1, *HIDDEN, [], {"text": [], "answer_start": []})


def choose_columns(rows: Rows, known: TaskKind | None) -> Columns:
    """The columns with usual names; others are given such names before, see `with_columns`.

    Args:
        known: the kind of task; None where the rows are to say it.
    """
    if set(QUESTION_COLUMNS[1:]) <= set(rows.names):
        return Columns(*QUESTION_COLUMNS[1:])
    if is_raw_cola(rows):
        return RAW_COLA
    text, text_b, label = _usual(rows, _TEXTS)
    if text is None:
        refuse_other_rows(rows.path, rows.names)
    elif text_b is None:
        _refuse_second(rows, text, label, known)
    if text is None or label is None:
        missing = f"no {'label' if text else 'text'} column found (columns: {listed(rows.names)})"
        raise DataError(f"{rows.path}: {missing}{_example(rows, known)}")
    head = [str(rows.records[0].get(name)).strip() for name in (text, label)]
    first, usual = head[1], {*_TEXTS, *(name for pair in _PAIRS for name in pair)}
    if first.lower() in LABEL_COLUMNS and head[0].lower() in usual:
        raise DataError(
            f"{rows.places[0]}: the label is {shown(first)}, as in a header; "
            "name the columns as the header does"
        )
    chosen = Columns(text, text_b, label)
    _refuse_others(rows, chosen)
    return chosen


def _usual(rows: Rows, texts: Sequence[str]) -> tuple[str | None, str | None, str | None]:
    """The columns of the text or the pair, and of the label, with usual names; None where there is none."""
    free = {name.lower(): name for name in reversed(rows.names)}
    pairs = ((free[a], free[b]) for a, b in _PAIRS if a in free and b in free)
    single, label = (next((free[n] for n in names if n in free), None) for names in (texts, LABEL_COLUMNS))
    return *next(pairs, (single, None)), label


def _refuse_others(rows: Rows, chosen: Columns) -> None:
    """Refuse rows with other labels or other pairs, of which nothing says which are meant."""
    there = {name.lower(): name for name in rows.first_values if name not in chosen.names}
    labels = [there[name] for name in LABEL_COLUMNS if name in there]
    refuse_disagreeing(rows, chosen.label, labels, chosen.names)
    pairs = [(there[a], there[b]) for a, b in _PAIRS if a in there and b in there and chosen.text_b]
    if pairs and [*map(rows.column, pairs[0])] != [*map(rows.column, chosen.names[:2])]:
        raise both_meant(rows, " and ".join(chosen.names[:2]), " and ".join(pairs[0]), chosen.names)


def _refuse_second(rows: Rows, text: str, label: str | None, known: TaskKind | None) -> None:
    """Refuse to read a single text where another column holds texts that may belong to it."""
    others = [name for name in rows.every_name if name not in (text, label) and name.lower() in _SECONDS]
    alone = text if text.lower() in _TEXTS else f"text={text}"
    rest = f",{label}" if label else ""
    queries = known is not None and known.is_number and label is None
    compared = how_to_read(rows.first_values, COMPARED) if queries else ""
    for name in others:
        if any(is_text(record.get(name)) and record[name] for record in rows.records):
            raise DataError(
                f"{rows.path}: column {text!r} may be the whole text or one of a pair with column {name!r}"
                + (compared or f"; pairs are read with --columns text_a={text},text_b={name}{rest}, and "
                   f"{text!r} alone with --columns {alone}{rest}")
            )  # fmt: skip


def _example(rows: Rows, known: TaskKind | None) -> str:
    """How columns are named where not all have a usual name, as rows of the kind or else of any have them."""
    of_number = known is not None and known.is_number
    others = SCORED if known is None else (*COMPARED, *PREFERENCES) if of_number else ()
    if hint := how_to_read(rows.first_values, (*LABELLED, *others)):
        return hint
    text = _first_text(rows)
    text = text if text.lower() in _TEXTS else f"text={text}"
    ways = ", of embeddings query=A,positive=B, of preferences prompt=A,chosen=B,rejected=C"
    delimited = uncompressed(str(rows.path)).suffix.lower() in (".csv", ".tsv")
    by_number = " (text=1,label=0 of a file without a header)" if delimited else ""
    return f"; name them with --columns {text},label=COLUMN{by_number}{ways if of_number else ''}"


def _first_text(rows: Rows) -> str:
    """The first column that may have texts, as a suggestion."""
    values = rows.first_values.items()
    return next((n for n, value in values if is_text(value) and not n.lower().endswith("id")), "COLUMN")


def text_columns(rows: Rows) -> Columns:
    """The columns of texts without labels, found by their usual names; `Columns.label` is empty."""
    text, text_b, label = _usual(rows, (*_TEXTS, "prompt"))
    if text is None:
        refuse_other_rows(rows.path, rows.names)
        raise DataError(
            f"{rows.path}: no text column found (columns: {listed(rows.names)}); name it with --columns "
            f"text={_first_text(rows)}, or of pairs text_a and text_b"
        )
    if text_b is None:
        _refuse_second(rows, text, label, None)
    return Columns(text, text_b, "")


def lacks_labels(tables: Sequence[Rows], columns: Columns) -> bool:
    """Whether a file lacks these columns, or has no label (or answer) in any row."""
    return any(
        not set(columns.names) <= set(rows.names) or all(v in _HIDDEN for v in rows.column(columns.label))
        for rows in tables
    )
