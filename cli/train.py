"""`adapter-probe train`: train adapters or a baseline and save a checkpoint."""

from __future__ import annotations

from typing import Any

import adapter_probe
from adapter_probe.analysis.summary_text import aligned_columns, score_text
from adapter_probe.studies.training_arguments import Train

from . import options
from .console import command, show, show_json


@command
def train(asked: Train, json: options.Json = False) -> None:
    """Train bottleneck adapters, LayerNorms and head on a frozen base (Houlsby et al. 2019), or a baseline.

    The checkpoint of the epoch with the best validation score is kept. Run the same command again to resume
    an interrupted training.

    Example: adapter-probe train --base bert-base-uncased --task cola --data cola/ --out cola-adapters
    """
    done = adapter_probe.train(**vars(asked))
    names = ("task", "metric", "score", "majority_score", "validation_scores", "checkpoint")
    outcome = {name: getattr(done, name) for name in names}
    show_json(outcome) if json else show(_text(outcome))


def _text(outcome: dict[str, Any]) -> str:
    from adapter_probe.metrics import METRICS  # loads NumPy, which no page of help needs

    metric, score, majority = outcome["metric"], outcome["score"], outcome["majority_score"]
    epochs = ", ".join(score_text(score, metric) for score in outcome["validation_scores"])
    no_better = majority is not None and (score is None or score <= majority)
    warning = "; the model scores no higher, so an ablation would not be informative" if no_better else ""
    no_class = majority is None and metric in {*METRICS["causal"], *METRICS["ranking"], "entity_f1"}
    return aligned_columns(
        [
            ("task", outcome["task"]),
            (f"best {metric}", f"{score_text(score, metric)} (epochs: {epochs})"),
            *([] if no_class else [("majority class", f"{score_text(majority, metric)}{warning}")]),
            ("checkpoint", str(outcome["checkpoint"])),
        ]
    )
