"""Copies a base without its pooler, so that training creates a new one: `python new_pooler.py BASE OUT`.

The pooler of all-MiniLM-L6-v2 was never trained: its biases are zero, and its matrix has the singular values
of a random one. The script prints the largest singular value beside the one that a random matrix has.
"""

import math
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def main(base: Path, out: Path) -> None:
    """Write the copy, and print what shows that the pooler was never trained."""
    shutil.copytree(base, out, dirs_exist_ok=True)
    tensors = load_file(base / "model.safetensors")
    pooler = {name: tensor for name, tensor in tensors.items() if "pooler." in name}
    for name, tensor in pooler.items():
        if tensor.dim() == 1:
            print(f"{name}: {int(tensor.count_nonzero())} of {len(tensor)} biases are not zero")
        else:
            largest, random = torch.linalg.matrix_norm(tensor, 2), 2 * tensor.std() * math.sqrt(len(tensor))
            print(f"{name}: largest singular value {largest:.3f}, of a random matrix {random:.3f}")
    kept = {name: tensor for name, tensor in tensors.items() if name not in pooler}
    save_file(kept, out / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
