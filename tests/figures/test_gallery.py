from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from docs_scripts import DOCS, module
from matplotlib.figure import Figure
from matplotlib.text import Text
from refusals import names, naming, says
from rounding import printed
from tiers import slow_unless

from adapter_probe.analysis.costs import read_overlay
from adapter_probe.analysis.study_records import StudyRecord
from adapter_probe.errors import ResultsError
from adapter_probe.figures import style
from adapter_probe.figures.ablation_words import with_labels
from adapter_probe.figures.gallery import figures_of, write_gallery
from adapter_probe.figures.heatmap import heatmap_figure
from adapter_probe.figures.span_grid import Grid
from adapter_probe.figures.table_layouts import tables
from adapter_probe.figures.venues import PAPER, VENUES, FigureOptions, Venue
from adapter_probe.studies.load import studies_of
from adapter_probe.wording import cell_text, number_of, task_label

OPTIONS = FigureOptions(PAPER, formats=("png",))
CASES, RESULTS = module("gallery_cases"), module("gallery_results")


def records_in(folders) -> list[StudyRecord]:
    return [study.record for study in studies_of(folders)]


def drawn(folders, options=OPTIONS):
    return list(figures_of(records_in(folders), options))


def stems(made) -> list[str]:
    return [one.stem for one in made]


@pytest.mark.slow
def test_one_folder_of_each_kind(tmp_path, ablation_folder, sweep_folder, tradeoff_folder):
    folders = [
        ablation_folder(tmp_path / "a"), sweep_folder(tmp_path / "b"), tradeoff_folder(tmp_path / "c"),
    ]  # fmt: skip
    made = write_gallery(records_in(folders), tmp_path / "out", OPTIONS)
    assert [one.stem for one in made if one.kind == "figure"] == [
        "heatmap", "attribution", "init-sweep", "tradeoff-tasks", "tradeoff-aggregate", "size-robustness",
    ]  # fmt: skip
    assert [one.stem for one in made if one.kind == "table"] == [
        "table-removable", "table-tradeoff", "table-tasks", "table-glue", "table-sizes",
    ]  # fmt: skip
    for one in made:
        endings = {"figure": ["png", "csv", "txt"], "table": ["tex", "md", "csv"]}[one.kind]
        assert [path.name for path in one.files] == [f"{one.stem}.{ending}" for ending in endings]
        assert all(path.stat().st_size > 20 for path in one.files)


@pytest.mark.slow
def test_ablations_stand_side_by_side(tmp_path, ablation_folder):
    folders = [ablation_folder(tmp_path / t, t, 4, seed=i) for i, t in enumerate(["cola", "mnli", "cola2"])]
    heatmap, attribution = drawn(folders)
    assert len([ax for ax in heatmap.figure.axes if "last" in ax.get_xlabel()]) == 3
    assert list(heatmap.frame["grid"].unique()) == ["CoLA", "MNLI-m", "cola2"]
    for name, folder in zip(["CoLA", "MNLI-m"], folders):
        own = heatmap.frame[heatmap.frame["grid"] == name]["delta_points"]
        assert own.tolist() == pytest.approx(pd.read_csv(folder / "spans.csv")["delta_points"].tolist())
    assert set(attribution.frame["task"]) == {"CoLA", "MNLI-m", "cola2"}


@pytest.mark.slow
def test_one_task_twice_is_told_apart_by_folder(tmp_path, ablation_folder):
    folders = [ablation_folder(tmp_path / name, "cola", 2) for name in ("small", "large")]
    heatmap, _ = drawn(folders)
    assert list(heatmap.frame["grid"].unique()) == ["CoLA, small", "CoLA, large"]
    names = stems(tables(with_labels(records_in(folders), ()), OPTIONS))
    assert names == ["table-removable-cola-small", "table-removable-cola-large"]


