"""Do upper LoRA layers hurt a language model? `python upper_layers.py BASE DATA OUT [--tasks ...]`.

arXiv 2503.23360 reports that the LoRA above a boundary layer can go, with gains. Here, for every task and
seed, a LoRA is trained and the LoRA of all suffixes of layers is switched off on two disjoint halves of
held-out questions. The boundary is the suffix with the highest score on half A, the intact model included (of
equal ones the longest); half B, which chose nothing, says what it gains. A third ablation, in float32, gives
the KL divergence from the intact model on the prompts of half B.

OUT gets `boundaries.csv`, a row per training, `curves.csv`, a row per training and suffix, and
`upper-layers.png`. What is there is not computed again. BASE is a causal language model, DATA the folder of
the data sets.
"""

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

import adapter_probe as ap
from adapter_probe.figures.style import FAINT, GREEN, GRID, INK, paper_style

METHOD = "lora:r=8,lora_alpha=16,target_modules=all-linear"
TASKS = {  # the files to train on and to judge with, and the title
    "arc_easy": ("train.jsonl", "test.jsonl", "ARC-Easy"),
    "sst2": ("train.jsonl", "validation.jsonl", "SST-2"),
    "mnli": ("train.jsonl", "validation_matched.jsonl", "MNLI"),
}
NLI = {"entailment": " True", "neutral": " Neither", "contradiction": " False"}


