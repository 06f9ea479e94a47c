"""Does an ablation improve the next training? `python recipe_arms.py DATA BASE OUT [--tasks ...]`.

For every task and seed a LoRA is trained in all layers and ablated on half A of the validation examples. Then
LoRAs are trained anew in half of the layers: those with the largest shares of the drop on half A
(`ablation`), the lowest, the highest, or a random draw per seed; and in all layers with ranks in proportion
to the shares (`ranks`), which has about as many parameters as the uniform rank of `all`. Half B, which chose
nothing, judges.

Every training is a row of `OUT/trials.csv`; rows that are there are not trained again, and processes with
different tasks or seeds may share OUT. `OUT/ablations.csv` has a row for each ablation on half A. DATA is the
folder of the data sets, BASE the pretrained encoder.
"""

import argparse
import csv
import json
import random
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

RANK = 8
METHOD = f"lora:r={RANK},target_modules=query+value"
ARMS = ("all", "ablation", "lowest", "highest", "random", "ranks")
TASKS = {  # files to train on, files to validate on, the number of rows of halves A and B at most, epochs
    "sst2": (["train.jsonl"], ["validation.jsonl"], (436, 436), 2),
    "crowdflower_airline": (["train.jsonl"], ["validation.jsonl", "test.jsonl"], (1000, 1928), 2),
    "mnli": (["train.jsonl"], ["validation_matched.jsonl"], (1000, 2000), 2),
}
N_TRAIN = 4000


def main(arguments: Sequence[str]) -> None:
    """Train what is missing of every task and seed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("base", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--seeds", default="0,1,2,3,4", help="in this order")
    parser.add_argument("--rows", type=int, default=N_TRAIN, help="examples to train on")
    parser.add_argument("--half", type=int, default=None, help="examples of each half at most")
    parser.add_argument("--dtype", default="float32", help="precision of the products in training")
    parser.add_argument("--precision", default="float32", help="precision of the ablation on half A")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    tasks = given.tasks.split(",")
    files = {task: write_files(given.data, given.out / task, task, given.rows, given.half) for task in tasks}
    for seed in map(int, given.seeds.split(",")):
        for task in tasks:
            run_seed(task, seed, files[task], given.base, given.out, given.dtype, given.precision)


def write_files(data: Path, out: Path, task: str, n_train: int, half: int | None) -> dict[str, Path]:
    """The examples to train on and the two halves, drawn once; the same for every seed."""
    train, validation, sizes, _ = TASKS[task]
    out.mkdir(parents=True, exist_ok=True)
    chance = random.Random(0)
    rows = [line for name in train for line in (data / task / name).read_text("utf-8").splitlines()]
    judged = [line for name in validation for line in (data / task / name).read_text("utf-8").splitlines()]
    n_a, n_b = (min(size, half or size) for size in sizes)
    drawn = chance.sample(judged, n_a + n_b)
    parts = {"train": chance.sample(rows, min(n_train, len(rows))), "a": drawn[:n_a], "b": drawn[n_a:]}
    files = {name: out / f"{name}.jsonl" for name in parts}
    for name, lines in parts.items():
        files[name].write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return files


def run_seed(
    task: str, seed: int, files: dict[str, Path], base: Path, out: Path, dtype: str, precision: str
) -> None:
    """Train what `trials.csv` lacks of one task and seed."""
    import adapter_probe as ap

    table = out / "trials.csv"
    done = {row["arm"] for row in read(table) if (row["task"], row["seed"]) == (task, str(seed))}
    if done >= set(ARMS):
        return
    folder = out / task / f"seed-{seed}"
    whole = train(METHOD, folder / "all", task, seed, files, base, dtype)
    study = ap.ablate(whole, data=files["a"], base=base, precision=precision, out=folder / "ablation-of-all")
    record_ablation(out / "ablations.csv", task, seed, study)
    for arm, layers in arms(study, seed):
        if arm in done or (arm == "ranks" and study.summary.warning):  # shares of no significant drop
            continue
        if arm == "all":
            trained = whole
        else:
            recipe = folder / f"recipe-{arm}"
            study.recipe(recipe, keep=layers, rank=RANK if arm == "ranks" else None, checkpoint=whole)
            trained = train(str(recipe), folder / arm, task, seed, files, base, dtype)
        append(
            table,
            {"task": task, "arm": arm, "seed": seed, **judged(trained, files["b"], base, study, precision)},
        )
        if arm != "all":
            shutil.rmtree(trained)


def record_ablation(table: Path, task: str, seed: int, study: object) -> None:
    """Add the ablation on half A: what all adapters are worth, and each layer's share of it, in points."""
    if any((row["task"], row["seed"]) == (task, str(seed)) for row in read(table)):
        return
    said, layers = study.summary, study.layers  # type: ignore[attr-defined]
    shares = layers.groupby("layer")["share_points"].sum()
    append(table, {
        "task": task, "seed": seed, "n_examples": said.n_examples,
        "intact_score": round(said.intact_score, 4), "all_off_points": round(said.removed_delta_points, 2),
        "share_points": " ".join(f"{share:.2f}" for share in shares),
    })  # fmt: skip


