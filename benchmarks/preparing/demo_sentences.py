"""Write the sentences of `adapter-probe demo`, which are a part of the package.

    python benchmarks/preparing/demo_sentences.py adapter_probe/data/demo.tsv.gz

The same bytes on every platform. Run it again only to change the demo.
"""

import sys
import zlib
from pathlib import Path

from demo_task import generate

N_TRAIN, N_VALIDATION, SEED = 2800, 1120, 0


def content() -> bytes:
    """The file: a header and a line per sentence, compressed."""
    lines = ["split\tsentence\tlabel\tphenomenon"]
    for split, examples in generate(N_TRAIN, N_VALIDATION, SEED).items():
        lines += [f"{split}\t{one.sentence}\t{one.label}\t{one.phenomenon}" for one in examples]
    made = zlib.compressobj(9, wbits=31)  # the header that `gzip` writes differs between versions of Python
    return made.compress("".join(f"{line}\n" for line in lines).encode()) + made.flush()


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(content())
