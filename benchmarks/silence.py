"""How long a person waits before a terminal says anything, and the longest silence after that.

    python benchmarks/silence.py adapter-probe ablate CHECKPOINT
    python benchmarks/silence.py --file adapter-probe ablate CHECKPOINT

Runs a command with stderr in a pseudo-terminal (with --file: in a pipe, as in a log) and prints, in seconds,
when the first word came, the longest gap between two outputs with what was said before it, and the whole
time; for a log also the number of lines.
"""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import time


def listen(command: list[str], terminal: bool) -> list[tuple[float, bytes]]:
    """Every piece that the command writes on stderr, with its time since the start, seconds; the end last."""
    reader, writer = pty.openpty() if terminal else os.pipe()
    if terminal:  # without a width tqdm shows nothing
        fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=writer) as process:
        os.close(writer)
        pieces = []
        while True:
            try:
                piece = os.read(reader, 65536)
            except OSError:  # how a pseudo-terminal says that nobody writes any more
                piece = b""
            if not piece:
                break
            pieces.append((time.perf_counter() - start, piece))
        process.wait()
    os.close(reader)
    return [*pieces, (time.perf_counter() - start, b"")]


def main() -> None:
    """Run and print."""
    arguments = sys.argv[1:]
    terminal = arguments[:1] != ["--file"]
    pieces = listen(arguments if terminal else arguments[1:], terminal)
    times = [0.0, *(when for when, _ in pieces)]
    said = [b"(nothing)", *(piece for _, piece in pieces)]
    gaps = [(after - before, before, text) for before, after, text in zip(times[1:], times[2:], said[1:])]
    longest, since, text = max(gaps, default=(times[-1], 0.0, b"(nothing)"))
    words = text.decode(errors="replace").replace("\r", " ").strip()[-80:]
    print(f"first word {times[1]:.2f} s, longest silence {longest:.2f} s, whole {times[-1]:.2f} s")
    print(f"the silence began at {since:.2f} s, after {words!r}")
    if not terminal:
        lines = b"".join(piece for _, piece in pieces).count(b"\n")
        print(f"{lines} lines")


if __name__ == "__main__":
    main()
