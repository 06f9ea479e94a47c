"""Files that read well, and every way in which one may not."""

from __future__ import annotations

import csv
import errno
import gzip
import io
import json
import os
import sys

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import names, refused

from adapter_probe.data.readers import find_files, is_raw_cola, listed, read_rows, shown

CSV = "text,label\nGood.,1\nBad.,0\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", CSV),
        ("a.CSV", CSV),
        ("a.csv", CSV.replace("\n", "\r\n")),
        ("a.csv", b"\xef\xbb\xbf" + CSV.encode()),
        ("a.csv", "\ntext, label\n\nGood.,1\nBad.,0"),
        ("a.tsv", CSV.replace(",", "\t").replace("\n", "\r\n")),
        ("a.jsonl", '{"text": "Good.", "label": "1"}\n\n{"label": "0", "text": "Bad."}'),
        ("a.jsonl", b'\xef\xbb\xbf{"text": "Good.", "label": "1"}\r\n{"text": "Bad.", "label": "0"}\r\n'),
        ("a.json", '[{"text": "Good.", "label": "1"},\n {"text": "Bad.", "label": "0"}]'),
        ("a.json", '{"text": "Good.", "label": "1"}\n{"text": "Bad.", "label": "0"}\n'),
        ("a.csv.gz", gzip.compress(CSV.encode(), mtime=0)),
        (
            "a.JSONL.GZ",
            gzip.compress(b'{"text": "Good.", "label": "1"}\n{"text": "Bad.", "label": "0"}\n', mtime=0),
        ),
    ],
)
def test_the_same_rows_in_every_format(write, name, content):
    rows = read_rows(write(name, content))
    assert rows.names == ("text", "label")
    assert rows.texts("text") == ["Good.", "Bad."]
    assert rows.column("label") == ["1", "0"]


PARAGRAPHS = [{"context": "one", "qas": [{"id": 1, "question": "Who?", "answers": []}]},
              {"context": "two", "qas": [{"id": 2, "question": "What?", "answers": []}]}]  # fmt: skip
