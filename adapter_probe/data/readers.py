"""Read labelled rows from local files, with the location of every row for error messages.

Text is UTF-8, with or without a byte order mark, unless another encoding is given. A file whose name ends in
``.gz`` is read as the one that it contains.
"""

from __future__ import annotations

import codecs
import gzip
import os
import re
import stat
import zlib
from collections.abc import Sequence
from pathlib import Path

from adapter_probe.data.formats import PARQUET, READERS, looks_like_cola, read_parquet
from adapter_probe.data.rows import Rows
from adapter_probe.errors import DataError, listed, reason_of, shown
from adapter_probe.reads import report

SPLITS = ("train", "validation", "test")
_SPLIT_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev", "development"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
SPLIT_WORDS = frozenset(_SPLIT_WORDS)
"""Words that name a split."""
_SUFFIXES = (*READERS, PARQUET)
_LINES_OF_TEXT = (
    ". Rename a file of words with tags to FILE.conll; convert lines such as 'label:text' with sed "
    "'s/:/\\t/' FILE.txt > FILE.tsv and name the columns with --columns label=0,text=1"
)
_LFS = b"version https://git-lfs.github.com/spec/"


def read_rows(path: str | Path, columns: Sequence[str] = (), encoding: str = "utf-8") -> Rows:
    """Read a CSV, TSV, JSON Lines, JSON, Parquet or CoNLL file.

    CoNLL columns yield one row per sentence: tokens and tags. SQuAD's JSON layout yields one row per
    question, with columns id, question, context and answers. A delimited file's first line is its header,
    unless it is CoLA's raw layout or `columns` holds numbers that the first line does not: then the file has
    none and its columns are named by number. Every line must have as many fields as the first.

    Args:
        columns: columns that the caller will use, names or numbers from 0.
    """
    path = Path(path)
    refuse_unreadable(path)
    suffix = uncompressed(path).suffix.lower()
    reader = READERS.get(suffix)
    if path.suffix.lower() == PARQUET:
        return read_parquet(path)
    if reader is None:
        hint = _LINES_OF_TEXT if suffix == ".txt" else ""
        known = ", ".join(_SUFFIXES)
        raise DataError(f"{path}: unknown file type {shown(path.suffix)}; allowed: {known}{hint}")
    text = read_text(path, encoding)
    if not text.strip():
        raise DataError(f"{path}: the file is empty")
    rows = reader(path, text, columns)
    if not rows.records:
        raise DataError(f"{path} contains no rows; columns found: {listed(rows.names) or 'none'}")
    return rows


def is_raw_cola(rows: Rows) -> bool:
    """Whether the rows are CoLA's raw layout: source, 0 or 1, empty or star, sentence; no header."""
    first = rows.records[0]
    return rows.names == ("0", "1", "2", "3") and looks_like_cola([str(first[name]) for name in rows.names])


def find_files(
    folder: str | Path, splits: Sequence[str] = SPLITS, mismatched: bool = False
) -> dict[str, tuple[Path, ...]]:
    """Sort a folder's data files into splits by their names.

    A name belongs to a split if it begins or ends with the split's word (train, training; validation, valid,
    val, dev, development; test, testing). If there are matched and mismatched files, as in MNLI, one of them
    is used; CoLA's in-domain and out-of-domain files together form one split.

    Returns:
        split to files, for those of the wanted splits that were found.
    """
    folder = Path(folder)
    try:
        names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder}: cannot be read as a folder of data files ({reason_of(error)})") from None
    claims: dict[str, list[str]] = {}
    for name in names:
        split = _split_of(name)
        if split is not None and (folder / name).is_file():
            claims.setdefault(split, []).append(name)
    if not claims:
        raise DataError(
            f"{folder} contains no data files; expected train.*, validation.* or dev.*, test.* "
            f"({', '.join(_SUFFIXES)}); found: {listed(names) or 'nothing'}"
        )
    chosen = {
        split: _choose_files(folder, split, claims[split], mismatched) for split in splits if split in claims
    }
    return {split: tuple(folder / name for name in names) for split, names in chosen.items()}


def uncompressed(name: str | Path) -> Path:
    """The name of the file that a compressed one contains; that of any other as it is."""
    path = Path(name)
    return path.with_suffix("") if path.suffix.lower() == ".gz" else path


def names_rows(name: str | Path) -> bool:
    """Whether a name ends like that of a file of rows, or of a text."""
    return uncompressed(name).suffix.lower() in (*_SUFFIXES, ".txt")


def split_words(name: str) -> list[str]:
    """The words of a file name in lower case, without the suffix, as used by `find_files`."""
    return re.split(r"[^a-z0-9]+", uncompressed(name).stem.lower())


def name_of_file(name: str) -> str:
    """A file's name without suffix and the words of its split: ``trec`` for ``trec-train.tsv``."""
    stem = uncompressed(name).stem
    words = re.findall(r"[^\W_]+", stem)
    split = {word for word in words if word.lower() in _SPLIT_WORDS}
    return stem if words and not split else "-".join(word for word in words if word not in split)


def _split_of(name: str) -> str | None:
    if uncompressed(name).suffix.lower() not in _SUFFIXES:
        return None
    words = [word for word in split_words(name) if word not in ("matched", "mismatched")] or [""]
    return _SPLIT_WORDS.get(words[0], _SPLIT_WORDS.get(words[-1]))


def _choose_files(folder: Path, split: str, names: list[str], mismatched: bool) -> list[str]:
    wanted, other = ("mismatched", "matched") if mismatched else ("matched", "mismatched")
    if any(wanted in split_words(name) for name in names):
        names = [name for name in names if other not in split_words(name)]
    both_domains = [split_words(name)[:2] for name in names] == [["in", "domain"], ["out", "of"]]
    if len(names) > 1 and not both_domains:
        raise DataError(
            f"{folder}: {len(names)} files look like the {split} split ({listed(names)}); "
            f"give the files of the {split} split explicitly"
        )
    return names


def refuse_unreadable(path: Path) -> None:
    """Refuse pipes, which would block for ever, and folders; every reader of data calls this first."""
    report("data", lambda: {os.path.abspath(path): path})
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({reason_of(error)})") from None
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "a pipe, socket or device"
        raise DataError(f"{path}: is {what}, expected a file")


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """The text of a regular file, without a byte order mark."""
    refuse_unreadable(path)
    try:
        codecs.lookup(encoding)
        content = path.read_bytes()
        if path != uncompressed(path) and not content.startswith(_LFS):
            content = gzip.decompress(content)
        if content.startswith(_LFS):
            raise DataError(f"{path} is a git-LFS pointer, not the file itself; run `git lfs pull` there")
        return content.decode(encoding).removeprefix("\ufeff")
    except LookupError:
        raise DataError(f"unknown encoding {encoding!r}; give one such as utf-8, latin-1 or utf-16") from None
    except (OSError, EOFError, zlib.error) as error:  # also of what is not gzip, or damaged
        raise DataError(f"{path}: cannot be read ({reason_of(error)})") from None
    except UnicodeError as error:
        start = getattr(error, "start", 0)
        line = content.count(b"\n", 0, start) + 1
        byte = f", byte 0x{content[start]:02x}" if start < len(content) else ""
        hint = " (it looks like UTF-16)" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        raise DataError(
            f"{path} line {line}: not {encoding.upper()}{byte}{hint}; save the file as UTF-8, or name its "
            "encoding with --encoding, such as latin-1"
        ) from None
