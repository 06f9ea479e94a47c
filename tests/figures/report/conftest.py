"""Folders of results such as the commands write, and a real Chromium to open their page in."""

from __future__ import annotations

import json
import math
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from ablation_facts import ablation_of, changed

from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis.score_changes import span_scores
from adapter_probe.analysis.summary import summarise
from adapter_probe.figures.report.ablation_section import ReportedAblation
from adapter_probe.figures.report.examples import ExampleTexts
from adapter_probe.results.ablation_files import load_ablation, save_predictions, write_spans
from adapter_probe.results.atomic import write_json
from adapter_probe.spans import span_variants
from adapter_probe.studies.load import load

HOSTILE = "</script><script>alert(1)</script><!-- <b>&amp; {{script}} \u2028 \U0001f600"


@pytest.fixture(scope="session")
def hostile() -> str:
    """A text that would run, or end the block it stands in, if it were read as markup."""
    return HOSTILE


@pytest.fixture(scope="session")
def make_ablation(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A factory: ``make_ablation(...) -> folder`` of an ablation; deeper layers' adapters matter more.

    Arguments by name: n_layers=6, n_examples=80, complement=False, sites="both", statistics=True (intervals,
    p values, interactions and layers.csv, as if from a bootstrap), task="made up",
    labels=("no", "yes"), seed=0.
    """

    def make(
        *, n_layers: int = 6, n_examples: int = 80, complement: bool = False, sites: str = "both",
        statistics: bool = True, task: str = "made up", labels: tuple = ("no", "yes"),
        seed: int = 0,
    ) -> Path:  # fmt: skip
        folder = tmp_path_factory.mktemp("results") / "ablation"
        folder.mkdir()
        results = _results(n_layers, n_examples, complement, sites, task, labels, seed)
        frame = span_scores(results)
        if statistics:
            frame = _with_statistics(frame, np.random.default_rng(seed))
            layers = _layers(frame, n_layers)
            if complement:  # what a span brings is not shared out
                layers.loc[:, [name for name in layers if name.startswith("share")]] = math.nan
            layers.to_csv(folder / "layers.csv", index=False)
        write_spans(folder, frame)
        save_predictions(folder, results)
        write_json(folder / "summary.json", summarise(results).to_dict())
        identity = {**results.identity, "settings": results.settings}
        write_json(folder / "manifest.json", {"schema": 1, "identity": identity, "created_with": {"x": "1"}})
        return folder

    return make


def _results(n_layers, n_examples, complement, sites, task, labels, seed) -> AblationResults:
    draw = np.random.default_rng(seed)
    variants = span_variants(n_layers, sites, complement)
    truth = draw.integers(0, len(labels), n_examples)
    hardness, noise = draw.random(n_examples), draw.random((len(variants.names), n_examples))
    weight = np.repeat((0.2 + np.arange(n_layers)) ** 1.5, 2) / 2
    lost = (~variants.masks) @ weight / weight.sum()  # [variants], 0 intact to 1 without adapters
    wrong = (hardness < 0.15 + 0.5 * lost[:, None]) ^ (noise < 0.04 * (lost[:, None] > 0))
    said = np.where(wrong, (truth + 1) % len(labels), truth)
    return ablation_of(
        masks=variants.masks,
        spans=np.array([(s.first, s.last) if s else (-1, -1) for s in variants.spans]),
        row_names=variants.names,
        outputs=np.eye(len(labels), dtype=np.float32)[said],
        scored_with=truth,
        metric="accuracy",
        kind="classification",
        label_names=labels,
        identity={"checkpoint": {"delta_sha256": "ab" * 32}, "data": {"fingerprint": "cd" * 32}},
        settings={"task": task, "split": "validation", "sites": sites, "complement": complement,
                  "site_parameters": [100, 150] * n_layers},
    )  # fmt: skip


def _with_statistics(frame: pd.DataFrame, draw: np.random.Generator) -> pd.DataFrame:
    """Columns as `adapter-probe ablate` writes them; made up, but of the right order of size."""
    half = 1.0 + 2 * draw.random(len(frame))
    delta = frame["delta_points"]
    p = np.array([math.erfc(abs(d) / h) for d, h in zip(delta, half)])
    return frame.assign(
        bound_low_points=delta - half,
        ci_low_points=delta - half, ci_high_points=delta + half, p_value=p, p_holm=np.minimum(1, 5 * p),
        significant=5 * p < 0.05, interaction_points=draw.normal(0, 3, len(frame)),
        interaction_low_points=-4.0, interaction_high_points=4.0, non_monotone=draw.random(len(frame)) < 0.1,
    )  # fmt: skip


@pytest.fixture(scope="session")
def reported() -> Callable[..., ReportedAblation]:
    """``reported(folder, ...) -> ReportedAblation`` with its predictions, and whatever else is given."""

    def read(folder: Path, **more: object) -> ReportedAblation:
        has_results = (folder / "predictions.npz").is_file()
        return ReportedAblation(load(folder).record, load_ablation(folder) if has_results else None, **more)

    return read


def _layers(frame: pd.DataFrame, n_layers: int) -> pd.DataFrame:
    one = frame[frame["n_layers"] == 1]
    share = np.linspace(0.5, 9, n_layers)
    columns = ["delta_points", "ci_low_points", "ci_high_points", "p_holm"]
    return pd.DataFrame(
        {"layer": range(n_layers), **{name: one[name].to_numpy() for name in columns}, "share_points": share,
         "share_low_points": share - 1, "share_high_points": share + 1.5}
    )  # fmt: skip


@pytest.fixture(scope="session")
def questions(make_ablation: Callable[..., Path], tmp_path_factory) -> tuple[Path, ExampleTexts]:
    """An ablation of two layers on 30 questions with one of four answers, and their texts."""
    base, draw = load_ablation(make_ablation(n_layers=2)), np.random.default_rng(0)
    places = np.array([(0, 3), (4, 9), (10, 14), (-1, -1)], dtype=np.int32)  # red, green, blue, none
    said, truth = draw.integers(0, 4, (len(base.masks), 30)), draw.integers(0, 3, 30)
    scores = np.stack([np.where(said == truth, 1, 0.25), said == truth], axis=-1).astype(np.float32)
    results = changed(
        base, kind="extractive", metric="squad_f1", label_names=(), scored_with=np.arange(30) // 3,
        outputs=scores, answers=places[said],
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("questions")
    write_spans(folder, span_scores(results))
    save_predictions(folder, results)
    write_json(folder / "summary.json", summarise(results).to_dict())
    contexts = tuple(f"red green blue {'and so on ' * 40}{i}" for i in range(30))
    asked = tuple(f"which {i}?" for i in range(30))
    return folder, ExampleTexts(asked, contexts, tuple(("red", "green", "blue")[t] for t in truth))


class Browser:
    """Headless Chromium, spoken to in the WebDriver protocol (W3C) over HTTP."""

    def __init__(self, driver: str, folder: Path):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._at, self._session = f"http://127.0.0.1:{port}", ""
        self._log = (folder / "chromedriver.log").open("w")
        self._driver = subprocess.Popen([driver, f"--port={port}"], stdout=self._log, stderr=self._log)
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     f"--user-data-dir={folder / 'profile'}"]  # fmt: skip
        wanted = {
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        try:
            self._wait_for_driver()
            self._session = self._ask("/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        except BaseException:
            self.close()
            raise

    def _wait_for_driver(self) -> None:
        deadline = time.monotonic() + 30
        while True:
            try:
                with urllib.request.urlopen(f"{self._at}/status", timeout=5):
                    return
            except OSError:
                if time.monotonic() > deadline or self._driver.poll() is not None:
                    raise
                time.sleep(0.05)

    def _ask(self, path: str, body: dict | None = None, method: str = "POST") -> Any:
        data = None if method != "POST" else json.dumps(body or {}).encode()
        request = urllib.request.Request(
            self._at + path, data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from None

    def ask(self, path: str, body: dict | None = None) -> Any:
        """One command of the session."""
        return self._ask(f"/session/{self._session}{path}", body)

    def open(self, page: Path, width: int = 1280, height: int = 900, **media: str) -> None:
        """Open a file afresh at a size, with media features such as ``prefers_color_scheme="dark"``."""
        self.logs("browser"), self.logs("performance")
        features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.devtools("Emulation.setDeviceMetricsOverride", **size)
        self.devtools("Emulation.setEmulatedMedia", media="", features=features)
        self.devtools("Emulation.setFocusEmulationEnabled", enabled=True)  # also where nothing was clicked
        self.ask("/url", {"url": page.as_uri()})

    def devtools(self, command: str, **parameters: object) -> Any:
        """A command of Chromium's own protocol."""
        return self.ask("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def run(self, script: str, *arguments: object) -> Any:
        """Run JavaScript as the body of a function; a promise is waited for."""
        return self.ask("/execute/sync", {"script": script, "args": list(arguments)})

    def texts(self, css: str) -> list[str]:
        """What the elements say, in the page's order."""
        return self.run(
            "return Array.from(document.querySelectorAll(arguments[0]), (n) => n.textContent)", css
        )

    def text(self, css: str) -> str:
        """What the first such element says."""
        return self.texts(css)[0]

    def count(self, css: str) -> int:
        """How many such elements there are."""
        return self.run("return document.querySelectorAll(arguments[0]).length", css)

    def focus(self, css: str) -> None:
        """Put the focus on the first such element."""
        self.run("document.querySelector(arguments[0]).focus()", css)

    def logs(self, kind: str) -> list[dict]:
        """What was logged since the last call: ``browser`` (the console) or ``performance``."""
        return self.ask("/se/log", {"type": kind})

    def requests(self) -> list[str]:
        """Addresses that anything asked for since the page was opened."""
        events = [json.loads(entry["message"])["message"] for entry in self.logs("performance")]
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def place(self, css: str, number: int = 0) -> tuple[int, int]:
        """Scroll an element into view; its middle in the window."""
        script = """const node = document.querySelectorAll(arguments[0])[arguments[1]];
            node.scrollIntoView({block: "center", behavior: "instant"});
            const box = node.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];"""
        x, y = self.run(script, css, number)
        return round(x), round(y)

    def point(self, x: int, y: int, kind: str = "mouse", press: bool = False) -> None:
        """Move the pointer there and, if wanted, press and let go."""
        actions: list[dict] = [{"type": "pointerMove", "x": x, "y": y, "duration": 0}]
        if press:
            actions += [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        source = {"type": "pointer", "id": kind, "parameters": {"pointerType": kind}, "actions": actions}
        self.ask("/actions", {"actions": [source]})

    def press(self, *keys: str) -> None:
        """Press keys one after the other."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.ask("/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def close(self) -> None:
        """End the session and the driver."""
        if self._session:
            self._ask(f"/session/{self._session}", method="DELETE")
        self._driver.terminate()
        self._driver.wait()
        self._log.close()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Chromium with its driver; skips where they are not installed."""
    driver = shutil.which("chromedriver")
    if driver is None or not any(shutil.which(name) for name in ("chromium", "google-chrome", "chrome")):
        pytest.skip("no chromium and chromedriver here (Debian: apt-get install chromium chromium-driver)")
    made = Browser(driver, tmp_path_factory.mktemp("browser"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def make_loss(make_ablation: Callable[..., Path], tmp_path_factory) -> Callable[[str], Path]:
    """``make_loss(metric) -> folder`` of an ablation of four layers, scored by a loss of 80 texts."""

    def make(metric: str) -> Path:
        base, draw = load_ablation(make_ablation(n_layers=4)), np.random.default_rng(1)
        tokens = draw.integers(2, 6, 80)
        switched_off = (~base.masks).sum(axis=1)[:, None, None]  # [variants, 1, 1]
        nats = tokens[:, None] * (1 + 0.03 * switched_off + 0.05 * draw.normal(size=(len(base.masks), 80, 1)))
        counts = np.repeat(tokens[:, None, None], 4, axis=2)
        results = changed(
            base, kind="causal", metric=metric, label_names=(), scored_with=tokens, counts=counts,
            outputs=-nats.astype(np.float32),
        )  # fmt: skip
        folder = tmp_path_factory.mktemp("loss")
        frame = _with_statistics(span_scores(results), draw)
        write_spans(folder, frame)
        _layers(frame, 4).to_csv(folder / "layers.csv", index=False)
        save_predictions(folder, results)
        found = replace(summarise(results), task="texts", split="test")
        write_json(folder / "summary.json", found.to_dict())
        return folder

    return make
