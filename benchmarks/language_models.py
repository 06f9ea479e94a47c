"""Spans of a LoRA's layers: one pass of this project, and lm-evaluation-harness on PEFT a variant at a time.

    python -m benchmarks.language_models CHECKPOINT BASE ROWS.jsonl [N_ROWS] [GROUP]

The other way is what a user would write: lm-eval's model class on PEFT's model, with PEFT's scaling set to
zero in the span's layers. It is timed on a few variants, which all take the same time, and scaled to all of
them. Times are processor seconds of one thread, so that what else the machine does counts little. Wants peft
and lm-eval.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import peft
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import AutoModelForCausalLM, AutoTokenizer

import adapter_probe
from adapter_probe.data.requests import read_tables, requests_of

TIMED, BATCH = 3, 16


def main(checkpoint: str, base: str, rows: str, n_rows: int = 40, group: int = 3) -> None:
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(base)
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    model = peft.PeftModel.from_pretrained(plain, checkpoint, autocast_adapter_dtype=False).eval()
    requests = requests_of(tokenizer, read_tables([rows]), "test", n_rows).rows
    pairs = [(r.context, r.delimiter + choice) for r in requests for choice in r.choices]
    asked = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(pairs)]
    harness = HFLM(pretrained=model, tokenizer=tokenizer, device="cpu", batch_size=BATCH)
    with tempfile.TemporaryDirectory() as out:
        start = time.process_time()
        study = adapter_probe.ablate(
            checkpoint, base=base, data=rows, max_examples=n_rows, group=group, precision="bfloat16",
            threads=1, out=Path(out, "out"), progress=False,
        )  # fmt: skip
        ours = time.process_time() - start
        results = study.results
    layers = model.base_model.model.model.layers
    theirs, gaps = [], []
    for row in itertools.islice(range(0, len(results.spans), len(results.spans) // TIMED), TIMED):
        first, last = results.spans[row]
        for number, layer in enumerate(layers):
            for module in layer.modules():
                if isinstance(getattr(module, "scaling", None), dict):
                    config = model.peft_config["default"]
                    off = first <= number <= last
                    module.scaling["default"] = 0.0 if off else config.lora_alpha / config.r
        start = time.process_time()
        found = [sum_ for sum_, _ in harness.loglikelihood(asked, disable_tqdm=True)]
        theirs.append(time.process_time() - start)
        own = results.outputs[row][results.counts[..., 0] > 0]
        gaps.append(float(np.abs(own - np.array(found)).max()))
    whole = float(np.mean(theirs)) * len(results.spans)
    print(json.dumps({
        "rows": len(requests), "continuations": len(pairs), "variants": len(results.spans), "group": group,
        "one_pass_cpu_s": round(ours, 1), "one_variant_cpu_s": [round(t, 2) for t in theirs],
        "all_variants_cpu_s": round(whole, 1), "ratio": round(whole / ours, 2),
        "largest_difference_nats": max(gaps), "largest_sum_nats": float(np.abs(results.outputs).max()),
    }))  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:]))