SQUAD = json.dumps({"data": [{"paragraphs": []}, {"paragraphs": PARAGRAPHS}]})
DOG = (["a", "dog"], ["O", "B-PER"])
COLA = [("gj04", "1", "", 'They said "no".'), ("gj04", "0", "*", "They said.")]
LINES = "".join("\t".join(row) + "\n" for row in COLA)
# By what they show: a file, the names of its columns and its rows, and the place of the last one.
READ = {
    "TSV has no quoting and keeps every character": (
        "a.tsv", 'text\tlabel\n"Never", he said.\t1\n\u2028 \x85 "\t0\n',
        "text label", [('"Never", he said.', "1"), ('\u2028 \x85 "', "0")], "line 3",
    ),
    "lines of JSON end at line feeds only": (
        "a.jsonl", '{"text": "one\u2028two\x85three"}\n', "text", [("one\u2028two\x85three",)], "line 1"
    ),
    "a row of CSV stands where it begins": (
        "a.csv", 'text,label\n"two\nlines, ""quoted""",1\n\nplain,0\n',
        "text label", [('two\nlines, "quoted"', "1"), ("plain", "0")], "line 5",
    ),
    "items of a list": ("a.json", '[{"t": "a"}, {"t": "b"}]', "t", [("a",), ("b",)], "item 2"),
    "raw CoLA is known by its content": ("in_domain_train.tsv", LINES, "0 1 2 3", COLA, "line 2"),
    "with a header it is not": (
        "b.tsv", f"id\tlabel\tstar\ttext\n{LINES}", "id label star text", COLA, "line 3"
    ),
    "numbers ask for a file without header": (
        "numbered.csv", "Good.,1\nBad.,0\n", "0 1", [("Good.", "1"), ("Bad.", "0")], "line 2"
    ),
    "else its first line is one": ("a.csv", "Good.,1\nBad.,0\n", "Good. 1", [("Bad.", "0")], "line 2"),
    "a header may consist of numbers": ("numbered.csv", "0,1\nGood.,1\n", "0 1", [("Good.", "1")], "line 2"),
    "SQuAD's layout is one row a question": (
        "a.json", SQUAD, "id question context answers", [(1, "Who?", "one", []), (2, "What?", "two", [])],
        "article 2, paragraph 2, question 1",
    ),
    "words with tags": (
        "a.conll", "a\tO\ndog\tB-PER\n\n\nfine\tO\n", "tokens tags", [DOG, (["fine"], ["O"])], "line 5"
    ),
    "more columns of words": (
        "a.conll", "a NN O\ndog NN B-PER\n\nfine JJ O",
        "tokens column-2 tags", [(DOG[0], ["NN", "NN"], DOG[1]), (["fine"], ["JJ"], ["O"])], "line 4",
    ),
    "documents and comments between words": (
        "a.conll", "-DOCSTART- -X- O\n\n# a comment with words\n# X O\ndog X B-PER\n",
        "tokens column-2 tags", [(["#", "dog"], ["X", "X"], ["O", "B-PER"])], "line 4",
    ),
    "words after a byte order mark": (
        "a.conll", "\ufeffa O\r\ndog B-PER\r\n\r\nfine O\r\n", "tokens tags", [DOG, (["fine"], ["O"])],
        "line 4",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", READ)
def test_rows_and_their_places(write, case):
    name, content, columns, records, place = READ[case]
    path = write(name, content)
    rows = read_rows(path, ("0", "1") if name == "numbered.csv" else ())
    columns = tuple(one.replace("-", " ") for one in columns.split())
    assert rows.names == columns
    assert rows.records == [dict(zip(columns, values)) for values in records]
    assert (len(rows.places), rows.places[-1]) == (len(records), f"{path} {place}")
    assert is_raw_cola(rows) == ("raw CoLA" in case)


def test_a_long_document_is_a_field_of_csv(write):
    (row,) = read_rows(write("a.csv", f'text,label\n"{"word " * 40_000}",1\n'))
    assert len(row.record["text"]) == 200_000


cells = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8)


@given(rows=st.lists(st.tuples(cells, cells), min_size=1, max_size=6))
def test_csv_and_jsonl_round_trip_any_text(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("round_trip")
    buffer = io.StringIO(newline="")
    csv.writer(buffer).writerows([("text", "label"), *rows])
    (folder / "a.csv").write_bytes(buffer.getvalue().encode())
    lines = [json.dumps({"text": text, "label": label}, ensure_ascii=False) for text, label in rows]
    (folder / "a.jsonl").write_bytes("\n".join(lines).encode())
    for name in ("a.csv", "a.jsonl"):
        found = read_rows(folder / name)
        assert [(r["text"], r["label"]) for r in found.records] == rows


OF_TEXTS = ".csv, .tsv; sed 's/:/\\t/' FILE.txt > FILE.tsv; .conll; --columns label=0,text=1"


@pytest.mark.parametrize(
    ("name", "content", "facts"),
    [
        ("notes.txt", "Quality\tString\n1\tHe said no.\n", f"'.txt'; {OF_TEXTS}"),
        ("a.xlsx", b"PK", "'.xlsx'; .csv, .tsv, .jsonl, .json, .conll, .parquet"),
        ("a.csv", "", "empty"),
        ("a.jsonl", "\n  \n", "empty"),
        ("a.csv.gz", CSV, "gzipped"),
        ("a.csv.gz", gzip.compress(CSV.encode(), mtime=0)[:-12], "ended"),
        ("a.xlsx.gz", b"PK", "'.gz'; .csv, .tsv, .jsonl, .json, .conll, .parquet"),
        ("a.csv.zst", b"PK", "'.zst'; .csv, .tsv"),
        ("a.csv", "text,label\n", "no rows; 'text', 'label'"),
        ("a.json", "[]", "no rows; none"),
        ("a.csv", b"text,label\nfine,1\ncaf\xe9,0\n", "line 3; UTF-8; 0xe9; --encoding"),
        ("a.tsv", "text\tlabel\n".encode("utf-16"), "line 1; UTF-8; 0xff; UTF-16; --encoding"),
        ("a.csv", "text,label\nGood., really,1\n", "line 2; 2 fields; header; 3"),
        ("a.tsv", "text\tlabel\nGood.\t1\n\nBad.\n", "line 4; 2 fields; header; 1"),
        ("numbered.csv", "Good.,1\nBad.\n", "line 2; 2 fields; line 1; got 1"),
        ("a.conll", "a O\ndog B-PER X\n", "line 2; 2 columns; 3"),
        ("a.conll", "dog\n", "line 1; word; tag; 'dog'"),
        ("a.conll", "\n\n", "empty"),
        ("a.csv", "text,label,text\na,1,b\n", "line 1; header; 'text'; twice"),
        ("a.csv", 'text,label\nGood.,1\n"never closed,1\n', "line 3; CSV; end"),
        ("a.csv", 'text,label\n"Good" one,1\n', "line 2; CSV; ','; '\"'"),
        ("a.jsonl", '{"text": "a"}\n\n{"text": "b"\n', "line 3; JSON; ','; column 13"),
        ("a.jsonl", '{"text": "a"}\n["b", 1]\n', 'line 2; ["b", 1]; object'),
        ("a.jsonl", "3\n", "line 1; 3; object"),
        ("a.jsonl", "[" * 100_000, "line 1; JSON"),
        ("a.json", '[\n{"text": "a"},\n{"text": }]', "line 3; JSON; column 10"),
        ("a.json", '[{"text": "a"}, null]', "item 2; null; object"),
        ("a.json", '{"rows": []}', '{"rows": []}; list'),
        ("a.json", '{"text": "a"}\n{"text": \n', "line 2; JSON; column"),
        (
            "a.json",
            '{"version": "1.1", "data": [{"title": "t", "paragraphs": []}]}',
            "no rows; 'id', 'question', 'context', 'answers'",
        ),
        ("a.json", '{"data": [{"paragraphs": []}, 3]}', "article 2; 3; object"),
        ("a.json", '{"data": [{"paragraphs": 7}]}', "article 1; 'paragraphs'; 7; list"),
        (
            "a.json",
            '{"data": [{"paragraphs": [{"context": "c"}]}]}',
            "article 1, paragraph 1; 'qas'; nothing; list",
        ),
        (
            "a.json",
            '{"data": [{"paragraphs": [{"context": "c", "qas": []}, {"qas": []}]}]}',
            "article 1, paragraph 2; 'context'",
        ),
        (
            "a.json",
            '{"data": [{"paragraphs": [{"context": "c", "qas": [{}, "q"]}]}]}',
            "article 1, paragraph 1, question 2; 'q'; object",
        ),
    ],
)
def test_unreadable_files(write, name, content, facts):
    path = write(name, content)
    message = refused(read_rows, path, ("0", "1") if name == "numbered.csv" else ())
    assert message.startswith(str(path))
    assert names(message.removeprefix(str(path)), *facts.split("; "))


def test_another_encoding_is_read_if_it_is_named(write):
    path = write("a.csv", "text,label\ncafé,1\n".encode("latin-1"))
    assert read_rows(path, encoding="latin-1").texts("text") == ["café"]
    assert names(refused(read_rows, path), f"{path} line 2", "UTF-8", "0xe9", "--encoding", "latin-1")
    assert names(refused(read_rows, path, (), "ascii"), f"{path} line 2", "ASCII", "0xe9")
    assert names(refused(read_rows, path, (), "latin-99"), "'latin-99'", "utf-8", "latin-1", "utf-16")


def test_parquet_is_read_as_pandas_writes_it(tmp_path):
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"text": ["a", "b"], "label": [1, 0]})
    frame.to_parquet(tmp_path / "train.parquet")
    rows = read_rows(tmp_path / "train.parquet")
    assert rows.names == ("text", "label")
    assert rows.records == frame.to_dict("records")
    assert rows.places[1] == f"{tmp_path / 'train.parquet'} row 2"
    assert find_files(tmp_path) == {"train": (tmp_path / "train.parquet",)}
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    broken = tmp_path / "broken.parquet"
    assert names(refused(read_rows, broken), str(broken), "Parquet")


