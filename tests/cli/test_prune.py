"""`adapter-probe prune` as a user runs it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from changed_files import edit
from refusals import names
from safetensors.numpy import load_file
from sklearn.metrics import accuracy_score, matthews_corrcoef

import adapter_probe as ap
from adapter_probe.analysis.removable import random_halves
from adapter_probe.results.ablation_files import load_ablation
from adapter_probe.spans import Span
from adapter_probe.wording import RETRAINED


@pytest.fixture(scope="module")
def ablated(program, trained, tmp_path_factory) -> Path:
    """A checkpoint with its ablation inside."""
    folder = shutil.copytree(trained, tmp_path_factory.mktemp("ablated") / "c")
    assert program.undrawn("ablate", folder).code == 0
    return folder


def test_a_span(program, ablated, tmp_path):
    outcome = program("prune", ablated, "--span", "0-1", "--out", tmp_path / "p", "--json")
    assert outcome.code == 0, outcome.stderr
    report = json.loads(outcome.stdout)
    rows = (ablated / "ablation" / "spans.csv").read_text().splitlines()
    names = rows[0].split(",")
    row = next(dict(zip(names, line.split(","))) for line in rows if line.startswith("0,1,"))
    assert report["delta_points"] == pytest.approx(float(row["delta_points"]))
    assert report["delta_interval_points"] == pytest.approx(
        [float(row["ci_low_points"]), float(row["ci_high_points"])], abs=2.0
    )
    assert report["adapter_parameters_after"] * 3 == report["adapter_parameters_before"]
    assert program("inspect", tmp_path / "p").code == 0
    assert program.undrawn("ablate", tmp_path / "p", "--json").code == 0


@pytest.mark.slow
def test_within_a_tolerance(program, ablated, tmp_path):
    summary = json.loads((ablated / "ablation" / "summary.json").read_text())
    outcome = program("prune", ablated, "--within", 100, "--out", tmp_path / "p")
    assert outcome.code == 0, outcome.stderr
    assert f"layers 0-{summary['n_layers'] - 1}" in outcome.stdout
    assert "32 other examples" in outcome.stdout
    told = dict(re.split(" {2,}", line, maxsplit=1) for line in outcome.stdout.splitlines() if "  " in line)
    number = r"[+−-]?\d+\.\d"
    points = rf"{number} points?"
    assert names(told["chosen on"], "half", "32")
    assert re.fullmatch(rf"(drop|gain) {points}, 95% [^\d]*{number} to {points}", told["cost"])
    assert re.fullmatch(r"(\d[\d,]*) of \1 adapter parameters", told["removed"])
    assert re.match(r"\d+\.\d% (less|more) ", told["time"])
    assert told["checkpoint"] == str(tmp_path / "p")
    assert RETRAINED in outcome.stdout
    assert "prune: " in outcome.stderr


@pytest.mark.parametrize("within", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 8))])
@pytest.mark.slow
def test_the_span_is_chosen_on_one_half_and_measured_on_the_other(within, program, ablated, tmp_path):
    outcome = program("prune", ablated, "--within", within, "--out", tmp_path / "p", "--json")
    results = load_ablation(ablated / "ablation")
    right = results.predictions == results.scored_with
    chosen, measured = random_halves(results)
    assert sorted([*chosen, *measured]) == list(range(64))
    hits = right[:, chosen].sum(axis=1)
    fitting = [
        (int(last - first), int(hits[row]), -int(first), row)
        for row, (first, last) in enumerate(results.spans.tolist())
        if first >= 0 and 100 * (hits[0] - hits[row]) / len(chosen) <= within
    ]
    if not fitting:
        assert names(outcome.refusal, str(ablated / "ablation"), "no span", "32 examples", "--within")
        return
    first, last = results.spans[max(fitting)[-1]]
    report = json.loads(outcome.stdout)
    assert report["span"] == {"first": first, "last": last}
    assert (report["chosen_on"], report["n_examples_chosen_on"], report["n_examples"]) == ("half", 32, 32)
    before, after = right[0, measured].mean(), right[max(fitting)[-1], measured].mean()
    assert (report["score_before"], report["score_after"]) == pytest.approx((before, after))
    assert report["delta_points"] == pytest.approx(100 * (after - before))


@pytest.mark.parametrize(
    "options", [("--max-examples", 20), pytest.param(("--split", "train"), marks=pytest.mark.slow)]
)
@pytest.mark.slow
def test_the_span_is_measured_on_the_examples_of_the_ablation(options, program, ablated, tmp_path):
    assert program.undrawn("ablate", ablated, *options, "--out", tmp_path / "study").code == 0
    study = load_ablation(tmp_path / "study")
    outcome = program("prune", ablated, "--within", 100, "--ablation", tmp_path / "study", "--json",
                      "--out", tmp_path / "p")  # fmt: skip
    report, (_, measured) = json.loads(outcome.stdout), random_halves(study)
    assert report["n_examples"] == len(measured) == study.n_examples // 2
    right = study.predictions[0, measured] == study.scored_with[measured]
    assert report["score_before"] == pytest.approx(right.mean())


@pytest.mark.slow
def test_what_costs_nothing_is_checked_before_anything_is_loaded(ablated, trained, tmp_path):
    """In a process of its own, which has not loaded torch when the error is raised."""
    (tmp_path / "suite.toml").write_text('base = "b"\nbogus = 1\n[[tasks]]\ntask = "t"\n')
    calls = [
        f"prune({str(trained)!r}, {str(trained)!r}, span=0)",
        f"prune({str(trained)!r}, {str(tmp_path / 'p')!r}, within=1)",
        f"convert({str(trained)!r}, {str(trained)!r}, to='native')",
        f"suite({str(tmp_path / 'suite.toml')!r}, {str(tmp_path / 'q')!r})",
        f"ablate({str(ablated)!r}, out={str(ablated / 'ablation')!r}, sites='ffn')",
    ]
    code = [
        "import sys",
        "from adapter_probe.errors import AdapterProbeError",
        "from adapter_probe.studies.checkpoint_arguments import Prune",
        "from adapter_probe.studies.inspect_convert import Convert",
        "from adapter_probe.studies.ablate import ablate",
        "from adapter_probe.studies.suite import suite",
        "prune = lambda checkpoint, out, **more: Prune(checkpoint=checkpoint, out=out, **more)",
        "convert = lambda source, out, **more: Convert(source=source, out=out, **more)",
        f"for call in {calls!r}:",
        "    try:",
        "        eval(call)",
        "    except AdapterProbeError as error:",
        "        print('torch' in sys.modules, str(error))",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(code)], capture_output=True, text=True, check=True)
    said = done.stdout.splitlines()
    assert [line.split()[0] for line in said] == ["False"] * 5
    for line, facts in zip(said, ("already", "no finished ablation", "already", "'bogus'", "settings.sites")):
        assert facts in line


@pytest.mark.slow
def test_a_study_is_as_good_as_its_folder(ablated, tmp_path):
    study = ap.load(ablated / "ablation")
    pruned = [
        ap.prune(ablated, tmp_path / name, within=100, ablation=given, progress=False)
        for name, given in (("a", study), ("b", study.folder), ("c", None))
    ]
    one, *others = (
        (p.span, p.chosen_on, p.n_examples, p.score_before, p.score_after, p.delta_interval_points)
        for p in pruned
    )
    assert others == [one, one]
    assert one[:3] == (Span(0, 2), "half", 32)


@pytest.mark.slow
def test_the_metric_is_that_of_the_ablation(program, ablated, tmp_path):
    study = ap.ablate(ablated, metric="mcc", out=tmp_path / "mcc", progress=False)
    half = random_halves(study.results)[1]
    truth, intact = study.results.scored_with[half], study.predictions[0, half]
    outcome = program("prune", ablated, "--within", 100, "--ablation", study.folder, "--out", tmp_path / "p",
                      "--json")  # fmt: skip
    report = json.loads(outcome.stdout)
    assert report["metric"] == "mcc"
    assert report["score_before"] == pytest.approx(matthews_corrcoef(truth, intact))

    def agreement(labels, predictions):
        return float((labels == predictions).mean())

    study = ap.ablate(ablated, metric=agreement, out=tmp_path / "own", progress=False)
    pruned = ap.prune(ablated, tmp_path / "q", within=100, ablation=study, progress=False)
    assert pruned.metric == "custom:agreement (share)"
    assert pruned.score_before == pytest.approx(accuracy_score(truth, intact))
    refusal = program(
        "prune", ablated, "--within", 100, "--ablation", study.folder, "--out", tmp_path / "r"
    ).refusal
    assert names(refusal, "custom:agreement", "function")


@pytest.mark.slow
def test_a_warning_of_the_ablation_is_said_first(program, ablated, tmp_path):
    folder = shutil.copytree(ablated, tmp_path / "c")
    warning = "The intact model is not better than always answering with the most frequent class"
    edit(folder / "ablation" / "summary.json", warning=warning)
    outcome = program("prune", folder, "--within", 100, "--out", tmp_path / "p")
    assert outcome.stdout.startswith(f"{warning}\n\npruned")


def test_the_ablation_of_another_checkpoint_is_refused(program, train_arguments, ablated, tmp_path):
    other = tmp_path / "other"
    assert program(*train_arguments, "--seed", 1, "--out", other).code == 0
    shutil.copytree(ablated / "ablation", other / "ablation")
    refusal = program("prune", other, "--within", 100, "--out", tmp_path / "p").refusal
    assert names(refusal, str(other / "ablation"), f"of {other}", "checkpoint.delta_sha256:", "--span")
    assert not (tmp_path / "p").exists()


def without_ablation(folder: Path) -> None:
    shutil.copytree(folder, folder / "ref", ignore=shutil.ignore_patterns("ablation"))
    shutil.rmtree(folder / "ablation")


REFUSED = [
    (None, "--within -1.0", ("--within", "0 or more", "-1.0")),
    (None, "--within nan", ("--within", "0 or more", "nan")),
    (None, "--span 0 --out {0}", ("{0}", "already", "checkpoint")),
    (lambda folder: (folder / "ablation" / "predictions.npz").unlink(), "--within 100",
     ("{0}/ablation", "no predictions")),
    (without_ablation, "--within 1", ("{0}/ablation", "adapter-probe ablate", "--ablation", "--span")),
    (without_ablation, "--within 1 --adapter ref", ("{0}/ref/ablation", "adapter-probe ablate {0}/ref")),
]  # fmt: skip


@pytest.mark.parametrize(("change", "options", "facts"), REFUSED)
def test_what_is_refused(change, options, facts, program, ablated, tmp_path):
    folder = Path(shutil.copytree(ablated, tmp_path / "c"))
    if change is not None:
        change(folder)
    usual = [] if "--out" in options else ["--out", tmp_path / "p"]
    refusal = program("prune", folder, *usual, *options.format(folder).split()).refusal
    assert names(refusal, *(fact.format(folder) for fact in facts))
    assert not (tmp_path / "p").exists()


@pytest.mark.slow
def test_a_checkpoint_of_another_library_with_its_data(program, tmp_path):
    fixtures = Path(__file__).parents[1] / "checkpoints" / "fixtures"
    folder = shutil.copytree(fixtures / "peft" / "lora-everywhere", tmp_path / "c")
    data, base = tmp_path / "dev.jsonl", ("--base", fixtures / "bases" / "bert")
    data.write_text("".join(json.dumps({"text": f"w{n}", "label": n % 3}) + "\n" for n in range(24)))
    assert program.undrawn("ablate", folder, *base, "--data", data).code == 0
    options = ("--within", 100, *base, "--data", data, "--out", tmp_path / "p", "--json")
    outcome = program("prune", folder, *options)
    assert (json.loads(outcome.stdout)["chosen_on"], outcome.code) == ("half", 0)
    left = load_file(tmp_path / "p" / "adapter_model.safetensors")
    assert {name for name in left if ".lora_" in name and "pooler" not in name} == set()
    (folder / "ablation-data-dev").rename(tmp_path / "moved")
    elsewhere = tmp_path / "elsewhere"
    refusal = program("prune", folder, *options, "--ablation", elsewhere).refusal
    assert names(refusal, f"--ablation {elsewhere}", "folder")
    elsewhere.mkdir()
    refusal = program("prune", folder, *options, "--ablation", elsewhere).refusal
    assert names(refusal, str(elsewhere), "adapter-probe ablate", "--ablation")
    refusal = program("prune", folder, *options, "--ablation", tmp_path / "moved").refusal
    assert names(refusal, str(tmp_path / "p"), "already", "checkpoint")
