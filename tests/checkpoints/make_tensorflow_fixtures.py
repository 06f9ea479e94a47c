"""Make TensorFlow checkpoints of the paper's own code, with the logits that this code computes.

Run by hand, in an environment of its own, never by the tests:

    git clone https://github.com/google-research/adapter-bert
    python -m venv env
    env/bin/pip install tensorflow-cpu==2.21.0 six
    env/bin/python tests/checkpoints/make_tensorflow_fixtures.py adapter-bert

The code there is for TensorFlow 1; it runs unchanged on a module that has the two functions that are gone
since, `layers.dense` and `contrib.layers.layer_norm`. Model, logits and the optimiser's step are the code's
own, and so are the variables' names; weights are random, and another random model's than those of
``fixtures/bases/bert``. A span is switched off by an adapter that returns what it is given.

Each case is a folder ``fixtures/adapter_bert/<case>`` with ``logits.npz`` in it: ``skipped`` bool
``[runs, layers]`` and ``logits`` ``[runs, examples, labels]``, the first run intact. Every example runs
alone. ``variables.npz`` holds the variables as TensorFlow reads them.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import tensorflow.compat.v1 as v1

FIXTURES = Path(__file__).resolve().parent / "fixtures"
LAYERS, HIDDEN, LABELS = 3, 16, 3
ADAPTER_SIZES = {"one-file": 4, "two-files": 6}
STEPS = 2


class TensorFlow1(ModuleType):
    """What ``import tensorflow`` gives to the authors' code."""

    def __getattr__(self, name: str) -> Any:
        return getattr(v1, name)


def dense(
    inputs: Any, units: int, activation: Any = None, name: str | None = None, kernel_initializer: Any = None
) -> Any:
    """As `tf.layers.dense` on matrices."""
    with v1.variable_scope(name, default_name="dense"):
        kernel = v1.get_variable("kernel", [inputs.shape[-1], units], initializer=kernel_initializer)
        bias = v1.get_variable("bias", [units], initializer=v1.zeros_initializer())
        out = v1.nn.bias_add(v1.matmul(inputs, kernel), bias)
    return out if activation is None else activation(out)


def layer_norm(
    inputs: Any, begin_norm_axis: int, begin_params_axis: int, scope: Any, variables_collections: list[str]
) -> Any:
    """As `tf.contrib.layers.layer_norm` over the last axis."""
    width = inputs.shape[-1]
    with v1.variable_scope(scope, default_name="LayerNorm"):
        beta = v1.get_variable(
            "beta", [width], initializer=v1.zeros_initializer(), collections=variables_collections
        )
        gamma = v1.get_variable(
            "gamma", [width], initializer=v1.ones_initializer(), collections=variables_collections
        )
        mean, variance = v1.nn.moments(inputs, [-1], keep_dims=True)
        return v1.nn.batch_normalization(inputs, mean, variance, beta, gamma, variance_epsilon=1e-12)


def authors_code(folder: str) -> tuple[Any, Any, Any]:
    """The modules `modeling`, `optimization` and `run_classifier`."""
    v1.disable_v2_behavior()
    shim = TensorFlow1("tensorflow")
    shim.layers = SimpleNamespace(dense=dense)
    shim.contrib = SimpleNamespace(layers=SimpleNamespace(layer_norm=layer_norm))
    sys.modules["tensorflow"] = shim
    sys.path.insert(0, folder)
    import modeling
    import optimization
    import run_classifier

    return modeling, optimization, run_classifier


def build(code: tuple[Any, Any, Any], size: int, skipped: list[bool], training: bool = False) -> Any:
    """Loss, logits and the placeholder of the token ids, in the default graph."""
    modeling, _, run_classifier = code
    config = modeling.BertConfig(
        vocab_size=53,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=24,
        type_vocab_size=2,
    )
    sites, original = iter(np.repeat(skipped, 2)), modeling.feedforward_adapter

    def adapter(states: Any) -> Any:
        return states if next(sites) else original(states, hidden_size=size)

    modeling.feedforward_adapter = adapter
    try:
        ids = v1.placeholder(v1.int32, [1, None], "ids")
        loss, _, logits, _ = run_classifier.create_model(
            config, training, ids, None, None, v1.constant([1]), LABELS, False
        )
    finally:
        modeling.feedforward_adapter = original
    return loss, logits, ids


