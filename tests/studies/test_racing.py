"""Races on a small model: against its complete ablation, interrupted, read back, pruned by, and refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from peft_folders import KV, saved, written
from refusals import names

import adapter_probe as ap
from adapter_probe.analysis.deltas import drop_points
from adapter_probe.analysis.racing import order_of
from adapter_probe.errors import AdapterProbeError, ResultsError
from adapter_probe.probe import request
from adapter_probe.results.rundir import RunDirectory

WITHIN = 30.0


@pytest.fixture(scope="module")
def whole(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> ap.Ablation:
    """The complete ablation by the agreement with the intact model, of which some spans cost more."""
    return ap.ablate(
        checkpoint, metric="agreement", out=tmp_path_factory.mktemp("whole") / "a", progress=False
    )


@pytest.fixture(scope="module")
def race(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> ap.Race:
    return raced(checkpoint, tmp_path_factory.mktemp("race") / "r")


def raced(checkpoint: Path, out: Path, goal: str = "spans", **options: object) -> ap.Race:
    asked = {"metric": "agreement", **options}
    return ap.race(checkpoint, goal=goal, within=WITHIN, out=out, progress=False, **asked)


def drops(study: ap.Ablation) -> np.ndarray:
    return drop_points(study.spans["delta_points"])


def test_verdicts_are_those_of_the_ablation(race, whole):
    study = whole
    assert race.spans[["first", "last"]].equals(study.spans[["first", "last"]])
    within = drops(study) <= WITHIN
    assert within.any()
    assert not within.all()
    assert race.spans["decision"].tolist() == ["within" if one else "beyond" for one in within]
    assert (race.spans["bound_low_points"] <= -drops(study) + 1e-6).all()
    assert (race.spans["bound_high_points"] >= -drops(study) - 1e-6).all()
    every = race.spans["n_examples"] == study.summary.n_examples
    assert race.spans["score"][every].tolist() == pytest.approx(study.spans["score"][every].tolist())
    assert not {"p_holm", "significant", "ci_low_points"} & {*race.spans}
    said = race.summary
    assert said.decisions == race.spans["decision"].value_counts().sort_index().to_dict()
    assert said.evaluations_share == pytest.approx(race.spans["n_examples"].sum() / (64 * len(race.spans)))
    assert all(fact in repr(race) for fact in ("95%", f"{within.sum()} spans within 30 points"))


@pytest.mark.slow
def test_the_longest_span_is_that_of_the_ablation(checkpoint, whole, tmp_path):
    said = raced(checkpoint, tmp_path / "r", "longest").summary
    fits = whole.spans["n_layers"][drops(whole) <= WITHIN]
    assert said.longest is not None
    assert said.longest.n_layers == fits.max()


@pytest.mark.slow
def test_an_interrupted_race_ends_as_if_it_had_not_been(race, checkpoint, tmp_path, monkeypatch):
    write, written = RunDirectory.write_part, []

    def broken(self: RunDirectory, index: int, arrays: dict) -> None:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(index)
        write(self, index, arrays)

    with monkeypatch.context() as patched:
        patched.setattr(RunDirectory, "write_part", broken)
        with pytest.raises(KeyboardInterrupt):
            raced(checkpoint, tmp_path / "r")
    assert not (tmp_path / "r" / "spans.csv").exists()
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "r" / "parts").iterdir()}
    assert len(kept) == 2
    raced(checkpoint, tmp_path / "r")
    for name in ("spans.csv", "race.json"):
        assert (tmp_path / "r" / name).read_bytes() == (race.folder / name).read_bytes()
    assert {name: (tmp_path / "r" / "parts" / name).stat().st_mtime_ns for name in kept} == kept


def test_a_finished_race_is_read_back_without_opening_the_checkpoint(race, checkpoint, monkeypatch):
    monkeypatch.setattr(request, "prepare_ablation", None)
    again = raced(checkpoint, race.folder)
    assert again.spans.equals(race.spans)
    loaded = ap.load(race.folder)
    assert isinstance(loaded, ap.Race)
    assert loaded.summary == race.summary
    assert loaded.identity["race"]["within"] == WITHIN


@pytest.mark.slow
def test_what_reads_a_study_knows_that_it_is_a_race(race, study, tmp_path):
    made = ap.draw([race], tmp_path / "figures", formats=["png"])
    assert [one.stem for one in made] == ["race"]
    page = ap.report([race, study], tmp_path / "report.html").path.read_text()
    assert "right on all 64 examples" in page
    assert "6 verdicts as a table" in page
    for call in (lambda: ap.compare(race.folder, study), lambda: ap.average([race.folder, study])):
        with pytest.raises(AdapterProbeError) as error:
            call()
        assert names(str(error.value), str(race.folder), "race", "ablation")


@pytest.mark.slow
def test_a_race_chooses_the_span_to_prune(race, checkpoint, whole, tmp_path):
    pruned = ap.prune(checkpoint, tmp_path / "p", within=WITHIN, ablation=race.folder, progress=False)
    assert pruned.span.n_layers == whole.spans["n_layers"][drops(whole) <= WITHIN].max()
    read = race.spans.set_index(["first", "last"]).loc[pruned.span.first, pruned.span.last]["n_examples"]
    assert pruned.n_examples_chosen_on == read
    rest = np.sort(order_of(64, 0)[read:])
    assert pruned.chosen_on == ("all" if len(rest) < 6.4 else "race")
    held_out = rest if len(rest) >= 6.4 else np.arange(64)
    row = whole.results.spans.tolist().index([pruned.span.first, pruned.span.last])
    intact, without = whole.results.outputs[[0, row]].argmax(-1)
    assert pruned.n_examples == len(held_out)
    assert pruned.score_after == pytest.approx((intact == without)[held_out].mean())
    with pytest.raises(ResultsError) as error:
        ap.prune(checkpoint, tmp_path / "q", within=0.0, ablation=_beyond(race), progress=False)
    assert names(str(error.value), "--within")


@pytest.mark.slow
def test_prune_runs_a_race(checkpoint, tmp_path):
    pruned = ap.prune(checkpoint, tmp_path / "p", within=50, race=True, progress=False)
    found = ap.load(next(checkpoint.glob("race-longest*")))
    assert (pruned.span.first, pruned.span.last) == (found.summary.longest.first, found.summary.longest.last)
    assert pruned.chosen_on == "race"
    assert pruned.n_examples_chosen_on + pruned.n_examples == 64
    shutil.rmtree(found.folder)


def _beyond(race: ap.Race) -> ap.Race:
    """The race, had it found every span beyond."""
    spans = race.spans.assign(decision="beyond", bound_low_points=-50.0)
    return ap.Race(replace(race.record, spans=spans))


def test_another_race_in_the_folder(race, checkpoint, study):
    for changed in ({"race_seed": 1}, {"risk": 0.1}, {"sites": "ffn"}):
        with pytest.raises(ResultsError) as error:
            raced(checkpoint, race.folder, **changed)
        assert names(str(error.value), str(race.folder), next(iter(changed)), "--out")
    with pytest.raises(ResultsError) as error:
        raced(checkpoint, study.folder)
    assert names(str(error.value), str(study.folder), "--out")


def test_a_damaged_race(race, tmp_path):
    copied = Path(shutil.copytree(race.folder, tmp_path / "r"))
    (copied / "checksums.json").unlink()
    said = json.loads((copied / "race.json").read_text())
    (copied / "race.json").write_text(json.dumps(said | {"n_read": "many"}))
    with pytest.raises(ResultsError) as error:
        ap.load(copied)
    assert names(str(error.value), "race.json", "n_read", "many")


@pytest.mark.slow
def test_texts_that_a_model_writes(tmp_path):
    model = saved(tmp_path, "llama", KV, "CAUSAL_LM", ["q_proj", "v_proj", "up_proj"])
    rows = [{"prompt": f"{'ab' * (n % 3)} {n}", "answer": "abc123"[n % 6]} for n in range(40)]
    asked = {
        "data": written(tmp_path, rows), "generate": True, "max_new_tokens": 4, "metric": "contains",
        "precision": "float64", "progress": False,
    }  # fmt: skip
    whole = ap.ablate(model, out=tmp_path / "a", **asked)
    within = float(np.median(drops(whole))) + 1
    found = ap.race(model, within=max(within, 0.5), out=tmp_path / "r", **asked)
    fits = drops(whole) <= found.summary.within_points
    assert found.spans["decision"].tolist() == ["within" if one else "beyond" for one in fits]
