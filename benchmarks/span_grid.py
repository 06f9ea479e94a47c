"""The span grid by the prefix tree against one run a variant, on the same model, texts and threads.

    python benchmarks/span_grid.py CHECKPOINT [--max-examples 64] [--repeats 3] [--threads N]

The plain loop is what a careful user would write: the same encoder, examples sorted by length and cut into
batches of one exact length (so there is no padding in either), adapters switched off by forward hooks. The
two are run in alternation; printed are seconds, their ratio with its spread, the floating-point operations
counted from the shapes, the share of this machine's own matrix-product rate, and whether predictions agree.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np
import torch

from adapter_probe.data.packing import pack
from adapter_probe.models.evaluation import evaluate
from adapter_probe.probe.plan import choose_tokens_per_pass, cut_batches, nodes_by_site
from adapter_probe.probe.request import AblationRequest, AblationSettings, prepare_ablation
from adapter_probe.probe.tree import forward_variants


def tree(request: AblationRequest) -> np.ndarray:
    """Logits ``[variants, examples, labels]`` by the prefix tree."""
    lengths, budget = request.encoded.lengths, choose_tokens_per_pass(None, "cpu")
    masks = request.variants.masks
    logits = np.empty((len(masks), len(lengths), request.checkpoint.model.base.config.num_labels), np.float32)
    for indices in cut_batches(lengths, np.argsort(lengths, kind="stable"), budget):
        batch = pack(request.encoded, indices)
        out = forward_variants(request.checkpoint.model, batch, masks, tokens_per_pass=budget)
        logits[:, batch.index] = out.numpy()
    return logits


def loop(request: AblationRequest) -> np.ndarray:
    """The same by one plain evaluation a variant, adapters switched off by hooks."""
    model, rows = request.checkpoint.model, []
    for mask in request.variants.masks:
        hooks = [
            site.adapter.register_forward_hook(lambda _module, inputs, _output: inputs[0])
            for site, on in zip(model.sites, mask)
            if not on
        ]
        rows.append(evaluate(model, request.encoded, tokens_per_batch=4096))
        for hook in hooks:
            hook.remove()
    return np.stack(rows)


def operations(request: AblationRequest) -> float:
    """Floating-point operations of the tree's matrix products in the encoder's own weights."""
    config, lengths = request.checkpoint.model.base.config, request.encoded.lengths
    width, inner = config.hidden_size, config.intermediate_size
    nodes, tokens = nodes_by_site(request.variants.masks), float(lengths.sum())
    products = (
        sum(nodes[0:-2:2]) * 4 * width * width * tokens + sum(nodes[1:-2:2]) * 2 * width * inner * tokens
    )
    # In the last layer only each example's first position is carried on; keys and values still need all.
    products += nodes[-2] * 2 * width * width * (tokens + len(lengths))
    products += nodes[-1] * 2 * width * inner * len(lengths)
    return 2.0 * products


def product_rate() -> float:
    """Operations per second of one large float32 matrix product, best of five."""
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - start)
    return 2 * 2048**3 / min(times)


def main() -> None:
    """Run, print a table, print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint")
    parser.add_argument("--base")
    parser.add_argument("--max-examples", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    request = prepare_ablation(
        options.checkpoint,
        AblationSettings(),
        torch.device("cpu"),
        base=options.base,
        max_examples=options.max_examples,
    )
    seconds: dict[str, list[float]] = {"tree": [], "loop": []}
    outputs = {}
    for _ in range(options.repeats):
        for name, run in (("tree", tree), ("loop", loop)):
            start = time.perf_counter()
            outputs[name] = run(request)
            seconds[name].append(time.perf_counter() - start)
    ratios = [loop_s / tree_s for tree_s, loop_s in zip(seconds["tree"], seconds["loop"])]
    differing = int((outputs["tree"].argmax(-1) != outputs["loop"].argmax(-1)).sum())
    report = {
        "examples": len(request.examples),
        "tokens": int(request.encoded.lengths.sum()),
        "threads": options.threads,
        "tree_seconds": seconds["tree"],
        "loop_seconds": seconds["loop"],
        "ratio_median": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
        "tree_gflops": operations(request) / min(seconds["tree"]) / 1e9,
        "machine_gflops": product_rate() / 1e9,
        "differing_predictions": differing,
        "largest_logit_difference": float(np.abs(outputs["tree"] - outputs["loop"]).max()),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
