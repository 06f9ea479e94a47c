"""The ablation on its folder, from a checkpoint to its results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from brute_force import BruteForce
from exact import assert_close_in_float32
from placed_models import Placed
from refusals import refused, refuses
from transformers import AutoModelForSequenceClassification
from where import DEVICE, KIND

from adapter_probe.ablation_results import AblationResults
from adapter_probe.ablation_settings import AblationSettings
from adapter_probe.checkpoints.tokenizer import load_tokenizer
from adapter_probe.data.encoding import Encoded, encode
from adapter_probe.data.tasks import find_task, load_split
from adapter_probe.errors import DataError, ResultsError
from adapter_probe.probe import engine, resumable
from adapter_probe.probe.ablation_arguments import AblationArguments
from adapter_probe.probe.request import AblationRequest, prepare_ablation
from adapter_probe.probe.resumable import AblationRun
from adapter_probe.spans import span_variants
from adapter_probe.studies.cost_plan import plan_ablation

MAX_LENGTH = 11  # shorter than some texts


@pytest.fixture(scope="module")
def checkpoint(random_checkpoint: Callable[..., Path], tiny_task: Path) -> Path:
    return random_checkpoint(tiny_task, MAX_LENGTH)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(resumable.TOKENS_PER_PART, KIND, 100)


@pytest.fixture
def prepared(checkpoint: Path) -> Callable[..., AblationRequest]:
    """``prepared(tokens_per_pass=200, **settings)``."""

    def prepare(tokens_per_pass: int | None = 200, **settings) -> AblationRequest:
        chosen = AblationSettings(**settings)
        return prepare_ablation(
            AblationArguments(str(checkpoint), chosen, tokens_per_pass=tokens_per_pass), DEVICE
        )

    return prepare


def run(request: AblationRequest, out: Path, report: Callable[[int], None] = lambda _: None):
    with AblationRun(request, out) as ablation:
        ablation.compute(report)
        return ablation.results()


@pytest.mark.parametrize(
    "settings",
    [
        {"precision": "float64"},
        pytest.param({"precision": "float32"}, marks=pytest.mark.slow),
        {"precision": "float64", "sites": "ffn", "complement": True, "layernorm": "pretrained"},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_logits_equal_runs_of_their_own(settings, prepared, small_parts, tiny_base, tiny_task, tmp_path):
    request = prepared(**settings)
    results = run(request, tmp_path)
    # The reference starts from the folders again: own base, own tokens, own rows.
    base = str(tiny_base("bert"))
    encoded = encode(
        load_tokenizer(base), load_split(find_task(tiny_task), "validation"), max_length=MAX_LENGTH
    )
    assert max(encoded.lengths) == MAX_LENGTH
    opened, before = prepared().checkpoint, AutoModelForSequenceClassification.from_pretrained(base)
    placed = Placed(opened.model, opened.description.method, before.state_dict(), opened.tensors)
    reference = BruteForce(placed, settings.get("layernorm", "trained"))
    some = Encoded(encoded.input_ids[::4], encoded.token_type_ids[::4], "")
    masks = span_variants(3, settings.get("sites", "both"), settings.get("complement", False)).masks
    expected = reference.every(some, masks).numpy()
    assert np.ptp(expected, axis=0).max() > 0.1  # the variants differ
    assert_close_in_float32(results.outputs[:, ::4], expected, layers=3)


def test_results_say_what_they_are(prepared: Callable, small_parts: None, tiny_task: Path, tmp_path: Path):
    request = prepared()
    results = run(request, tmp_path)
    spans = [(a, b) for a in range(3) for b in range(a, 3)]
    assert results.row_names == ("intact", *(f"{a}-{b}" for a, b in spans))
    assert results.spans.tolist() == [[-1, -1], *map(list, spans)]
    assert np.array_equal(results.masks, span_variants(3).masks)
    assert results.outputs.shape == (7, 64, 2)
    assert results.outputs.dtype == np.float32
    assert results.label_names == ("negative", "positive")
    assert np.array_equal(results.scored_with, load_split(find_task(tiny_task), "validation").labels)
    assert (results.metric, results.kind) == ("accuracy", "classification")
    assert results.identity == request.identity
    assert results.settings["split"] == "validation"
    assert results.settings.items() >= {"sites": "both", "complement": False, "precision": "float32"}.items()


def test_parts_cover_every_example_once(prepared: Callable, small_parts: None, tmp_path: Path):
    request, tokens = prepared(), []
    with AblationRun(request, tmp_path) as whole:
        assert whole.parts_done()[0] == whole.tokens_done == 0
        assert whole.tokens_total == request.encoded.lengths.sum()
        whole.compute(tokens.append)
        done, parts = whole.parts_done()
        assert done == parts == len(whole.finished()) > 4
        assert whole.tokens_done == whole.tokens_total == sum(tokens)
        indices = np.concatenate([whole.read_part(number)["index"] for number in range(parts)])
    assert sorted(indices) == list(range(64))


class Interrupted(Exception):
    pass


def interrupt(request: AblationRequest, out: Path, after: int) -> None:
    """Run until the given batch has been reported, and no further."""
    reports = []

    def report(tokens: int) -> None:
        reports.append(tokens)
        if len(reports) == after:
            raise Interrupted

    with pytest.raises(Interrupted):
        run(request, out, report)


def same(one: AblationResults, other: AblationResults) -> bool:
    arrays = ("outputs", "scored_with", "masks", "spans")
    return all(getattr(one, name).tobytes() == getattr(other, name).tobytes() for name in arrays)


@pytest.mark.parametrize("after", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 7, 14))])
def test_a_resumed_run_equals_one_that_was_never_interrupted(after, prepared, small_parts, tmp_path):
    whole = run(prepared(), tmp_path / "whole")
    interrupt(prepared(), tmp_path / "resumed", after)
    with AblationRun(prepared(), tmp_path / "resumed") as resumed:
        before, tokens = resumed.tokens_done, []
        assert (before > 0) == (after > 3)
        resumed.compute(tokens.append)
        assert same(resumed.results(), whole)
        assert before + sum(tokens) == resumed.tokens_total  # nothing was computed twice


def test_a_damaged_part_is_computed_again(prepared: Callable, small_parts: None, tmp_path: Path):
    first = run(prepared(), tmp_path)
    path = tmp_path / "parts" / "part-00002.npz"
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    tokens = []
    assert same(run(prepared(), tmp_path, tokens.append), first)
    assert 0 < sum(tokens) <= 100
    assert path.read_bytes() == whole


@pytest.mark.slow
def test_a_resumed_run_keeps_the_parts_it_began_with(prepared, monkeypatch, tmp_path):
    monkeypatch.setitem(resumable.TOKENS_PER_PART, KIND, 100)
    whole = run(prepared(), tmp_path / "whole")
    interrupt(prepared(), tmp_path / "resumed", after=9)
    monkeypatch.setitem(resumable.TOKENS_PER_PART, KIND, 333)
    assert same(run(prepared(), tmp_path / "resumed"), whole)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"sites": "attention"}, "settings.sites: both -> attention"),
        pytest.param({"complement": True}, "settings.complement", marks=pytest.mark.slow),
        pytest.param(
            {"layernorm": "pretrained"}, "settings.layernorm: trained -> pretrained", marks=pytest.mark.slow
        ),
        ({"precision": "float64"}, "settings.precision: float32 -> float64"),
    ],
)
def test_another_study_is_not_mixed_in(changed, words, prepared, small_parts, tmp_path):
    interrupt(prepared(), tmp_path, after=6)
    assert words in refused(run, prepared(**changed), tmp_path, error=ResultsError)


@pytest.mark.slow
def test_other_data_or_weights_are_not_mixed_in(checkpoint, prepared, small_parts, tmp_path):
    interrupt(prepared(), tmp_path, after=6)
    fewer = prepare_ablation(AblationArguments(str(checkpoint), max_examples=20), DEVICE)
    refuses(ResultsError, ("data.fingerprint", "data.n_examples: 64 -> 20"), run, fewer, tmp_path)
    request = prepared()
    description = replace(request.checkpoint.description, delta_sha256="f" * 64)
    other = replace(request, checkpoint=replace(request.checkpoint, description=description))
    with pytest.raises(ResultsError, match=r"checkpoint\.delta_sha256"):
        run(other, tmp_path)


def test_other_files_can_be_judged(checkpoint: Path, tiny_task: Path, tmp_path: Path):
    data = tmp_path / "more.jsonl"
    data.write_text("".join((tiny_task / "train.jsonl").read_text().splitlines(keepends=True)[:10]))
    request = prepare_ablation(AblationArguments(str(checkpoint), data=(str(data),)), DEVICE)
    results = run(request, tmp_path / "out")
    train = load_split(find_task(tiny_task), "train")
    assert request.examples.rows.texts == train.texts[:10]
    assert np.array_equal(results.scored_with, train.labels[:10])


@pytest.mark.parametrize("metric", ["spearman", ""])
def test_an_unfit_metric_is_refused(checkpoint: Path, metric: str):
    with pytest.raises(DataError, match=f"'{metric}' does not fit classification; allowed: accuracy, mcc"):
        prepare_ablation(AblationArguments(str(checkpoint), metric=metric), DEVICE)


def test_the_speed_of_many_variants_is_measured_on_some_of_them(prepared, tokens_passed, monkeypatch):
    request, measured = prepared(), []
    layers = sum(len(np.unique(request.variants.masks[:, : 2 * n], axis=0)) for n in (1, 2, 3))
    for most, seconds in ((500, np.inf), (4, np.inf), (500, 1.0), (500, 450.0)):
        monkeypatch.setattr(engine, "MEASURED_LAYERS", most)
        monkeypatch.setattr(engine, "MEASURED_SECONDS", seconds)
        one = engine.Engine(request)
        one._prepare()  # which compares with the model's own forward
        tokens_passed.clear()
        # Of some variants, passes through sublayers are counted, and here passes through layers.
        assert one.seconds_per_token() == pytest.approx(layers, rel=1e-9 if measured == [] else 0.2)
        measured.append(sum(tokens_passed))
    assert measured[1] < 0.7 * measured[0]
    assert measured[2] < measured[1]  # on a machine that is too slow, two variants, once
    assert measured[2] < measured[3] <= 450 < measured[0]  # otherwise as many as there is time for


def test_a_plan_counts_measures_and_knows_what_is_done(prepared: Callable, small_parts: None, tmp_path: Path):
    out = tmp_path / "out"
    before = plan_ablation([(prepared(), out)], out)
    assert not out.exists()
    assert (before.n_spans, before.n_variants, before.n_distinct, before.n_examples) == (6, 7, 7, 64)
    assert (before.n_tokens, before.tokens_per_pass) == (prepared().encoded.lengths.sum(), 200)
    assert (before.layer_evaluations, before.separate_layer_evaluations) == ((1 + 2 + 4, 2 + 4 + 7), 21)
    assert (before.parts_done, before.seconds_computing > 0, before.peak_memory_bytes > 2**20) == (
        0,
        True,
        True,
    )
    interrupt(prepared(), out, after=6)
    files = {path: path.read_bytes() for path in out.rglob("*.*")}
    plan = plan_ablation([(prepared(), out)], out)
    assert 0 < plan.parts_done == len(list((out / "parts").glob("*.npz"))) < plan.parts == before.parts
    with pytest.raises(ResultsError, match=r"settings\.precision"):
        plan_ablation([(prepared(precision="float64"), out)], out)
    assert {path: path.read_bytes() for path in out.rglob("*.*")} == files
    run(prepared(), out)
    plan = plan_ablation([(prepared(), out)], out)
    assert (plan.parts_done, plan.seconds_computing) == (plan.parts, 0)
