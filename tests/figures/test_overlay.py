"""Results of other people in the figure of a trade-off: read as they are written, drawn where they belong."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from refusals import names, naming, refuses, says

from adapter_probe.analysis import sweeps
from adapter_probe.analysis.costs import read_overlay
from adapter_probe.analysis.study_records import TradeoffRecord
from adapter_probe.errors import ResultsError
from adapter_probe.figures import tradeoff as module
from adapter_probe.figures.curves import METHODS
from adapter_probe.figures.tradeoff import tradeoff
from adapter_probe.figures.venues import PAPER, FigureOptions

CSV = """method,size,parameters,score,task,seed
lora,8,300000,0.80,cola,0
lora,8,300000,0.84,cola,1
vera,256,20000,0.79,CoLA,0
ia3,,9000,0.70,mnli,0
"""


def experiment(**changes: object) -> dict:
    """A file of PEFT's method comparison, as `huggingface/peft` writes them, with what is read here."""
    run = {
        "experiment_name": "lora/llama-3.2-3B-rank32",
        "train_config": {"model_id": "meta-llama/Llama-3.2-3B", "max_steps": 5000, "seed": 0},
        "peft_config": {"peft_type": "LORA", "r": 32, "use_dora": False},
    }
    trained = {
        "cuda_memory_max": 22273851392, "train_time": 1796.0, "file_size": 36715216,
        "num_trainable_params": 9175040, "status": "success",
        "metrics": [{"step": 250, "valid accuracy": 0.34}, {"step": 5000, "test accuracy": 0.48}],
    }  # fmt: skip
    document = {"run_info": run, "train_info": trained}
    document["meta_info"] = {"dataset_info": {"metamath": {}, "gsm8k": {}}}
    for name, value in changes.items():
        (run if name in run else trained)[name] = value
    return document


@pytest.fixture
def record(tradeoff_trials) -> TradeoffRecord:
    trials = tradeoff_trials(("cola", "mnli"))
    return TradeoffRecord(Path("t"), sweeps.tradeoff_table(trials), None, None, trials, {})


def hollow(ax: plt.Axes) -> set[tuple[str, float, float]]:
    """The hollow marks: colour, parameters, score."""
    return {
        (line.get_color(), x, round(y, 9))
        for line in ax.lines
        if line.get_markerfacecolor() == "#ffffff" and line.get_label() != "far below"
        for x, y in line.get_xydata()
    }


def test_a_table_lies_over_the_panels_of_its_tasks(record, tmp_path):
    (tmp_path / "blog.csv").write_text(CSV)
    overlay = read_overlay([tmp_path / "blog.csv"])
    assert overlay["method"].tolist() == ["lora", "vera", "ia3"]  # as in the file
    lora = overlay[overlay["method"] == "lora"].iloc[0]
    assert (lora["mean"], lora["n"]) == (pytest.approx(0.82), 2)
    assert lora["sem"] == pytest.approx(np.std([0.80, 0.84], ddof=1) / 2**0.5)
    drawing = next(module.drawings([record], FigureOptions(PAPER, overlay=overlay)))
    first, second = drawing.figure.axes[:2]
    assert hollow(first) == {(METHODS["lora"].colour, 300000, 82.0), (METHODS["vera"].colour, 20000, 79.0)}
    assert {x for _, x, _ in hollow(second)} == {9000}
    legend = [text.get_text() for text in drawing.figure.legends[0].get_texts()]
    assert sum(says(text, "hollow") for text in legend) == 1
    assert says(drawing.caption, "other people", "blog")
    rows = drawing.frame[drawing.frame["source"] == "blog"]
    assert sorted(rows["mean"]) == pytest.approx([0.70, 0.79, 0.82])


def test_pefts_method_comparison_has_every_cost(tradeoff_trials, tmp_path):
    (tmp_path / "lora--rank32.json").write_text(json.dumps(experiment()))
    (tmp_path / "full.json").write_text(
        json.dumps(experiment(peft_config=None, num_trainable_params=3212749824))
    )
    (tmp_path / "failed.json").write_text(json.dumps(experiment(status="failed")))
    overlay = read_overlay([tmp_path])
    assert overlay.set_index("method")["parameters"].to_dict() == {"lora": 9175040, "full": 3212749824}
    lora = overlay[overlay["method"] == "lora"].iloc[0]
    assert (lora["size"], lora["mean"], lora["seconds_per_step"]) == (32, 0.48, 1796 / 5000)
    assert names(lora["source"], "PEFT", "meta-llama/Llama-3.2-3B, metamath, gsm8k")
    trials = tradeoff_trials(("cola",))
    record = TradeoffRecord(Path("t"), sweeps.tradeoff_table(trials), None, None, trials, {})
    ax = tradeoff(record, plt.figure().add_subplot(), overlay=overlay)
    assert {x for _, x, _ in hollow(ax)} == {9175040, 3212749824}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", CSV.replace("score", "accuracy"), ("a.csv", "score")),
        ("a.csv", CSV.replace("0.79", "79"), ("--overlay", "a.csv", "vera", "cola", "79")),
        ("a.csv", CSV.replace("20000", "0"), ("--overlay", "a.csv", "vera", "0.0")),
        ("a.csv", CSV.replace(",cola", ",x").replace(",CoLA", ",x").replace(",mnli", ",x"), ("cola", "x")),
        ("a.csv", CSV.replace(",", ";"), ("a.csv", "semicolons", "commas")),
        ("a.json", json.dumps(experiment()), ("--overlay", "CSV", "task")),
        ("a.json", "[]", ("a.json", "PEFT")),
        ("a.json", "{", ("a.json", "JSON")),
        ("a.json", json.dumps(experiment(status="failed")), ("a.json",)),
        ("a.json", json.dumps(experiment(file_size="big")), ("a.json", "PEFT", "'big'")),
        ("a.json", json.dumps(experiment(file_size=True)), ("a.json", "PEFT", "True")),
    ],
)  # fmt: skip
def test_bad_files(name, text, words, record, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(ResultsError, match=naming(*words)) as caught:
        list(module.drawings([record], FigureOptions(PAPER, overlay=read_overlay([tmp_path / name]))))
    assert "\n" not in str(caught.value)


def test_not_beside_the_papers_percentages(record, tmp_path):
    (tmp_path / "a.csv").write_text(CSV)
    options = FigureOptions(PAPER, paper=True, overlay=read_overlay([tmp_path / "a.csv"]))
    refuses(ResultsError, ("--paper",), next, module.drawings([record], options))
    assert isinstance(read_overlay([]), pd.DataFrame)
    (tmp_path / "a.csv").write_text(CSV.replace("9000", "1"))  # the fewest that there can be
    assert read_overlay([tmp_path / "a.csv"])["parameters"].min() == 1
