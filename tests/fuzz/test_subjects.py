"""What the subjects take for granted of the fixtures."""

from __future__ import annotations

import re

from subjects import FIXTURES, INERT, SUBJECTS


def test_no_adapter_has_products_of_kronecker_factors():
    """Their settings change no number then; the switch itself is a setting that must."""
    cases = [one.name.partition("-")[2] for one in SUBJECTS if one.name.startswith("adapterhub-")]
    texts = {case: (FIXTURES / "adapterhub" / case / "adapter_config.json").read_text() for case in cases}
    switches = {case: set(re.findall(r'"phm_layer": (\w+)', text)) for case, text in texts.items()}
    assert switches == {
        case: set() if case == "lora" else {"false"}
        for case in ("pfeiffer", "houlsby", "lora", "union", "flex-pooled")
    }
    settings = set(re.findall(r'"(\w*(?:phm|hypercomplex)\w*)":', "".join(texts.values())))
    assert len(settings) == 12
    assert {name for name in settings if not INERT.search(name)} == {"phm_layer"}