@pytest.mark.slow
def test_one_task_twice_is_told_apart_by_settings(tmp_path, ablation_folder):
    records = records_in([ablation_folder(tmp_path / name, "cola") for name in ("a", "b", "c")])
    settings = ({}, {"sites": "ffn"}, {"sites": "attention", "group": 3, "layernorm": "pretrained"})
    records = [replace(r, identity={**r.identity, "settings": s}) for r, s in zip(records, settings)]
    heatmap, _ = figures_of(records, OPTIONS)
    words = "attention only, groups of 3 layers, pretrained LayerNorms"
    assert list(heatmap.frame["grid"].unique()) == ["CoLA", "CoLA, ffn only", f"CoLA, {words}"]


@pytest.mark.slow
def test_labels_name_panels_captions_and_files(tmp_path, ablation_folder):
    records = records_in([ablation_folder(tmp_path / name, "cola") for name in ("small", "large")])
    options = replace(OPTIONS, labels=("TREC, ffn only", "costs $5"))
    made = write_gallery(records, tmp_path / "out", options)
    (caption,) = (one.caption for one in made if one.stem == "heatmap")
    assert all(says(caption, label, "one", "checkpoint") for label in options.labels)
    assert [one.stem for one in made if one.kind == "table"] == [
        "table-removable-trec-ffn-only", "table-removable-costs-5",
    ]  # fmt: skip
    with pytest.raises(ResultsError, match=naming("1", "2")):
        write_gallery(records, tmp_path / "none", replace(OPTIONS, labels=("one",)))
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_only_what_was_asked_for_is_written(tmp_path, ablation_folder):
    records = records_in([ablation_folder(tmp_path / task, task) for task in ("cola", "mnli")])
    made = write_gallery(records, tmp_path / "out", replace(OPTIONS, only=("heatmap", "table-removable")))
    assert [one.stem for one in made] == ["heatmap", "table-removable-cola", "table-removable-mnli-m"]
    assert {path.stem for path in (tmp_path / "out").iterdir()} == {one.stem for one in made}
    with pytest.raises(ResultsError, match=naming("--only", "'heat'", "heatmap, attribution")):
        write_gallery(records, tmp_path / "none", replace(OPTIONS, only=("heat",)))


@pytest.mark.slow
def test_two_tradeoffs_are_two_sets_of_figures(tmp_path, tradeoff_folder):
    folders = [tradeoff_folder(tmp_path / name) for name in ("one", "two")]
    names = stems(drawn(folders))
    assert len(names) == len(set(names)) == 6
    assert {name.rsplit("-", 1)[1] for name in names} == {"one", "two"}


@pytest.mark.slow
def test_two_sweeps_share_one_figure(tmp_path, sweep_folder):
    folders = [sweep_folder(tmp_path / "one"), sweep_folder(tmp_path / "two", tasks=("mnli",))]
    (figure,) = drawn(folders)
    assert len(figure.figure.axes[0].containers) == 2
    same = [sweep_folder(tmp_path / "x"), sweep_folder(tmp_path / "y")]
    (figure,) = drawn(same)
    words = [text.get_text() for text in figure.figure.legends[0].get_texts()]
    assert {"CoLA, x, mean ± s.e.m.", "CoLA, y, mean ± s.e.m."} <= set(words)


@pytest.mark.slow
def test_the_papers_grid_stands_beside_its_own_task_alone(tmp_path, ablation_folder):
    folders = [ablation_folder(tmp_path / t, t, n_layers=12) for t in ("cola", "rte")]
    heatmap, _ = drawn(folders, FigureOptions(PAPER, formats=("png",), paper=True))
    assert list(heatmap.frame["grid"].unique()) == ["CoLA", "CoLA (Houlsby et al. 2019)", "RTE"]
    theirs = heatmap.frame[heatmap.frame["grid"] == "CoLA (Houlsby et al. 2019)"]
    assert theirs["delta_points"].min() == pytest.approx(-13.5, abs=0.1)
    assert "Houlsby et al. (2019)" in heatmap.caption


def test_one_task_has_no_aggregate(tmp_path, tradeoff_folder):
    assert stems(drawn([tradeoff_folder(tmp_path / "one", tasks=("cola",))])) == [
        "tradeoff-tasks", "size-robustness",
    ]  # fmt: skip


