"""Side by side with what people use today: `make bench`, or one case at a time.

    python benchmarks/run.py                            what takes about 20 minutes: bert-base, start-up
    python benchmarks/run.py lora bert-large --rounds 3
    python benchmarks/run.py cola --real FOLDER --checkpoint cola=CHECKPOINT
    python benchmarks/run.py --all --real FOLDER

Each contender is a process with its own environment (made under .bench/ where none is given), on the same
checkpoint, texts and threads; they run in alternation. A Markdown table a case goes to standard output, all
numbers to benchmarks/results/. Seconds are this machine's; the ratios are the result.
"""

from __future__ import annotations

import argparse
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

from cases import CASES, Absent, prepare
from contest import PLAYERS, Setting, contest
from environments import HERE, OWN, PEERS, python_of, variables
from report import store, summarise, table

RESULTS = HERE / "results"
OTHERS = ("start-up",)  # measurements of another kind, each a script of its own
QUICK = ("bert-base", "start-up")
ROUNDS = 4
TINY_PRODUCT = 256


def main() -> None:
    """Run the cases and print their tables."""
    options = parse()
    for name in options.cases:
        if name in OTHERS:
            run_other(name, options)
        else:
            run_case(name, options)


def parse() -> argparse.Namespace:
    """The command's arguments."""
    known = (*CASES, *OTHERS)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(known)}")
    parser.add_argument("--all", action="store_true", help="every case")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="runs of the tree a case")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--contenders", help=f"only these, with commas: {', '.join(PLAYERS)}")
    parser.add_argument("--also", default="", help="these too, such as tree-mixed")
    parser.add_argument("--every", type=int, help="measure peers on every k-th variant")
    parser.add_argument("--real", type=Path, help="folder with data/cola, data/mnli and weights/gte-small")
    parser.add_argument("--checkpoint", action="append", default=[], metavar="CASE=FOLDER")
    parser.add_argument("--env", action="append", default=[], metavar="PEER=FOLDER", help="an environment")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the numbers")
    parser.add_argument("--tiny", action="store_true", help="next to no work: does everything run?")
    options = parser.parse_args()
    options.cases = known if options.all else tuple(options.cases) or QUICK
    if unknown := [name for name in options.cases if name not in known]:
        parser.error(f"unknown case {unknown[0]!r}; known: {', '.join(known)}")
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds} is not allowed; give at least 1")
    for option, allowed in (("checkpoint", CASES), ("env", PEERS)):
        setattr(options, option, pairs(parser, option, getattr(options, option), allowed))
    for name in filter(None, f"{options.contenders or ''},{options.also}".split(",")):
        if name not in PLAYERS:
            parser.error(f"unknown contender {name!r}; known: {', '.join(PLAYERS)}")
    return options


def pairs(parser: argparse.ArgumentParser, option: str, texts: list[str], allowed: Any) -> dict[str, Path]:
    """``NAME=FOLDER`` arguments as a dict."""
    found = {}
    for text in texts:
        name, _, folder = text.partition("=")
        if name not in allowed or not Path(folder).is_dir():
            parser.error(f"--{option} {text!r}: give NAME=FOLDER, NAME one of {', '.join(allowed)}")
        found[name] = Path(folder).absolute()
    return found


def run_case(name: str, options: argparse.Namespace) -> None:
    """Prepare a case, let its contenders run, and report."""
    case = CASES[name].tiny() if options.tiny else CASES[name]
    if options.every:
        case = replace(case, every=options.every)
    try:
        known = prepare(case, options.env, options.real, options.checkpoint, options.threads)
    except Absent as reason:
        print(f"skipped: {reason}\n", flush=True)
        return
    asked = tuple(options.contenders.split(",")) if options.contenders else case.contenders
    contenders = (*asked, *filter(None, options.also.split(",")))
    size = {"product_size": TINY_PRODUCT} if options.tiny else {}
    setting = Setting(options.threads, options.rounds, options.env, **size)
    record = summarise(case, known, contest(case, contenders, setting), setting)
    store(record, options.results, case.name)
    print(table(record), flush=True)


def run_other(name: str, options: argparse.Namespace) -> None:
    """Run a measurement that is a script of its own."""
    script = HERE / f"{name.replace('-', '_')}.py"
    command = [str(python_of(OWN, {})), str(script), "--results", str(options.results)]
    command += ["--tiny"] if options.tiny else []
    subprocess.run(command, check=True, env=variables(options.threads))


if __name__ == "__main__":
    main()
