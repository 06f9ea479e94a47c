"""A finished ablation comes back without its model as long as nothing changed, and never after a change."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
import torch
from changed_files import edit
from refusals import naming, refuses
from tiers import slow_unless

import adapter_probe as ap
from adapter_probe.errors import DataError, ResultsError
from adapter_probe.probe import request
from adapter_probe.probe.ablation_arguments import PREDICTIONS_VERSION, AblationArguments
from adapter_probe.reads import recorded
from adapter_probe.results import fingerprints
from adapter_probe.results.manifests import FIGURES, MADE_FROM, NOTES, read_note
from adapter_probe.studies import study_base
from adapter_probe.studies.draw import draw_into_folder, drawn_of


class Opened(Exception):
    """The checkpoint was opened."""


@dataclass(frozen=True)
class Place:
    """A finished ablation, all of whose sources the test may change."""

    checkpoint: Path
    base: Path
    data: Path

    @property
    def results(self) -> Path:
        return self.checkpoint / "ablation"

    def ablate(self, **options: object) -> ap.Ablation:
        return ap.ablate(self.checkpoint, progress=False, **options)


@pytest.fixture(scope="module")
def finished(checkpoint, tmp_path_factory) -> Place:
    """A checkpoint with its base, its data and its ablation in one folder."""
    folder = tmp_path_factory.mktemp("finished")
    made = Place(folder / "checkpoint", folder / "base", folder / "data")
    document = json.loads((checkpoint / "adapter_probe.json").read_text())
    files = document["task"]["files"]
    (source,) = {Path(name).parent for names in files.values() for name in names}
    for there, here in (
        (checkpoint, made.checkpoint),
        (document["base"]["name"], made.base),
        (source, made.data),
    ):
        shutil.copytree(there, here)
    document["base"]["name"] = str(made.base)
    document["task"]["files"] = {
        split: [str(made.data / Path(name).name) for name in names] for split, names in files.items()
    }
    (made.checkpoint / "adapter_probe.json").write_text(json.dumps(document))
    made.ablate()
    return made


@pytest.fixture
def place(finished: Place, tmp_path: Path) -> Iterator[Place]:
    """The same for one test, after which every file is as before."""
    kept = shutil.copytree(finished.base.parent, tmp_path / "kept")
    yield finished
    shutil.rmtree(finished.base.parent)
    shutil.copytree(kept, finished.base.parent)


@pytest.fixture
def closed(place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The same, where opening the checkpoint is noticed."""

    def noticed(*_: object, **__: object) -> None:
        raise Opened

    monkeypatch.setattr(request, "prepare_ablation", noticed)
    return place


def append(path: Path, text: str = " ") -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def flip_last_bit(path: Path) -> None:
    """Change one bit and nothing else: neither the size nor the date of the last change."""
    said = path.stat()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(said.st_atime_ns, said.st_mtime_ns))


CHANGES: dict[str, Callable[[Place], object]] = {
    "config": lambda p: append(p.base / "config.json"),
    "weights": lambda p: flip_last_bit(p.base / "model.safetensors"),
    "tokenizer": lambda p: append(p.base / "tokenizer.json"),
    "another file in the base": lambda p: (p.base / "special_tokens_map.json").write_text("{}"),
    "delta": lambda p: flip_last_bit(p.checkpoint / "delta.safetensors"),
    "description": lambda p: append(p.checkpoint / "adapter_probe.json"),
    "data": lambda p: flip_last_bit(next(iter(sorted(p.data.glob("*valid*"))))),
    "data gone": lambda p: shutil.rmtree(p.data),
    "a part": lambda p: flip_last_bit(next((p.results / "parts").iterdir())),
    "a part gone": lambda p: next((p.results / "parts").iterdir()).unlink(),
    "a table": lambda p: append(p.results / "spans.csv", "\n"),
    "the predictions": lambda p: flip_last_bit(p.results / "predictions.npz"),
    "the summary": lambda p: append(p.results / "summary.json"),
    "the manifest": lambda p: edit(p.results / "manifest.json", {"plan.tokens_per_part": 9}),
    "what a killed writer left": lambda p: (p.results / ".adapter-probe-0f.tmp").touch(),
    "no note": lambda p: (p.results / NOTES).unlink(),
}