def test_what_is_too_narrow_is_refused_in_one_line(tmp_path, ablation_folder):
    narrow = FigureOptions(Venue("slip", 0.9, 1.2, 8.0, 7.0))
    with pytest.raises(ResultsError, match=naming("1", "0.9 inches")):
        write_gallery(records_in([ablation_folder(tmp_path / "a")]), tmp_path / "out", narrow)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_five_ablations_share_a_heatmap_but_not_their_shares(tmp_path, ablation_folder):
    tasks = ("cola", "mnli", "rte", "sst2", "qnli")
    heatmap, *shares = drawn([ablation_folder(tmp_path / task, task, n_layers=3) for task in tasks])
    assert heatmap.frame["grid"].nunique() == 5
    assert stems(shares) == [f"attribution-{task}" for task in ("cola", "mnli-m", "rte", "sst-2", "qnli")]


@pytest.mark.slow
def test_kept_spans_are_a_figure_of_their_own(tmp_path, ablation_folder):
    folders = [ablation_folder(tmp_path / name, n_layers=3) for name in ("off", "on")]
    summary = folders[1] / "summary.json"
    summary.write_text(summary.read_text().replace('"ablated"', '"kept"'))
    layers = pd.read_csv(folders[1] / "layers.csv")
    layers.assign(share_points=float("nan")).to_csv(folders[1] / "layers.csv", index=False)
    made = drawn(folders)
    assert stems(made) == ["heatmap", "heatmap-kept", "attribution"]
    assert names(made[1].figure.axes[0].get_xlabel(), "last layer", "kept on")
    assert stems(tables(with_labels(records_in(folders), ()), OPTIONS)) == ["table-removable-cola-off"]


@pytest.fixture(scope="session")
def gallery_results(tmp_path_factory) -> Path:
    """The folder of the results of the gallery of the documentation, each written when it is first needed."""
    return tmp_path_factory.mktemp("gallery")


def cases_in_tiers() -> list:
    """Every case of the documentation's gallery in both columns of venues, the main ones in those of all.

    All but one are marked slow. The default has the sizes of ICML; JMLR has the largest letters in a column.
    """
    found, every = [], [name for name in VENUES if name != "icml"]
    for case in CASES.CASES:
        for name in every if case.every_style else ("paper", "talk", "jmlr"):
            for column in ("half", "full"):
                words = f"{case.name}-{name}-{column}"
                marks = () if words == "init-sweep-one-seed-paper-half" else pytest.mark.slow
                found.append(pytest.param(case, name, column, marks=marks, id=words))
    return found


def letters(figure: Figure) -> list[Text]:
    """Every text that is printed."""
    return [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]


@pytest.mark.parametrize(("case", "style_name", "column"), cases_in_tiers())
def test_every_case_of_the_gallery_is_tidy_and_as_wide_as_its_venue(
    case, style_name, column, gallery_results, assert_tidy
):
    RESULTS.write(gallery_results, case.results)
    venue, given = VENUES[style_name], case.arguments(gallery_results)
    overlay = read_overlay([given["overlay"]]) if "overlay" in given else None
    options = FigureOptions(
        venue, column, paper=given.get("paper", False), labels=given.get("labels", ()), overlay=overlay
    )
    made = list(figures_of([study.record for study in case.studies(gallery_results)], options))
    assert made
    for one in made:
        assert_tidy(one.figure)
        assert one.figure.get_figwidth() == getattr(venue, column)
        assert min(text.get_fontsize() for text in letters(one.figure)) >= style.SMALLEST_SIZE, one.stem
        nine_in_a_column = case.name == "tradeoff" and column == "half"
        if style_name != "talk" and not nine_in_a_column:  # on a low slide, what can be read may be taller
            assert one.figure.get_figheight() <= venue.tallest + 1e-9


