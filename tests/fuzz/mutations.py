"""One small change to a file that a user can hand in, drawn from a seeded generator and described."""

from __future__ import annotations

import csv
import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

INFINITE, NOT_A_NUMBER = float("inf"), float("nan")
ODD = (
    None, True, False, 0, 1, 2, -1, 7, 10**6, 10**30, 0.5, -0.0, 1e-30, 1e30, INFINITE, -INFINITE,
    NOT_A_NUMBER, "", "x", "nonsense", "future", "1", "x" * 5000, "\x1b[31mred", "a\nb", "~nosuchuser/x",
    "../..", "/dev/null",
    "([a-z.0-9_]+)*X", "(", "\udcff", [], [None], [0], ["x"], [[]], {}, {"x": 1}, {"": None}, {"default": 2},
)  # fmt: skip
WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "module.")
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 437\n"


def mutate(file: Path, draw: random.Random) -> str:
    """Change a file in place.

    Returns:
        What was done, in words; the same generator state gives the same change.
    """
    if draw.random() < 0.15:
        return _of_bytes(file, draw)
    if file.suffix == ".json":
        return _of_json(file, draw)
    if file.suffix in (".csv", ".tsv"):
        return _of_table(file, draw)
    if file.suffix == ".jsonl":
        return _of_lines(file, draw)
    if file.suffix in (".safetensors", ".bin"):
        return _of_tensors(file, draw)
    if file.suffix == ".npz":
        return _of_arrays(file, draw)
    if file.suffix == ".toml":
        return _of_toml(file, draw)
    return _of_bytes(file, draw)


def _of_bytes(file: Path, draw: random.Random) -> str:
    data = file.read_bytes()
    at = draw.randrange(len(data)) if data else 0
    changes = {
        "cut short": data[:at],
        "a byte flipped": data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :],
        "a byte left out": data[:at] + data[at + 1 :],
        "NUL bytes put in": data[:at] + b"\0\0" + data[at:],
        "latin-1 put in": data[:at] + b"\xe9" + data[at:],
        "empty": b"",
        "a git-LFS pointer": POINTER,
        "a byte-order mark put before": b"\xef\xbb\xbf" + data,
        "CRLF": data.replace(b"\n", b"\r\n"),
        "written twice": data + data,
        "nested deep": b"[" * 100_000,
        "nested deep as TOML": b"a = " + b"[" * 5000,
        "a string of digits": b"9" * 5000,
    }
    name = draw.choice(sorted(changes))
    file.write_bytes(changes[name])
    return f"{file.name}: {name} (byte {at})"


def _of_json(file: Path, draw: random.Random) -> str:
    tree = [json.loads(file.read_text("utf-8"))]
    done = _change_node(tree, draw)
    file.write_text(json.dumps(tree[0], indent=2), "utf-8")
    return f"{file.name}: {done}"


def _nodes(tree: Any, path: tuple = ()) -> list[tuple]:
    """Paths of all values, the long lists of a vocabulary left aside."""
    out = [path] if path else []
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in list(items)[:60]:
        out += _nodes(value, (*path, key))
    return out


def _change_node(tree: Any, draw: random.Random) -> str:
    paths = _nodes(tree)
    # As likely near the root as in the depths, where most values are.
    depth = draw.choice(sorted({len(path) for path in paths}))
    path = draw.choice([path for path in paths if len(path) == depth])
    owner = tree
    for key in path[:-1]:
        owner = owner[key]
    key, old = path[-1], owner[path[-1]]
    words = ".".join(map(str, path[1:])) or "all of it"
    kind = draw.choice(("odd", "odd", "near", "near", "leave out", "unknown", "swap"))
    if kind == "leave out" and isinstance(owner, dict):
        del owner[key]
        return f"{words} left out"
    if kind == "unknown" and isinstance(owner, dict):
        owner["future_option"] = value = draw.choice((True, 3, "on", {"x": 1}))
        return f"future_option = {value!r} beside {words}"
    if kind == "swap" and isinstance(owner, dict):
        other = draw.choice(sorted(owner))
        owner[key], owner[other] = owner[other], owner[key]
        return f"{words} and {other} exchanged"
    new = _near(old, draw) if kind == "near" else draw.choice(ODD)
    owner[key] = new
    return f"{words} = {str(old)[:60]!r} -> {str(new)[:60]!r} ({type(new).__name__})"