def write(code: tuple[Any, Any, Any], case: str, texts: list[list[int]]) -> None:
    """A checkpoint after a few steps of the authors' optimiser."""
    folder = FIXTURES / "adapter_bert" / case
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    draw = np.random.default_rng(ADAPTER_SIZES[case])
    two = case == "two-files"
    with v1.Graph().as_default():
        v1.set_random_seed(1)
        # Variables on two devices go to two data files, as in training on several.
        with v1.device((lambda op: f"/cpu:{int('layer_' in op.name)}") if two else None):
            loss, _, ids = build(code, ADAPTER_SIZES[case], [False] * LAYERS, training=True)
            step = code[1].create_optimizer(loss, 1e-2, 100, 0, use_tpu=False)
        saver = v1.train.Saver(sharded=two)
        with v1.Session(config=v1.ConfigProto(device_count={"CPU": 2})) as session:
            session.run(v1.global_variables_initializer())
            for variable in v1.global_variables():
                name, shape = variable.op.name, variable.shape.as_list()
                if "adam" not in name and name != "global_step":
                    centre = 1.0 if name.endswith("gamma") else 0.0
                    # Wide adapters, so that the tanh approximation of GELU tells from GELU itself.
                    spread = 0.8 if "adapters" in name else 0.3
                    variable.load(centre + spread * draw.standard_normal(shape), session)
            for text in texts[:STEPS]:
                session.run(step, {ids: [text]})
            saver.save(session, str(folder / "model.ckpt"), global_step=STEPS, write_meta_graph=False)
    # TensorFlow writes the path as it was given; here only its end.
    latest = folder / "checkpoint"
    latest.write_text(latest.read_text().replace(f"{folder}/", "/home/someone/output/"))


def logits(code: tuple[Any, Any, Any], case: str, skipped: list[bool], texts: list[list[int]]) -> np.ndarray:
    """``[examples, labels]``, with the adapters of some layers off."""
    with v1.Graph().as_default():
        _, out, ids = build(code, ADAPTER_SIZES[case], skipped)
        with v1.Session() as session:
            path = FIXTURES / "adapter_bert" / case / f"model.ckpt-{STEPS}"
            v1.train.Saver().restore(session, str(path))
            return np.concatenate([session.run(out, {ids: [text]}) for text in texts])


def convert(folder: Path) -> None:
    """All variables but the optimiser's, for tests where TensorFlow is not installed."""
    reader = v1.train.load_checkpoint(str(folder / f"model.ckpt-{STEPS}"))
    names = sorted(reader.get_variable_to_shape_map())
    kept = [n for n in names if n != "global_step" and not n.endswith(("/adam_m", "/adam_v"))]
    np.savez_compressed(folder / "variables.npz", **{name: reader.get_tensor(name) for name in kept})


def main() -> None:
    """Write both cases."""
    code = authors_code(sys.argv[1])
    texts = json.loads((FIXTURES / "texts.json").read_text())
    spans = [(first, last) for first in range(LAYERS) for last in range(first, LAYERS)]
    runs = [[False] * LAYERS, *([a <= n <= b for n in range(LAYERS)] for a, b in spans)]
    for case in ADAPTER_SIZES:
        write(code, case, texts)
        found = np.stack([logits(code, case, skipped, texts) for skipped in runs])
        np.savez_compressed(FIXTURES / "adapter_bert" / case / "logits.npz", skipped=runs, logits=found)
        convert(FIXTURES / "adapter_bert" / case)


if __name__ == "__main__":
    main()
