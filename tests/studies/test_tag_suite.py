"""A suite of a task of tags and one of several labels, and what is done with its studies."""

from __future__ import annotations

import numpy as np
import pytest
from refusals import naming, says

import adapter_probe as ap
from adapter_probe.data.tasks import find_task

pytestmark = pytest.mark.slow
FILE = """
base = "{base}"

[[tasks]]
task = "{tags}"
name = "tags"

[[tasks]]
task = "{labels}"
name = "labels"

[tradeoff]
sizes = [4]
method = ["lora:r=4"]
top_k = [1]
layernorm = false
seeds = 1
epochs = [12]
batch_size = 8
learning_rates = [1e-2]
rates = {{ full = [1e-3], top_layers = [1e-3] }}

[init-sweep]
stds = [1e-2]
size = 4
seeds = 1
epochs = [1]

[ablation]
size = 4
seeds = 2
"""
METRICS = {"tags": "entity_f1", "labels": "micro_f1"}


@pytest.mark.usefixtures("in_this_process")
def test_a_suite_of_tags_and_of_several_labels(tiny_base, tag_task, label_task, tmp_path):
    pytest.importorskip("seqeval")
    file, base = tmp_path / "tasks.toml", tiny_base("bert")
    file.write_text(FILE.format(base=base, tags=tag_task, labels=label_task))
    study = ap.suite(file, tmp_path / "out", progress=False)
    table = study.tradeoff.trials
    assert {task: set(own["metric"]) for task, own in table.groupby("task")} == {
        task: {metric} for task, metric in METRICS.items()
    }
    assert set(table["method"]) == {"adapters", "lora", "top_layers", "full"}
    assert table["score"].between(0, 1).all()
    assert (study.init_sweep.trials["score"] >= 0).all()
    for task, seeds in study.ablations.items():
        first, second = (seeds[number] for number in (0, 1))
        assert first.summary.metric == METRICS[task]
        checkpoint = tmp_path / f"out/checkpoints/{task}/seed-0"
        scores = ap.inspect(checkpoint)["scores"]
        assert scores == {METRICS[task]: first.summary.intact_score}
        mean = ap.average([first, second])
        both = np.array([first.spans["delta_points"], second.spans["delta_points"]])
        np.testing.assert_allclose(mean.spans["delta_points"], both.mean(axis=0), atol=1e-9)
        difference = ap.compare(first, second)
        np.testing.assert_allclose(difference.spans["difference_points"], both[0] - both[1], atol=1e-9)
    ablations = [seeds[0] for seeds in study.ablations.values()]
    folders = [tmp_path / f"out/checkpoints/{task}/seed-0" for task in METRICS]
    parts = [study.tradeoff, study.init_sweep, *ablations]
    ap.report(parts, tmp_path / "report.html", checkpoints=folders, examples=True)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "entity F1" in page
    assert "micro F1" in page
    assert page.count("Changed predictions") >= len(ablations)
    assert "24 sentences" in page
    ablations[0].save(tmp_path / "figure", only="heatmap", formats="svg")
    assert says((tmp_path / "figure" / "heatmap.txt").read_text(encoding="utf-8"), "bootstrap", "sentences")


@pytest.mark.parametrize("kind", ["tag_task", "label_task"])
def test_checkpoints_are_pruned_and_converted(kind, tiny_base, tmp_path, request):
    task, base = request.getfixturevalue(kind), tiny_base("bert")
    quiet = {"progress": False}
    for method in ("lora:r=4", "adapters"):
        folder, smaller, other = (tmp_path / f"{method[:4]}-{name}" for name in ("whole", "pruned", "other"))
        trained = ap.train(
            base, task=task, out=folder, method=method, epochs=8, learning_rate=1e-2, batch_size=8, **quiet
        )
        study = ap.ablate(folder, **quiet)
        one = study.spans.query("first == 0 and last == 1")["score"].item()
        pruned = ap.prune(folder, smaller, span="0-1", **quiet)
        assert pruned.score_after == pytest.approx(one, abs=1e-9)
        if method == "adapters":
            left = ap.ablate(smaller, spans="whole", **quiet)
            assert left.summary.intact_score == pytest.approx(one, abs=1e-9)
            ap.convert(folder, other, "native")
            assert ap.ablate(other, spans="whole", **quiet).summary.intact_score == trained.score
            continue
        ap.convert(folder, other, "peft")
        data = next(task.glob("validation.*"))
        names = find_task(task).label_names
        again = ap.ablate(other, data=data, label_names=names, spans="whole", **quiet)
        assert (again.summary.metric, again.summary.intact_score) == (trained.metric, trained.score)


def test_tags_are_not_written_for_adapterhub(tiny_base, tag_task, tmp_path):
    ap.train(tiny_base("bert"), task=tag_task, out=tmp_path / "c", epochs=1, progress=False)
    with pytest.raises(ap.CheckpointError, match=naming("tags", "AdapterHub")):
        ap.convert(tmp_path / "c", tmp_path / "h", "adapterhub", lossy=True)