def test_parquet_without_pyarrow_names_the_extra(write, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = write("a.parquet", b"PAR1")
    extra = "'adapter-probe[parquet]'", "'.[parquet]'"
    assert names(refused(read_rows, path), str(path), "pyarrow", *extra)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path, name):
    path = tmp_path / name
    os.mkfifo(path)
    assert names(refused(read_rows, path), str(path), "pipe", "file")
    path.unlink()
    path.symlink_to(path)
    assert names(refused(read_rows, path), str(path), os.strerror(errno.ELOOP))
    path.unlink()
    path.mkdir()
    assert names(refused(read_rows, path), str(path), "folder", "file")


def test_a_row_without_the_column_lists_those_it_has(write):
    path = write("a.jsonl", '{"text": "a", "label": 1}\n{"txt": "b", "label": 0}\n')
    message = refused(read_rows(path).column, "text")
    assert names(message, f"{path} line 2", "'text'", "'txt', 'label'")


@pytest.mark.parametrize(
    ("value", "named"), [("null", "None"), ("3.5", "3.5"), ('["a"]', "['a']"), ('"\\ud83d"', "'\\ud83d'")]
)
def test_a_text_that_is_no_text(write, value, named):
    path = write("a.jsonl", f'{{"text": "fine \\ud83d\\ude00"}}\n{{"text": {value}}}\n')
    message = refused(read_rows(path).texts, "text")
    assert names(message, f"{path} line 2", "'text'", named, "string", "Unicode")


