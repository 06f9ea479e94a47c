"""Write the sentences of `adapter-probe demo`, which are a part of the package.

    python benchmarks/preparing/demo_sentences.py adapter_probe/data/demo.tsv.gz

The same sentences on every platform; the bytes of their compression differ between versions of Python. Run it
again only to change the demo.
"""

import gzip
import sys
from pathlib import Path

from demo_task import generate

N_TRAIN, N_VALIDATION, SEED = 2800, 1120, 0


def content() -> bytes:
    """What the file contains: a header and a line per sentence."""
    lines = ["split\tsentence\tlabel\tphenomenon"]
    for split, examples in generate(N_TRAIN, N_VALIDATION, SEED).items():
        lines += [f"{split}\t{one.sentence}\t{one.label}\t{one.phenomenon}" for one in examples]
    return "".join(f"{line}\n" for line in lines).encode()


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(gzip.compress(content(), compresslevel=9, mtime=0))
