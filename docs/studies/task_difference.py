"""Do two tasks differ beyond seeds? `python task_difference.py OUT NAME=ABLATION,... NAME=ABLATION,...`.

For every span the mean drop over the seeds of the second task minus that of the first, in points, with
Welch's test over seeds (Holm's correction over spans). The tasks have different examples, so nothing is
paired. `share_a` and `share_b` are the shares of the drop of all layers, which do not depend on how much the
adapters contribute overall. `OUT/difference.csv` has the numbers, `OUT/difference.png` the map.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import t, ttest_ind_from_stats

import adapter_probe as ap
from adapter_probe.analysis.comparing import ComparisonRecord
from adapter_probe.analysis.significance import ALPHA, holm
from adapter_probe.figures.heatmap import heatmap

SPAN = ["first", "last", "n_layers"]


def drops(folders: str) -> tuple[pd.DataFrame, np.ndarray, list[ap.Ablation]]:
    """The spans, and what each costs in every seed, ``[seeds, spans]`` points."""
    studies = [ap.load(folder) for folder in folders.split(",")]
    frames = [study.spans.query("first >= 0").reset_index(drop=True) for study in studies]
    return frames[0][SPAN], -np.stack([frame["delta_points"] for frame in frames]), studies


def main(out: Path, named: dict[str, str]) -> None:
    """Write the table and the map."""
    (spans, a, studies_a), (_, b, studies_b) = map(drops, named.values())
    means, sds = [x.mean(axis=0) for x in (a, b)], [x.std(axis=0, ddof=1) for x in (a, b)]
    error = np.sqrt(sds[0] ** 2 / len(a) + sds[1] ** 2 / len(b))
    error[error == 0] = np.nan  # seeds that are equal say nothing of others
    freedom = error**4 / sum(s**4 / len(x) ** 2 / (len(x) - 1) for s, x in zip(sds, (a, b)))
    tested = ttest_ind_from_stats(means[1], sds[1], len(b), means[0], sds[0], len(a), equal_var=False)
    p = np.where(np.isnan(error), np.nan, tested.pvalue)
    difference, half = means[1] - means[0], t.ppf(1 - ALPHA / 2, freedom) * error
    whole = spans["n_layers"].idxmax()
    table = spans.assign(
        drop_a_points=means[0], sd_a_points=sds[0], drop_b_points=means[1], sd_b_points=sds[1],
        difference_points=difference, ci_low_points=difference - half, ci_high_points=difference + half,
        p_value=p, p_holm=holm(p), significant=holm(p) < ALPHA,
        share_a=means[0] / means[0][whole], share_b=means[1] / means[1][whole],
    )  # fmt: skip
    intact = tuple(float(np.mean([s.summary.intact_score for s in x])) for x in (studies_a, studies_b))
    names, metric = tuple(named), studies_a[0].summary.metric
    record = ComparisonRecord(names, table, metric, studies_b[0].summary.n_examples, intact, {})
    out.mkdir(parents=True, exist_ok=True)
    rounded = table.drop(columns=["p_value", "p_holm"]).round(4)  # a small p is not 0
    table.assign(**rounded).to_csv(out / "difference.csv", index=False, lineterminator="\n")
    figure = Figure(figsize=(5.4, 4.4), layout="constrained")
    heatmap(record, figure.add_subplot())
    figure.savefig(out / "difference.png", dpi=200)
    print(
        f"{' and '.join(names)}: {int(table['significant'].sum())} of {len(table)} spans differ beyond seeds"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), dict(pair.split("=", 1) for pair in sys.argv[2:]))