def arms(study: object, seed: int) -> Iterator[tuple[str, list[int]]]:
    """Every arm with its layers; the arms of half the layers have the same number."""
    shares = study.layers.groupby("layer")["share_points"].sum()  # type: ignore[attr-defined]
    layers = sorted(int(layer) for layer in shares.index)
    k = len(layers) // 2
    yield "all", layers
    yield "ablation", sorted(sorted(layers, key=lambda layer: -shares[layer])[:k])
    yield "lowest", layers[:k]
    yield "highest", layers[-k:]
    yield "random", sorted(random.Random(seed).sample(layers, k))
    yield "ranks", layers


def train(
    method: str, out: Path, task: str, seed: int, files: dict[str, Path], base: Path, dtype: str
) -> Path:
    """Train one LoRA; half A selects the epoch."""
    import adapter_probe as ap

    columns = {"text": "premise", "text_b": "hypothesis"} if task == "mnli" else {}
    epochs = TASKS[task][3]
    ap.train(
        base, out, method=method, train_file=files["train"], validation_file=files["a"], epochs=epochs,
        learning_rate=3e-3, seed=seed, name=task, dtype=dtype, **columns,
    )  # fmt: skip
    return out


def judged(checkpoint: Path, rows: Path, base: Path, whole: object, precision: str) -> dict[str, object]:
    """Accuracy on half B, the layers with a LoRA, their ranks, and the parameters of the LoRA."""
    from safetensors import safe_open

    import adapter_probe as ap

    n_layers = whole.summary.n_layers  # type: ignore[attr-defined]
    everything = f"{n_layers}..{n_layers}"
    study = ap.ablate(
        checkpoint, data=rows, base=base, spans=everything, precision=precision, out=checkpoint / "half-b",
        progress=False,
    )  # fmt: skip
    with safe_open(checkpoint / "adapter_model.safetensors", "np") as stored:
        names = [name for name in stored.keys() if ".lora_" in name]  # noqa: SIM118 - not a dictionary
        found = {name: stored.get_slice(name).get_shape() for name in names}
    ranks: dict[int, int] = {}
    for name, shape in found.items():
        if ".lora_A." in name:
            ranks[int(name.split(".layer.")[1].split(".")[0])] = shape[0]
    return {
        "score": study.summary.intact_score,
        "n_layers": len(ranks),
        "parameters": sum(int(np.prod(shape)) for shape in found.values()),
        "layers": " ".join(map(str, sorted(ranks))),
        "ranks": " ".join(str(ranks[layer]) for layer in sorted(ranks)),
    }


def read(table: Path) -> list[dict[str, str]]:
    """The rows so far."""
    if not table.is_file():
        return []
    with table.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def append(table: Path, row: dict[str, object]) -> None:
    """Add a row, with a header to a new table."""
    new = not table.is_file()
    with table.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*row], lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
