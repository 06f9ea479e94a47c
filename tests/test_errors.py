"""What a user sees of an error in a notebook, and values in messages."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from refusals import names

from adapter_probe.errors import CheckpointError, shown

CELLS = """
import json, sys, warnings
from ipykernel.inprocess import InProcessKernelManager

manager = InProcessKernelManager()
manager.start_kernel()
client = manager.client()
client.start_channels()

def run(code):
    client.execute(code)
    texts = []
    while True:
        try:
            message = client.get_iopub_msg(timeout=1)
        except Exception:
            return texts
        kind, content = message["msg_type"], message["content"]
        if kind == "error":
            texts += content["traceback"]
        elif kind == "stream":
            texts.append(content["text"])

call = "import adapter_probe as ap\\nap.load('missing\\\\x1b[31m')"
print(json.dumps([run(call), run("%xmode Verbose"), run(call), run("%tb")]))
"""


@pytest.mark.slow
def test_a_notebook_shows_the_line_and_the_whole_traceback_on_request():
    pytest.importorskip("ipykernel")
    done = subprocess.run([sys.executable, "-c", CELLS], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    first, _, whole, again = json.loads(done.stdout.splitlines()[-1])
    (line,) = first
    kind, _, message = line.partition(": ")
    assert kind == "ResultsError"
    assert names(message, "missing\\x1b[31m", "folder")
    refusal = message.partition(": ")[2]  # IPython itself writes the value, with its control characters
    for texts in (whole, again):
        assert "find_results" in "".join(texts)
        assert refusal in "".join(texts)


def test_a_value_that_cannot_be_written_is_named_by_its_type():
    class Faulty:
        def __repr__(self) -> str:
            raise RuntimeError

    class Table:
        def __repr__(self) -> str:
            return "one\ntwo"

    assert shown(Faulty()) == "a Faulty"
    assert shown(10**5000) == "a int"
    assert shown(Table()) == "one two"


def test_the_line_has_no_control_characters():
    assert CheckpointError("a\x1b[31mb\nc")._render_traceback_() == ["CheckpointError: a\\x1b[31mb\\nc"]