@pytest.mark.parametrize("name", slow_unless("paper".__eq__, [name for name in VENUES if name != "icml"]))
@pytest.mark.parametrize(
    ("n_layers", "column"), [(12, "half"), pytest.param(24, "full", marks=pytest.mark.slow)]
)
def test_every_cell_has_its_number_unless_none_could_be_read(make_frame, name, n_layers, column):
    """All are shown, at six points or more, where a cell has room for six points, and none elsewhere."""
    figure = heatmap_figure(
        [Grid(make_frame(n_layers), [], None)], FigureOptions(VENUES[name], column), "drop"
    )
    figure.set_dpi(style.PNG_DPI)  # at fewer, letters are rounded to pixels
    figure.draw_without_rendering()
    grid = figure.axes[0]
    cell = grid.bbox.width / n_layers
    numbers = [text for text in grid.texts if text.get_transform() == grid.transData]
    drops = [number_of(number.get_text()) for number in numbers]
    shown = [number.get_fontsize() for number in numbers if number.get_visible()]
    assert len(numbers) == n_layers * (n_layers + 1) // 2
    for number, drop in zip(numbers, drops):
        number.set(visible=True, fontsize=style.SMALLEST_SIZE, text=cell_text(drop, whole=True))
    widest = max(number.get_window_extent().width for number in numbers)
    fits = widest <= 0.91 * cell and 0.49 * 72 / figure.dpi * cell >= style.SMALLEST_SIZE
    assert fits == (name != "talk")
    assert len(shown) == (len(numbers) if fits else 0)
    assert min(shown, default=style.SMALLEST_SIZE) >= style.SMALLEST_SIZE


@pytest.mark.parametrize(
    "name",
    slow_unless("small-gains".__eq__, ["ablation", "gains", "small-gains", "undefined", "groups", "kept"]),
)
def test_one_number_is_printed_alike_everywhere(name, gallery_results, tmp_path):
    """In cells, whose colour it decides, in the summary, in tables and in the CSV, which has no noise."""
    (case,) = (case for case in CASES.CASES if case.name == name)
    RESULTS.write(gallery_results, case.results)
    (study,) = case.studies(gallery_results)
    heatmap = next(figures_of([study.record], replace(OPTIONS, column="full")))
    heatmap.figure.set_dpi(style.PNG_DPI)
    heatmap.figure.draw_without_rendering()
    grid = heatmap.figure.axes[0]
    known = heatmap.frame.dropna(subset="delta_points")
    drops = {(row.first, row.last): -row.delta_points for row in known.itertuples()}
    firsts, lasts = (sorted({*heatmap.frame[name]}) for name in ("first", "last"))
    colours, mesh = {}, grid.collections[0]
    faces = mesh.get_facecolors().reshape(len(firsts), len(lasts), 4)
    for text in grid.texts:
        if text.get_transform() == grid.transData and text.get_visible():
            column, row = map(int, text.get_position())
            own = printed(drops[firsts[row], lasts[column]])
            assert text.get_text() == own
            assert colours.setdefault(own, tuple(faces[row, column])) == tuple(faces[row, column])
    assert colours
    told = {line: said for line, said in study.rows() if not line.startswith(" ")}
    for tolerance, best in study.record.summary.best_spans.items():
        if best is not None:
            (said,) = (said for line, said in told.items() if f"within {tolerance} point" in line)
            assert printed(abs(best.delta_points)) in said
    for table in tables([study.record], OPTIONS):
        deltas = table.numbers["delta_points"]
        shown = table.text[table.text.columns[4]].tolist()
        assert shown == ["–" if delta != delta else printed(-delta) for delta in deltas]
    heatmap.write(tmp_path, OPTIONS)
    points = pd.read_csv(tmp_path / f"{heatmap.stem}.csv")["delta_points"].dropna()
    assert (points == points.round(9)).all()


