"""Cuts public data sets to these studies' subsets: `python subsets.py DATA OUT [TRAIN [VALIDATION]]`.

Each set gets a folder `OUT/<task>` with `train.jsonl` and `validation.jsonl`, chosen by
`random.Random(0)` and kept in the file's order. CoLA's two dev files are joined first; the CrowdFlower sets
keep their own split. TRAIN and VALIDATION are numbers of examples for every set, in place of those below.
"""

import csv
import json
import random
import sys
from pathlib import Path

VALIDATION = 400
TASKS = {  # examples to train on, files to train on, files to validate on
    "arc_easy": (1000, ["train.jsonl"], ["test.jsonl"]),
    "cola": (1000, ["in_domain_train.tsv"], ["in_domain_dev.tsv", "out_of_domain_dev.tsv"]),
    "sst2": (800, ["train.jsonl"], ["validation.jsonl"]),
    "mrpc": (400, ["train.jsonl"], ["validation.jsonl"]),
    "mnli": (500, ["train.jsonl"], ["validation_matched.jsonl"]),
    "stsb": (400, ["train.jsonl"], ["validation.jsonl"]),
    "crowdflower_airline": (400, ["train.jsonl"], ["validation.jsonl"]),
    "crowdflower_corporate_messaging": (400, ["train.jsonl"], ["validation.jsonl"]),
    "crowdflower_disasters": (400, ["train.jsonl"], ["validation.jsonl"]),
    "crowdflower_global_warming": (400, ["train.jsonl"], ["validation.jsonl"]),
}


def read_rows(path: Path) -> list[dict[str, object]]:
    """The rows of a JSONL file, or of CoLA's TSV without a header."""
    with path.open(encoding="utf-8", newline="") as file:
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in file]
        return [
            {"sentence": row[3], "label": int(row[1])}
            for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        ]


def main(data: Path, out: Path, most: int | None = None, n_validation: int = VALIDATION) -> None:
    """Write every task's two files."""
    for task, (n_train, train, validation) in TASKS.items():
        folder = out / task.removeprefix("crowdflower_")
        folder.mkdir(parents=True, exist_ok=True)
        for split, size, names in (
            ("train", most or n_train, train),
            ("validation", n_validation, validation),
        ):
            rows = [row for name in names for row in read_rows(data / task / name)]
            kept = sorted(random.Random(0).sample(range(len(rows)), min(size, len(rows))))
            lines = [json.dumps(rows[i], ensure_ascii=False) + "\n" for i in kept]
            (folder / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
            print(f"{folder.name} {split}: {len(kept)} of {len(rows)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
