"""What headers say of a checkpoint of PEFT is what the model says that PEFT loads, without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from peft import IA3Config, LoraConfig
from peft.tuners.tuners_utils import BaseTunerLayer
from peft_cases import write_adapter, write_base
from transformers import AutoModelForSeq2SeqLM, T5ForConditionalGeneration

from adapter_probe.checkpoints.peft_headers import read_peft_contents
from adapter_probe.checkpoints.peft_opening import open_with_peft
from adapter_probe.studies.inspect_convert import inspect

TARGETS = ["q", "v", "wo"]


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("base") / "t5", "t5", T5ForConditionalGeneration)


@pytest.mark.parametrize(
    "config",
    [
        LoraConfig(r=4, target_modules=TARGETS, task_type="SEQ_2_SEQ_LM"),
        LoraConfig(
            r=4, target_modules=TARGETS, use_dora=True, layers_to_transform=[1], layers_pattern="block"
        ),
        IA3Config(target_modules=TARGETS, feedforward_modules=["wo"], modules_to_save=["lm_head"]),
    ],
)
def test_counts_are_those_of_the_model(config, t5, tmp_path):
    folder = write_adapter(tmp_path / "a", t5, AutoModelForSeq2SeqLM, config)
    found = read_peft_contents(folder)
    assert found is not None
    model = open_with_peft(folder).model
    tuned = {
        name for name, module in model.get_base_model().named_modules() if isinstance(module, BaseTunerLayer)
    }
    assert {spec.module for spec in found.description.method.inner} == tuned
    adapters = [n for n in model.state_dict() if any(p in n for p in ("lora_", "ia3_"))]
    assert found.counts["adapters"] == sum(model.state_dict()[n].numel() for n in adapters)
    whole = [p for n, p in model.named_parameters() if "modules_to_save" in n]
    assert sum(found.trained.values()) == found.counts["adapters"] + sum(p.numel() for p in whole)
    base = AutoModelForSeq2SeqLM.from_pretrained(t5)
    assert found.pretrained == sum(p.numel() for p in base.parameters())
    norms = [p for n, p in base.named_parameters() if "layer_norm" in n]
    assert found.counts["layernorms"] == sum(p.numel() for p in norms)
    assert (found.n_layers, found.hidden_size, found.family) == (6, 32, "t5")


def test_inspect_loads_no_torch(t5, tmp_path):
    config = LoraConfig(r=4, target_modules=TARGETS, task_type="SEQ_2_SEQ_LM")
    folder = write_adapter(tmp_path / "a", t5, AutoModelForSeq2SeqLM, config)
    facts = inspect(folder)
    assert facts["method"]["ranks"] == [4]
    code = (
        "import json, sys; from adapter_probe.studies.inspect_convert import inspect; "
        f"facts = inspect({str(folder)!r}); heavy = ('torch', 'transformers', 'peft'); "
        "print(json.dumps([facts['n_sites'], [name for name in heavy if name in sys.modules]]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # In each of three layers the sublayers with q and v, the decoder's cross-attention too, and that with wo.
    assert json.loads(done.stdout) == [3 * 2 + 3 * 3, []]
