"""From raw numbers to a case's record and its table."""

from __future__ import annotations

import json
import platform
import statistics
from pathlib import Path
from typing import Any

from cases import Case
from contest import PLAYERS, Setting, agreement
from counting import operations

HEADER = (
    "| contender | variants run | seconds (range) | times the tree's (range) | at equal product rate | TFLOP "
    "| % of product rate | peak MiB (above loading) | of plain's peak | predictions that differ "
    "| largest logit difference |"
)


def summarise(case: Case, known: dict[str, Any], raw: dict[str, Any], setting: Setting) -> dict[str, Any]:
    """Everything worth keeping of a case, as plain JSON without names of hosts or places."""
    about, names = raw["about"], list(raw["about"])
    first = about[names[0]]
    rows = {name: _row(name, case, known, raw) for name in names}
    rates = [one["rate"] for found in raw["rounds"] for one in found.values()]
    return {
        "case": case.name,
        "machine": {"processor": processor(), "threads": setting.threads, "system": platform.system()},
        "shape": {k: known[k] for k in ("layers", "hidden", "inner", "site_products")},
        "trained": known.get("trained"),
        "logit_spread": known.get("logit_spread"),
        "examples": first["examples"],
        "tokens": first["tokens"],
        "variants": first["variants"],
        "product_rate": {"median": statistics.median(rates), "least": min(rates), "most": max(rates)},
        "versions": {name: about[name]["versions"] for name in names},
        "contenders": rows,
        "rounds": raw["rounds"],
    }


def _row(name: str, case: Case, known: dict[str, Any], raw: dict[str, Any]) -> dict[str, Any]:
    """One contender's numbers."""
    about, mine = raw["about"][name], [found for found in raw["rounds"] if name in found]
    seconds = [found[name]["seconds"] for found in mine]
    count = operations(name, known, about["groups"])
    row = {
        "variants_run": about.get("chosen", about["variants"]),
        "seconds": spread(seconds),
        "operations": count,
        "padded_tokens": sum(n * length for n, length in about["groups"]),
        "share_of_product_rate": spread(
            [count / found[name]["seconds"] / found[name]["rate"] for found in mine]
        ),
        "memory": raw["memory"][name],
    }
    if "tree" in raw["about"] and name != "tree":
        row["times_the_tree"] = spread([found[name]["seconds"] / found["tree"]["seconds"] for found in mine])
        row["times_at_equal_rate"] = spread([_work(found[name]) / _work(found["tree"]) for found in mine])
        row["agreement"] = agreement(raw["outputs"]["tree"], raw["outputs"][name])
    if "loop" in raw["memory"]:
        row["of_plain_peak"] = raw["memory"][name]["peak_mib"] / raw["memory"]["loop"]["peak_mib"]
    return row


def _work(found: dict[str, float]) -> float:
    """The operations that one large product would have done in the time."""
    return found["seconds"] * found["rate"]


def store(record: dict[str, Any], folder: Path, name: str) -> None:
    """Write a record as ``<folder>/<name>.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def spread(values: list[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def processor() -> str:
    """The processor's name, as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def table(record: dict[str, Any]) -> str:
    """A record as Markdown."""
    shape, machine, rate = record["shape"], record["machine"], record["product_rate"]
    rows = [_line(name, row, record["variants"]) for name, row in record["contenders"].items()]
    return "\n".join(
        [
            f"### {record['case']}",
            "",
            f"{shape['layers']} layers of {shape['hidden']}, {record['variants']} variants, "
            f"{record['examples']} texts of {record['tokens']} tokens in all; {machine['threads']} threads "
            f"of {machine['processor']}; one large float32 product: {rate['median'] / 1e9:.0f} GFLOP/s "
            f"({rate['least'] / 1e9:.0f} to {rate['most'] / 1e9:.0f}); {_versions(record['versions'])}.",
            "",
            HEADER,
            "| --- |" + " ---: |" * (HEADER.count("|") - 2),
            *rows,
            "",
        ]
    )


def _line(name: str, row: dict[str, Any], variants: int) -> str:
    seconds, share, memory = row["seconds"], row["share_of_product_rate"], row["memory"]
    run = "all" if row["variants_run"] == variants else f"{row['variants_run']} of {variants}, scaled up"
    ratio, even, differ, largest = "1", "1", "", ""
    if "times_the_tree" in row:
        ratio, even = (spread_text(row[key], 2) for key in ("times_the_tree", "times_at_equal_rate"))
        agreed = row["agreement"]
        differ = f"{agreed['differing']:,} of {agreed['compared']:,}"
        largest = f"{agreed['largest_logit_difference']:.1e}"
    cells = [
        PLAYERS[name].label,
        run,
        spread_text(seconds, 1 if seconds["median"] >= 10 else 3),
        ratio,
        even,
        f"{row['operations'] / 1e12:.3g}",
        f"{100 * share['median']:.0f}",
        f"{memory['peak_mib']:.0f} ({memory['peak_mib'] - memory['loaded_mib']:.0f})",
        f"{row['of_plain_peak']:.2f}" if "of_plain_peak" in row else "",
        differ,
        largest,
    ]
    return f"| {' | '.join(cells)} |"


def spread_text(values: dict[str, float], digits: int) -> str:
    """Median and range, for people."""
    return f"{values['median']:.{digits}f} ({values['least']:.{digits}f} to {values['most']:.{digits}f})"


def _versions(by_contender: dict[str, dict[str, str]]) -> str:
    """Each library's versions, once."""
    found: dict[str, set[str]] = {}
    for versions in by_contender.values():
        for library, number in versions.items():
            found.setdefault(library, set()).add(number)
    return ", ".join(
        f"{library} {' and '.join(sorted(numbers))}" for library, numbers in sorted(found.items())
    )