def test_a_finished_ablation_comes_back_without_being_opened(closed):
    there = ap.load(closed.results)
    again = closed.ablate()
    pd.testing.assert_frame_equal(again.spans, there.spans)
    assert again.summary == there.summary
    assert (again.predictions == there.predictions).all()


@pytest.mark.slow
def test_neither_torch_nor_matplotlib_is_loaded_for_it(place):
    draw_into_folder(ap.load(place.results), tolerance=1.0)
    code = (
        "import sys; from adapter_probe.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as stop: assert not stop.code, stop.code\n"
        "print([m for m in ('torch', 'transformers', 'tokenizers', 'matplotlib') if m in sys.modules])"
    )
    arguments = [sys.executable, "-c", code, "ablate", str(place.checkpoint), "--json"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    *report, modules = done.stdout.splitlines()
    assert (done.returncode, done.stderr.splitlines()) == (0, json.loads("\n".join(report))["question"])
    assert modules == "[]"
    assert json.loads("\n".join(report))["files"]["heatmap_pdf"].endswith("heatmap.pdf")


QUICK = ("weights", "delta", "data", "a part", "the predictions", "no note")


@pytest.mark.parametrize("what", slow_unless(QUICK.__contains__, CHANGES))
def test_after_any_change_the_checkpoint_is_opened(closed, what):
    CHANGES[what](closed)
    # A manifest that does not match its checksum is refused before anything is opened.
    with pytest.raises(ResultsError if what == "the manifest" else Opened):
        closed.ablate()


def test_changed_rows_are_refused_and_the_same_elsewhere_will_do(place, tmp_path):
    (file,) = place.data.glob("*valid*")
    moved, content = tmp_path / "elsewhere.jsonl", file.read_text()
    moved.write_text(content)
    file.write_text(content.replace("cat", "dog", 1))
    refuses(DataError, (str(file), "validation", "changed"), place.ablate)
    file.unlink()
    refuses(DataError, (str(file),), place.ablate)
    place.ablate(data=moved, out=place.results)
    moved.write_text(content.replace("cat", "dog", 1))
    with pytest.raises(ResultsError, match=naming(str(place.results), "data.fingerprint")):
        place.ablate(data=moved, out=place.results)


def test_what_a_killed_writer_left_is_tidied_up(place):
    left = place.results / ".adapter-probe-0f.tmp"
    left.touch()
    place.ablate()
    assert not left.exists()


@pytest.mark.parametrize(
    "options", [{"sites": "ffn"}, {"max_examples": 4}, {"split": "train"}, {"metric": "f1"}, {"group": 3}]
)
def test_another_order_is_not_answered_with_these_results(closed, options):
    """Other settings are refused at once; whether the examples are others is known when they are read."""
    settings = [name for name in options if name in ("sites", "group")]
    with pytest.raises(ResultsError if settings else Opened, match="settings" if settings else None):
        closed.ablate(out=closed.results, **options)


def test_a_function_as_the_metric_is_never_answered_with_what_is_there(place, monkeypatch):
    def always(labels, predictions):
        return 1.0

    study = place.ablate()
    own = place.ablate(metric=always)
    assert (own.spans["score"] == 1.0).all()
    again = place.ablate()
    pd.testing.assert_frame_equal(again.spans, study.spans)
    monkeypatch.setattr(request, "prepare_ablation", lambda *_: pytest.fail("opened"))
    with pytest.raises(pytest.fail.Exception, match="opened"):
        place.ablate(metric=always)


def test_another_version_opens_the_checkpoint(closed, monkeypatch):
    monkeypatch.setattr(
        "adapter_probe.studies.reopened.PREDICTIONS_VERSION",
        {name: n + 1 for name, n in PREDICTIONS_VERSION.items()},
    )
    with pytest.raises(Opened):
        closed.ablate()


def test_another_line_of_code_opens_the_checkpoint(closed, monkeypatch):
    now = fingerprints.code_identity()
    monkeypatch.setattr("adapter_probe.studies.reopened.code_identity", lambda: {**now, "code": "0" * 64})
    with pytest.raises(Opened):
        closed.ablate()


def test_the_code_is_every_source_file_of_the_package(monkeypatch):
    hashed: list[str] = []
    monkeypatch.setattr(fingerprints, "sha256_of", lambda path: hashed.append(Path(path).as_posix()) or "")
    getattr(fingerprints.code_identity, "__wrapped__", fingerprints.code_identity)()
    for name in ("adapter_probe/__init__.py", "probe/ablation_arguments.py", "analysis/ablation_tables.py",
                 "figures/heatmap.py", "figures/report/page.py"):  # fmt: skip
        assert any(path.endswith(f"/{name}") for path in hashed), name


def test_what_was_written_while_it_ran_is_not_trusted(place, monkeypatch):
    (place.results / NOTES).unlink()
    prepare = request.prepare_ablation

    def edited_meanwhile(*given: object) -> object:
        opened = prepare(*given)
        file = place.base / "config.json"
        text, said = file.read_text(), file.stat()
        file.write_text(text)  # the same bytes at the same time, by its own account
        os.utime(file, ns=(said.st_atime_ns, said.st_mtime_ns))
        return opened

    monkeypatch.setattr(request, "prepare_ablation", edited_meanwhile)
    place.ablate()
    assert read_note(place.results, MADE_FROM) == {}


def test_every_file_that_opening_opens_is_reported(place):
    """By Python's own record of what is opened."""
    opened, watching = set(), True

    def hook(event: str, given: tuple) -> None:
        if watching and event == "open" and isinstance(given[0], str | os.PathLike):
            opened.add(Path(given[0]).resolve())

    sys.addaudithook(hook)
    with recorded() as reads:
        request.prepare_ablation(AblationArguments(str(place.checkpoint)), torch.device("cpu"))
    watching = False
    inside = {path for path in opened if path.is_relative_to(place.checkpoint.parent)}
    assert {"adapter_probe.json", "config.json", "tokenizer.json"} <= {path.name for path in inside}
    assert inside <= {path.resolve() for path in reads.files.values()}
    assert reads.known
    assert not reads.rewritten


def test_a_moved_checkpoint_is_still_the_same(closed, tmp_path):
    moved = closed.checkpoint.rename(tmp_path / "moved")
    assert ap.ablate(moved, progress=False).folder == moved / "ablation"


def test_the_same_on_other_data_comes_back_too(place, monkeypatch):
    others = sorted(place.data.glob("*train*"))[:1]
    before = place.ablate(against=others)
    monkeypatch.setattr(request, "prepare_ablation", lambda *_: pytest.fail("opened"))
    again = place.ablate(against=others)
    pd.testing.assert_frame_equal(again.against.spans, before.against.spans, check_dtype=False)
    append(others[0], "\n")
    with pytest.raises(pytest.fail.Exception, match="opened"):
        place.ablate(against=others)


def test_what_the_figures_are_of_does_not_depend_on_the_folders_name(copied, tmp_path):
    """Else `checksums.json` of equal runs would differ."""
    other = shutil.copytree(copied, tmp_path / "elsewhere" / "other")
    options = {"tolerance": 1.0, "paper": False}
    first, second = (drawn_of(ap.load(folder).record, **options) for folder in (copied, other))
    assert first == second


@pytest.mark.slow
def test_figures_are_drawn_once(copied, monkeypatch):
    study = ap.load(copied)
    before = draw_into_folder(study, tolerance=1.0)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("drawn again")

    with monkeypatch.context() as patch:
        patch.setattr(study_base, "write_figures", refuse)
        assert draw_into_folder(study, tolerance=1.0) == before
        for look in ({"tolerance": 2.0}, {"tolerance": 1.0, "paper": True}):
            with pytest.raises(AssertionError, match="drawn again"):
                draw_into_folder(study, **look)
        append(copied / "heatmap.svg")
        with pytest.raises(AssertionError, match="drawn again"):
            draw_into_folder(study, tolerance=1.0)
    draw_into_folder(study, tolerance=1.0)
    assert read_note(copied, FIGURES)["sha256"].keys() == {Path(path).name for path in before.values()}