def _near(old: Any, draw: random.Random) -> Any:
    """A value of the same kind."""
    if isinstance(old, bool):
        return not old
    if isinstance(old, int):
        return draw.choice((old + 1, old - 1, 2 * old, -old, float(old), str(old), old // 2))
    if isinstance(old, float):
        return draw.choice((2 * old, old / 2, -old, str(old), round(old)))
    if isinstance(old, str):
        words = ("relu", "gelu", "gelu_new", "silu", "tanh", "none", "all", "lora_only", "last",
                 old.upper(), old + " ", old[:-1], "SEQ_CLS", "CAUSAL_LM", "float16", "learned")  # fmt: skip
        return draw.choice(words)
    if isinstance(old, list):
        return draw.choice((old[1:], old + old[:1], old[::-1], [*old, None], dict.fromkeys(map(str, old))))
    if isinstance(old, dict):
        return draw.choice(({}, list(old), {key + "x": value for key, value in old.items()}))
    return draw.choice(ODD)


def _of_tensors(file: Path, draw: random.Random) -> str:
    safe = file.suffix == ".safetensors"
    tensors = dict(load_file(file) if safe else torch.load(file, weights_only=True))
    meta = _metadata_of(file) if safe else None
    done = _change_tensor(tensors, draw)
    tensors = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
    if safe:
        save_file(tensors, file, metadata=meta)
    else:
        torch.save(tensors, file)
    return f"{file.name}: {done}"


def _metadata_of(file: Path) -> dict[str, str] | None:
    data = file.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return header.get("__metadata__")


def _change_tensor(tensors: dict[str, torch.Tensor], draw: random.Random) -> str:
    name = draw.choice(sorted(tensors))
    old = tensors[name]
    other = draw.choice(sorted(tensors))
    first = (0,) * old.dim()
    kind = draw.choice((
        "left out", "renamed", "exchanged", "type", "type", "transposed", "longer", "shorter", "not a number",
        "infinite", "huge", "doubled", "all zero", "one more", "one more axis", "wrapped", "shard",
    ))  # fmt: skip
    if kind == "left out":
        del tensors[name]
    elif kind == "renamed":
        tensors[name.replace("0", "1", 1) + draw.choice(("", "x", ".weight"))] = tensors.pop(name)
    elif kind == "exchanged":
        tensors[name], tensors[other] = tensors[other], old
        kind += f" with {other}"
    elif kind == "type":
        types = ("float16", "bfloat16", "float64", "int64", "int8", "bool", "complex64", "float8_e4m3fn")
        kind = draw.choice(types)
        tensors[name] = old.to(getattr(torch, kind))
    elif kind == "transposed":
        tensors[name] = old.t() if old.dim() == 2 else old[None]
    elif kind == "longer":
        tensors[name] = torch.cat([old, old[:1]]) if old.dim() else old[None]
    elif kind == "shorter":
        tensors[name] = old[:-1] if old.dim() else old[None]
    elif kind == "one more":
        tensors[draw.choice(("future.weight", name + "_2", name.replace(".0.", ".9.") + "_b"))] = old
    elif kind == "one more axis":
        tensors[name] = old[..., None]
    elif kind == "wrapped":
        tensors[draw.choice(WRAPPERS) + name] = tensors.pop(name)
    elif kind == "shard":
        tensors[name] = draw.choice(
            (old.flatten(), old.flatten()[: old.numel() // 2], old[:0] if old.dim() else old)
        )
    else:
        new = old.clone()
        if kind in ("not a number", "infinite", "huge"):
            new[first] = {"not a number": NOT_A_NUMBER, "infinite": INFINITE, "huge": 1e30}[kind]
        else:
            new *= 2 if kind == "doubled" else 0
        tensors[name] = new
    return f"{name}: {kind}"


def _of_arrays(file: Path, draw: random.Random) -> str:
    with np.load(file) as archive:
        arrays = dict(archive)
    name = draw.choice(sorted(arrays))
    old = arrays[name]
    kind = draw.choice(("left out", "renamed", "type", "longer", "shorter", "odd", "zeros", "one more axis"))
    if kind in ("left out", "renamed"):
        del arrays[name]
        if kind == "renamed":
            arrays[name + "x"] = old
    elif kind == "type":
        arrays[name] = old.astype(draw.choice(("S4", "bool" if old.dtype.kind != "U" else "S9")))
    elif kind in ("longer", "shorter"):
        arrays[name] = np.repeat(np.atleast_1d(old), 2, 0) if kind == "longer" else np.atleast_1d(old)[:-1]
    elif kind == "odd" and old.dtype.kind == "f":
        arrays[name] = old.copy()
        arrays[name].flat[0] = draw.choice((NOT_A_NUMBER, INFINITE, 1e30, 3.5))
    elif kind == "one more axis":
        arrays[name] = old[..., None]
    else:
        arrays[name] = np.zeros_like(old)
    np.savez(file, **arrays)
    return f"{file.name}: {name}: {kind}"


CELLS = (
    "", "x", "nan", "inf", "-inf", "-1", "0", "1", "2", "3.5", "1e400", "1000000", "9" * 40, "True", "None",
    "a\nb", '"', ",", "\x1b[31m", "\ufeff", "x" * 5000, "positive", "[UNK]",
)  # fmt: skip


def _of_table(file: Path, draw: random.Random) -> str:
    mark = "\t" if file.suffix == ".tsv" else ","
    rows = list(csv.reader(io.StringIO(file.read_text("utf-8")), delimiter=mark))
    row, column = draw.randrange(len(rows)), draw.randrange(len(rows[0]))
    kind = draw.choice(
        ("cell", "cell", "cell", "row out", "row twice", "column out", "head", "short", "long", "order")
    )
    if kind == "cell":
        old, rows[row][column] = rows[row][column], draw.choice(CELLS)
        kind = f"row {row}, column {column}: {old[:40]!r} -> {rows[row][column][:40]!r}"
    elif kind in ("row out", "row twice"):
        rows[row : row + 1] = [] if kind == "row out" else [rows[row]] * 2
    elif kind == "column out":
        rows = [line[:column] + line[column + 1 :] for line in rows]
    elif kind == "head":
        rows[0][column] = draw.choice(("future", "", rows[0][0], "text", "label"))
    elif kind == "short":
        rows[row] = rows[row][:-1]
    elif kind == "long":
        rows[row] = rows[row] + ["x"]
    else:
        rows[1:] = rows[:0:-1]
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=mark, lineterminator="\n").writerows(rows)
    file.write_text(out.getvalue(), "utf-8")
    return f"{file.name}: {kind} (row {row}, column {column})"


def _of_lines(file: Path, draw: random.Random) -> str:
    lines = file.read_text("utf-8").splitlines()
    at = draw.randrange(len(lines))
    if draw.random() < 0.25:
        lines[at] = draw.choice(
            ("", "null", "[]", "3", '"x"', lines[at][:-3], lines[at] * 2, "{}", "{'a': 1}", "[" * 5000)
        )
        done = f"{lines[at][:40]!r}"
    else:
        row = [json.loads(lines[at])]
        done = _change_node(row, draw)
        lines[at] = json.dumps(row[0])
    file.write_text("\n".join(lines) + "\n", "utf-8")
    return f"{file.name}: line {at + 1}: {done}"


def _of_toml(file: Path, draw: random.Random) -> str:
    lines = file.read_text("utf-8").splitlines()
    at = draw.randrange(len(lines))
    values = ('""', "0", "-1", "true", "nan", "1e9", '"a\\nb"', '"x; rm -rf ~"', '"\\u001b[31m"', "[]",
              '[""]', "[1, [2]]", "{}", "1979-05-27", '"9999999999"', "9" * 40, "'$(id)'")  # fmt: skip
    kind = draw.choice(("value", "value", "value", "key", "out", "twice"))
    if kind == "value":
        lines[at] = f"{lines[at].partition('=')[0]}= {draw.choice(values)}"
    elif kind == "key":
        key = draw.choice(("future", "array", "wrap", "job-name", "a b", "export", "-x", '"a\\nb"'))
        lines[at] = f"{key} ={lines[at].partition('=')[2]}"
    else:
        lines[at : at + 1] = [] if kind == "out" else [lines[at]] * 2
    file.write_text("\n".join(lines) + "\n", "utf-8")
    return f"{file.name}: line {at + 1}: {kind}: {[*lines, ''][at][:60]!r}"
