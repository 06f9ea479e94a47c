"""Can acceptability be read off a frozen base? `cola_probe.py TASK OUT.csv BASE ...` makes a table.

For every layer of every base, a logistic regression on the standardised state of the first token, which a
head reads, and on the mean over tokens. Its one penalty is fixed beforehand, so that nothing is chosen on
validation. A figure goes beside the table.
"""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

PENALTY = 0.1  # half the weight of the squared norm, an example


def read(folder: Path, split: str) -> tuple[list[str], torch.Tensor]:
    """Sentences and labels of a split."""
    rows = [json.loads(line) for line in (folder / f"{split}.jsonl").read_text("utf-8").splitlines()]
    return [row["sentence"] for row in rows], torch.tensor([float(row["label"]) for row in rows])


@torch.inference_mode()
def features(base: str, texts: list[str]) -> torch.Tensor:
    """States `[2, layers + 1, examples, hidden]`: of the first token, and the mean over tokens."""
    model = AutoModel.from_pretrained(base, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(base)
    order = np.argsort([len(text) for text in texts], kind="stable")
    found: dict[int, torch.Tensor] = {}
    for start in range(0, len(order), 64):
        chosen = order[start : start + 64]
        batch = tokenizer([texts[i] for i in chosen], return_tensors="pt", padding=True)
        states = torch.stack(model(**batch, output_hidden_states=True).hidden_states)
        mask = batch["attention_mask"][None, :, :, None]
        pair = torch.stack([states[:, :, 0], (states * mask).sum(2) / mask.sum(2)])
        found |= {int(i): pair[:, :, row] for row, i in enumerate(chosen)}
    return torch.stack([found[i] for i in range(len(texts))], dim=2)


def accuracy(x: torch.Tensor, y: torch.Tensor, x_new: torch.Tensor, y_new: torch.Tensor) -> float:
    """Validation accuracy of a logistic regression."""
    mean, std = x.mean(0), x.std(0) + 1e-6
    x, x_new = (x - mean) / std, (x_new - mean) / std
    weights = torch.zeros(x.shape[1] + 1, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=100)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(x @ weights[1:] + weights[0], y)
        loss = loss + PENALTY / 2 * (weights[1:] ** 2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return float((((x_new @ weights[1:] + weights[0]) > 0) == (y_new > 0)).float().mean())


def main(task: Path, out: Path, bases: list[str]) -> None:
    """Write the accuracy of every probe."""
    torch.set_num_threads(1)
    (texts, y), (texts_new, y_new) = read(task, "train"), read(task, "validation")
    rows = []
    for base in bases:
        states = features(base, texts + texts_new)
        for kind, of_kind in zip(("first token", "mean"), states):
            for layer, x in enumerate(of_kind):
                score = accuracy(x[: len(y)], y, x[len(y) :], y_new)
                rows.append((Path(base).name, kind, layer, f"{score:.4f}", f"{float(y_new.mean()):.4f}"))
    with out.open("w", encoding="utf-8", newline="") as file:
        names = ("base", "state", "layer", "accuracy", "majority_class")
        csv.writer(file, lineterminator="\n").writerows([names, *rows])
    draw(out)


def draw(table: Path) -> None:
    """Draw the table beside it, a panel a base."""
    from matplotlib.figure import Figure

    with table.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    bases = list(dict.fromkeys(row["base"] for row in rows))
    figure = Figure(figsize=(6.75, 2.3), layout="constrained")
    panels = figure.subplots(1, len(bases), sharey=True, squeeze=False)[0]
    for ax, base in zip(panels, bases):
        for kind, colour in (("first token", "#0072B2"), ("mean", "#D55E00")):
            own = [row for row in rows if row["base"] == base and row["state"] == kind]
            scores = [100 * float(row["accuracy"]) for row in own]
            ax.plot([int(row["layer"]) for row in own], scores, "o-", ms=3, lw=1, color=colour, label=kind)
        ax.axhline(100 * float(rows[0]["majority_class"]), color="0.4", lw=1, ls="--", label="majority class")
        ax.set(title=base, xlabel="layer (0: embeddings)")
        ax.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("CoLA accuracy (%)")
    panels[-1].legend(frameon=False, fontsize=7)
    figure.savefig(table.with_suffix(".png"), dpi=200)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
