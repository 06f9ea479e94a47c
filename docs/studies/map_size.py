"""How far is a map on some of the examples from that on all others?

    python map_size.py OUT.csv FOLDER EXAMPLES [DRAWS]

The folder holds an ablation of spans of a classifier. A row for each measure of `where_learnt.py`: the mean
layer (single layers, weighted by what each costs) on all examples and its standard deviation over random
subsets of so many of them, and the rank correlation within one length of span between the map of a subset
and that of all other examples, the mean and the least.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from map_ranks import within
from map_record import costs, parts
from where_learnt import shares

import adapter_probe as ap


def main(out: Path, folder: str, size: int, draws: int = 200) -> None:
    """Write the table."""
    study, chance = ap.load(folder), np.random.default_rng(0)
    n_layers, n = study.results.n_layers, study.results.n_examples
    index = pd.MultiIndex.from_arrays(np.triu_indices(n_layers))
    subsets, rows = [chance.permutation(n) for _ in range(draws)], []
    for measure, own in costs(study.results).items():
        centre = [shares(parts(own[:, one[:size]].mean(axis=1), n_layers))[0, -1] for one in subsets]
        pairs = [
            [pd.Series(own[:, part].mean(axis=1).round(9), index) for part in (one[:size], one[size:])]
            for one in subsets
        ]
        agreed = [within(*pair) for pair in pairs]
        rows.append({
            "measure": measure, "examples": n, "in_a_subset": size, "subsets": draws,
            "mean_layer": shares(parts(own.mean(axis=1), n_layers))[0, -1],
            "sd_mean_layer": np.std(centre, ddof=1),
            "mean_agreement": np.mean(agreed), "least_agreement": np.min(agreed),
        })  # fmt: skip
    table = pd.DataFrame(rows).round(5)
    table.to_csv(out, index=False, lineterminator="\n")
    print(table.to_string(index=False))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:]))
