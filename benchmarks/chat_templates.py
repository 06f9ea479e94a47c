"""Tasks put through a chat template: lm-evaluation-harness on PEFT's model, and this project, row by row.

    python -m benchmarks.chat_templates BASE DATA [N_ROWS] [TASK]

BASE is a chat model, and DATA the folder with `arc_easy` and `sst2`. The adapter is a LoRA drawn at random.
Each task is scored with the adapter on and off, in float32, with worked examples as turns and with a system's
turn, by `simple_evaluate` with the same settings. Wants peft and lm-eval.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import lm_eval
import numpy as np
import peft
import torch
import yaml
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import AutoModelForCausalLM, AutoTokenizer

import adapter_probe

TASKS = {
    "arc_easy": {
        "doc_to_text": "Question: {{question}}\nAnswer:", "doc_to_target": "answer",
        "doc_to_choice": "{{choices}}",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    },
    "sst2": {
        "doc_to_text": "{{sentence}}\nIs this negative or positive?", "doc_to_target": "label",
        "doc_to_choice": ["negative", "positive"], "metric_list": [{"metric": "acc"}],
    },
}  # fmt: skip
PROMPTS = {
    "arc_easy": {"apply_chat_template": True, "num_fewshot": 2},
    "sst2": {
        "apply_chat_template": True, "num_fewshot": 1, "fewshot_as_multiturn": False,
        "system_instruction": "Answer in one word.",
    },
}  # fmt: skip


def write_task(folder: Path, name: str, data: Path, n_rows: int) -> str:
    """A task file of the library's on the first rows of a data set."""
    source = next(p for part in ("test", "validation") for p in data.glob(f"{name}/{part}.jsonl"))
    with source.open(encoding="utf-8") as lines:
        (folder / f"{name}.jsonl").write_text("".join(itertools.islice(lines, n_rows)), encoding="utf-8")
    files = {"data_files": {"test": str(folder / f"{name}.jsonl")}}
    about = {
        "task": name, "dataset_path": "json", "output_type": "multiple_choice", "dataset_kwargs": files,
        "test_split": "test", "fewshot_split": "test", **TASKS[name],
    }  # fmt: skip
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(about), encoding="utf-8")
    return str(folder / f"{name}.yaml")


def write_lora(base: str, out: Path) -> peft.PeftModel:
    torch.manual_seed(0)
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "v_proj"])
    model = peft.get_peft_model(plain, config).eval()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=0.02)
    model.save_pretrained(out)
    return model


def main(base: str, data: str, n_rows: int = 100, only: str = "") -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as made:
        model = write_lora(base, Path(made, "lora"))
        harness = HFLM(pretrained=model, tokenizer=AutoTokenizer.from_pretrained(base), batch_size=8)
        for name, prompts in PROMPTS.items() if not only else [(only, PROMPTS[only])]:
            task = write_task(Path(made), name, Path(data), n_rows)
            study = adapter_probe.ablate(
                Path(made, "lora"), base=base, task=f"lm-eval:{task}", group=model.config.num_hidden_layers,
                out=Path(made, f"out-{name}"), threads=1, progress=False, **prompts,
            )  # fmt: skip
            for variant, off in enumerate((False, True)):
                with model.disable_adapter() if off else torch.no_grad():
                    found = lm_eval.simple_evaluate(
                        harness, tasks=[task], task_manager=TaskManager(include_defaults=False),
                        bootstrap_iters=0, **{"fewshot_as_multiturn": True} | prompts,
                    )  # fmt: skip
                samples = sorted(found["samples"][name], key=lambda sample: sample["doc_id"])
                theirs = np.concatenate([[float(r[0][0]) for r in one["resps"]] for one in samples])
                ours = study.results.outputs[variant][study.results.counts[..., 0] > 0]
                scores = (study.predictions[variant] == study.results.scored_with).mean()
                print(json.dumps({
                    "task": name, **prompts, "adapters": "off" if off else "on", "questions": len(samples),
                    "choices": len(theirs), "largest_difference_nats": float(np.abs(ours - theirs).max()),
                    "accuracy": float(scores), "harness": found["results"][name]["acc,none"],
                }), flush=True)  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:4]), *sys.argv[4:])