def main(arguments: Sequence[str]) -> None:
    """Train and ablate what is missing, then write the tables and the figure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("base", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=2000, help="examples to train on")
    parser.add_argument("--half", type=int, default=400, help="questions of each half")
    parser.add_argument("--texts", type=int, default=100, help="prompts for the KL divergence")
    parser.add_argument("--dtype", default="float32", help="precision of the products in training")
    parser.add_argument("--precision", default="float32", help="precision of the scores")
    given = parser.parse_args(arguments)
    boundaries, curves = [], []
    for seed in range(given.seeds):
        for task in given.tasks.split(","):
            folder = given.out / f"{task}-{seed}"
            files = write_files(given.data, given.out / task, task, given.rows, given.half, given.texts)
            boundary, curve = one(task, seed, folder, files, given)
            boundaries.append({"task": task, "seed": seed, **boundary})
            curves.append(curve.assign(task=task, seed=seed))
            for name, table in (("boundaries", pd.DataFrame(boundaries)), ("curves", pd.concat(curves))):
                table.to_csv(given.out / f"{name}.csv", index=False, lineterminator="\n")
            print(json.dumps(boundaries[-1]), flush=True)
    with paper_style():
        draw(pd.concat(curves), pd.DataFrame(boundaries)).savefig(given.out / "upper-layers.png")


def question(task: str, row: dict[str, object]) -> dict[str, object]:
    """A row as a multiple-choice question."""
    if task == "sst2":
        prompt, choices = f"Review: {str(row['sentence']).strip()}\nSentiment:", [" negative", " positive"]
        return {"question": prompt, "choices": choices, "answer": int(str(row["label"]))}
    if task == "mnli":
        prompt = f"{row['premise']}\nQuestion: {row['hypothesis']} True, False or Neither?\nAnswer:"
        answer = list(NLI).index(str(row["label"]))
        return {"question": prompt, "choices": list(NLI.values()), "answer": answer}
    return row


def write_files(data: Path, out: Path, task: str, n_train: int, half: int, texts: int) -> dict[str, Path]:
    """The questions to train on, the two halves, and the prompts of half B; the same for every seed."""
    out.mkdir(parents=True, exist_ok=True)
    chance = random.Random(0)
    train, judged, _ = TASKS[task]
    pools = [[*map(json.loads, (data / task / name).open(encoding="utf-8"))] for name in (train, judged)]
    rows = [question(task, row) for row in chance.sample(pools[0], min(n_train, len(pools[0])))]
    held = [question(task, row) for row in chance.sample(pools[1], min(2 * half, len(pools[1])))]
    a, b = held[: len(held) // 2], held[len(held) // 2 :]
    prompts = [{"text": row["question"]} for row in b[:texts]]
    files = {name: out / f"{name}.jsonl" for name in ("train", "a", "b", "prompts")}
    for path, part in zip(files.values(), (rows, a, b, prompts)):
        path.write_text("".join(json.dumps(row) + "\n" for row in part), encoding="utf-8")
    return files


def one(
    task: str, seed: int, folder: Path, files: dict[str, Path], given: argparse.Namespace
) -> tuple[dict[str, object], pd.DataFrame]:
    """Train one LoRA, and judge its suffixes."""
    ap.train(
        given.base, folder, method=METHOD, train_file=files["train"], validation_file=files["a"], epochs=1,
        batch_size=16, learning_rate=5e-4, seed=seed, name=task, dtype=given.dtype,
    )  # fmt: skip
    same = {"base": given.base, "spans": "suffix"}
    scored = {half: {**same, "precision": given.precision, "out": folder / half} for half in "ab"}
    a, b = (ap.ablate(folder, data=files[half], **scored[half]) for half in "ab")
    kl = ap.ablate(folder, data=files["prompts"], metric="kl", out=folder / "kl", **same)
    chosen, judged = (study.spans.set_index("first").sort_index() for study in (a, b))
    best = chosen["score"].max()
    gains = best > a.summary.intact_score or (chosen["score"] == a.summary.intact_score).any()
    boundary = int(chosen.index[chosen["score"] == best].min()) if gains else b.summary.n_layers
    own = judged.loc[boundary] if gains else None
    everything = judged.loc[0]
    found = {
        "boundary": boundary, "intact_a": a.summary.intact_score, "score_a": best if gains else
        a.summary.intact_score, "intact_b": b.summary.intact_score, "base_b": everything["score"],
        "delta_points_b": own["delta_points"] if gains else 0.0,
        "ci_low_points_b": own["ci_low_points"] if gains else 0.0,
        "ci_high_points_b": own["ci_high_points"] if gains else 0.0,
        "p_value_b": own["p_value"] if gains else 1.0,
        "better_after_holm_b": int((judged["significant"] & (judged["delta_points"] > 0)).sum()),
        "worse_after_holm_b": int((judged["significant"] & (judged["delta_points"] < 0)).sum()),
    }  # fmt: skip
    curve = judged[["delta_points", "ci_low_points", "ci_high_points", "p_holm", "significant"]].reset_index()
    curve["kl"] = kl.spans.set_index("first").sort_index()["score"].to_numpy()
    return found, curve.assign(delta_points_a=chosen["delta_points"].to_numpy())


def draw(curves: pd.DataFrame, boundaries: pd.DataFrame) -> plt.Figure:
    """A column per task: the suffixes on half B with the chosen boundary, and their KL divergence."""
    tasks = [task for task in TASKS if task in set(curves["task"])]
    figure, axes = plt.subplots(
        2, len(tasks), figsize=(1.2 + 1.9 * len(tasks), 3.2), sharex=True, sharey="row", squeeze=False,
        height_ratios=(2, 1), layout="constrained",
    )  # fmt: skip
    for (above, below), task in zip(axes.T, tasks):
        above.axhline(0, color=FAINT, linewidth=0.6)
        for seed, curve in curves[curves["task"] == task].groupby("seed"):
            above.fill_between(curve["first"], curve["ci_low_points"], curve["ci_high_points"], color=GRID,
                               alpha=0.5, linewidth=0)  # fmt: skip
            above.plot(curve["first"], curve["delta_points"], color=FAINT, linewidth=0.7)
            below.plot(curve["first"], curve["kl"], color=FAINT, linewidth=0.7)
            row = boundaries[(boundaries["task"] == task) & (boundaries["seed"] == seed)].iloc[0]
            point = [[row["delta_points_b"] - row["ci_low_points_b"]],
                     [row["ci_high_points_b"] - row["delta_points_b"]]]  # fmt: skip
            above.errorbar(row["boundary"] + 0.15 * (seed - 1), row["delta_points_b"], yerr=point, fmt="D",
                           color=GREEN, markersize=3, linewidth=1)  # fmt: skip
        mean = curves[curves["task"] == task].groupby("first")[["delta_points", "kl"]].mean()
        above.plot(mean.index, mean["delta_points"], color=INK, linewidth=1.2)
        below.plot(mean.index, mean["kl"], color=INK, linewidth=1.2)
        intact = 100 * boundaries.loc[boundaries["task"] == task, "intact_b"].mean()
        above.set_title(f"{TASKS[task][2]}, intact {intact:.1f}%", fontsize=7)
        below.set_xlabel("first layer whose LoRA is off", fontsize=7, color=INK)
        below.set_yscale("log")
        for axis in (above, below):
            axis.tick_params(labelsize=7)
    axes[0, 0].set_ylabel("change of accuracy\non half B (points)", fontsize=7, color=INK)
    axes[1, 0].set_ylabel("KL (nats)", fontsize=7, color=INK)
    return figure


if __name__ == "__main__":
    main(sys.argv[1:])
