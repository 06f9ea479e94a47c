"""`ap.rank`: scores go beside an ablation of the same checkpoint, and of no other."""

from __future__ import annotations

import pytest

import adapter_probe as ap


def test_scores_stand_beside_drops_of_the_same_checkpoint_alone(study, other, checkpoint, tmp_path):
    ranking = ap.rank(checkpoint, max_examples=12)
    drops = ranking.beside(study).set_index(["first", "last"])["drop_points"]
    exact = study.spans.set_index(["first", "last"])["delta_points"]
    assert drops.to_dict() == (-exact).to_dict()
    with pytest.raises(
        ap.ResultsError, match=r"an ablation of another checkpoint than the scores: checkpoint\.delta_sha256"
    ):
        ranking.agreement(other)
    attention = ap.ablate(checkpoint, out=tmp_path / "attention", sites="attention", progress=False)
    with pytest.raises(ap.ResultsError, match="both adapters of a layer"):
        ranking.regret(attention)