def test_a_method_has_one_number_of_parameters(gallery_results):
    """In tables, in what is printed, and on the axis, in the order of the points."""
    (case,) = (case for case in CASES.CASES if case.name == "tradeoff-one-task")
    RESULTS.write(gallery_results, case.results)
    (study,) = case.studies(gallery_results)
    table = study.table[study.table["method"] != "tfidf"]
    counts = table.set_index("label")["trained_parameters_without_head"]
    (panel, *_) = figures_of([study.record], OPTIONS)
    ax = panel.figure.axes[0]
    placed = {round(float(x)) for bars in ax.containers for x in bars[0].get_xdata()}
    some = {n for n in counts if n > 0}
    assert {n for n in placed if n >= min(some)} == some
    assert names(" ".join(ax.get_xlabel().split()), "parameters", "without the head", "log scale")
    first = next(iter(tables([study.record], OPTIONS))).text.set_index("method")["parameters"]
    printed = {line.partition(": ")[2]: said for line, said in study.rows()}
    for label, n in counts[counts > 0].items():
        assert first[label] == f"{n:,}"
        assert f" {n:,} parameters" in printed[label]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("look", "column", "n_pages"), [("paper", "half", 3), ("jmlr", "full", 2), ("talk", "full", 5)]
)
def test_many_tasks_are_drawn_on_pages_that_can_be_printed(gallery_results, look, column, n_pages):
    (case,) = (case for case in CASES.CASES if case.name == "tradeoff")
    RESULTS.write(gallery_results, case.results)
    (study,) = case.studies(gallery_results)
    made = figures_of([study.record], FigureOptions(VENUES[look], column))
    pages = [one for one in made if one.stem.startswith("tradeoff-tasks")]
    assert [one.stem for one in pages] == [f"tradeoff-tasks-{n + 1}" for n in range(n_pages)]
    assert max(one.figure.get_figheight() for one in pages) <= (3.5 if look == "talk" else 9)
    assert [task for one in pages for task in one.frame["task"].unique()] == [*study.table["task"].unique()]
    assert len({ax.get_xlim() for one in pages for ax in one.figure.axes}) == 1
    for one in pages:
        told = one.caption.partition("scored on: ")[2]
        assert [task for task in study.table["task"].unique() if task_label(task) in told] == [
            *one.frame["task"].unique()
        ]


def case_drawn(name: str, style_name: str, root: Path):
    """The first figure of a case of the gallery, laid out."""
    (case,) = (case for case in CASES.CASES if case.name == name)
    RESULTS.write(root, case.results)
    one = next(figures_of([s.record for s in case.studies(root)], FigureOptions(VENUES[style_name])))
    one.figure.draw_without_rendering()
    return one


@pytest.mark.parametrize(
    ("name", "by", "some"),
    [
        ("strength-layers", "strength", True),
        pytest.param("ranks-layers", "rank", False, marks=pytest.mark.slow),
    ],
)
def test_only_a_line_that_none_lies_beyond_is_named(gallery_results, name, by, some):
    one = case_drawn(name, "paper", gallery_results)
    named = [text.get_text() for text in one.figure.axes[0].texts if text.get_visible()]
    alone = one.frame[~one.frame["whole"]]
    assert bool(named) == some
    for layer in named:
        own = alone[alone["first"] == int(layer.removeprefix("layer "))]
        row = own.loc[own["delta_points"].abs().idxmax()]
        others = alone[(alone[by] == row[by]) & (alone["first"] != row["first"])]["score"]
        assert row["score"] < others.min() or row["score"] > others.max()


def test_an_earlier_commit_can_import_the_cases():
    """Their module is read by the code of any commit, so it needs nothing of the package to be imported."""
    code = "import sys, gallery_cases; sys.exit('adapter_probe' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=DOCS).returncode == 0


@pytest.mark.slow
def test_a_commit_draws_the_same_case_beside_today(tmp_path):
    if subprocess.run(["git", "rev-parse", "HEAD"], cwd=DOCS, capture_output=True).returncode:
        pytest.skip("the tests are not in a clone")
    gallery = [sys.executable, str(DOCS / "gallery.py"), str(tmp_path), "--only", "one-layer"]
    subprocess.run([*gallery, "--before", "HEAD"], check=True)
    for name in ("paper", "talk"):
        assert (tmp_path / "before" / "one-layer" / name / "heatmap.png").is_file()
    assert "not drawn" not in (tmp_path / "index.html").read_text("utf-8")