def test_values_are_shown_on_one_short_line():
    assert shown("a\nb\u2028\x85") == r"'a\nb\u2028\x85'"
    assert shown("x" * 500).endswith("x…")
    assert len(shown("x" * 500)) <= 60
    assert listed("abc") == "'a', 'b', 'c'"
    assert listed(range(50)).endswith("10, 11, … (50 in all)")


COLAS = ["in_domain_dev.tsv", "out_of_domain_dev.tsv", "in_domain_train.tsv"]
MNLI = ["train.tsv", "dev_matched.tsv", "dev_mismatched.tsv"]


@pytest.mark.parametrize(
    ("names", "expected", "mismatched"),
    [
        (["train.csv", "validation.csv", "test.csv"], {"train": [0], "validation": [1], "test": [2]}, False),
        (["training.tsv", "dev.tsv"], {"train": [0], "validation": [1]}, False),
        (["train.jsonl", "val.jsonl", "readme.md", "config.json"], {"train": [0], "validation": [1]}, False),
        (["snli_1.0_train.jsonl", "snli_1.0_dev.jsonl"], {"train": [0], "validation": [1]}, False),
        (["train.jsonl", "validation_matched.jsonl"], {"train": [0], "validation": [1]}, False),
        ([*MNLI, "test_mismatched.tsv"], {"train": [0], "validation": [1], "test": [3]}, False),
        ([*MNLI, "test_matched.tsv"], {"train": [0], "validation": [2], "test": [3]}, True),
        (["train.csv.gz", "dev.jsonl.gz", "model.tar.gz"], {"train": [0], "validation": [1]}, False),
        (["Train.CSV", ".train.csv", "._dev.csv"], {"train": [0]}, False),
        (["test.json"], {"test": [0]}, False),
        (["train-v1.1.json", "dev-v1.1.json"], {"train": [0], "validation": [1]}, False),
        (["train.tsv", "dev.tsv", "train.txt"], {"train": [0], "validation": [1]}, False),
        (["validation-00000-of-00001.jsonl"], {"validation": [0]}, False),
        (COLAS, {"train": [2], "validation": [0, 1]}, False),  # whose two files are one split
    ],
)
def test_splits_by_file_name(tmp_path, names, expected, mismatched):
    for name in names:
        (tmp_path / name).write_text("x")
    found = find_files(tmp_path, mismatched=mismatched)
    assert found == {split: tuple(tmp_path / names[i] for i in own) for split, own in expected.items()}
    assert list(found) == list(expected)


def test_folders_that_do_not_say_their_splits(tmp_path):
    assert names(refused(find_files, tmp_path), ".csv, .tsv, .jsonl, .json, .conll, .parquet", "nothing")
    (tmp_path / "train.xlsx").write_text("x")
    (tmp_path / "train").mkdir()
    allowed = "train.*", "validation.*", "dev.*", "test.*"
    assert names(refused(find_files, tmp_path), str(tmp_path), *allowed, "'train', 'train.xlsx'")
    (tmp_path / "train.csv").write_text("x")
    (tmp_path / "train_small.csv").write_text("x")
    two = "2 files", "'train.csv', 'train_small.csv'", "train split"
    assert names(refused(find_files, tmp_path), str(tmp_path), *two)
    assert find_files(tmp_path, ["validation"]) == {}
    for path, reason in ((tmp_path / "none", errno.ENOENT), (tmp_path / "train.csv", errno.ENOTDIR)):
        assert names(refused(find_files, path), str(path), "folder", os.strerror(reason))


def test_a_file_of_many_lines(write):
    row = json.dumps({"text": "a sentence of a usual length, or thereabouts", "label": 1})
    path = write("a.jsonl", (row + "\n") * 70_000)
    assert len(read_rows(path).texts("text")) == 70_000
