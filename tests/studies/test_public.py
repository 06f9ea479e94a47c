"""The package's face: what is public, and what importing it costs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import adapter_probe as ap


def test_every_public_name_is_there():
    for name in ap.__all__:
        assert getattr(ap, name) is not None
    assert set(ap.__all__) <= set(dir(ap))
    with pytest.raises(AttributeError, match="no attribute 'ablat'"):
        _ = ap.ablat


def test_importing_loads_nothing_heavy_and_load_needs_no_torch(study):
    code = """
import json, sys
import adapter_probe as ap
heavy = ("torch", "transformers", "matplotlib", "pandas", "numpy", "seaborn", "scipy")
imported = [name for name in heavy if name in sys.modules]
study = ap.load(sys.argv[1])
study.spans, study.predictions, repr(study)
print(json.dumps([imported, [name for name in ("torch", "matplotlib") if name in sys.modules]]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, study.folder], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[], []]


def test_every_error_is_one_of_ours(tmp_path):
    for wrong in (
        lambda: ap.ablate(tmp_path / "missing", progress=False),
        lambda: ap.open(tmp_path / "missing"),
        lambda: ap.load(tmp_path),
        lambda: ap.compare(tmp_path, tmp_path),
        lambda: ap.average([]),
        lambda: ap.open(tmp_path, dtype="float8"),
        lambda: ap.open(tmp_path, device="tpu"),
        *(
            lambda name=name: ap.ablate(tmp_path, **{name: "other"})
            for name in ("sites", "layernorm", "precision")
        ),
        lambda: ap.prune(tmp_path, tmp_path, span="0-1"),
        lambda: ap.prune(tmp_path, tmp_path, within=1.0, basis="other"),
    ):
        with pytest.raises(ap.AdapterProbeError) as caught:
            wrong()
        assert "\n" not in str(caught.value)
