"""The reference model of preferences: what is subtracted from the log-likelihoods of both answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from adapter_probe.data.requests import Requests
from adapter_probe.errors import DataError
from adapter_probe.spans import VariantSet

if TYPE_CHECKING:
    from .request import AblationRequest


def reference_of(
    request: AblationRequest, variants: VariantSet, sums: np.ndarray | None = None
) -> np.ndarray | None:
    """The log-likelihoods that are subtracted from those of preferences, float64 ``[examples, 2]``, or None.

    Args:
        request: the request of the ablation.
        variants: its variants.
        sums: log-likelihoods ``[variants, examples, 2]``; without them nothing is returned where they are
            needed.

    Raises:
        DataError: they are to be those of the model with all adapters off, and no such variant is studied, or
            the rows are no preferences.
    """
    rows, asked = request.examples.rows, request.settings.reference
    if not isinstance(rows, Requests) or rows.form != "preference" or request.examples.combine is not None:
        if asked == "off" and sums is None:
            raise DataError("--reference off needs preferences (chosen, rejected) and a language model")
        return None
    if asked == "off":
        off = ~variants.masks[:, request.model.has_adapter].any(axis=1)
        if not off.any():
            raise DataError(
                "--reference off is the model with all adapters off, which is no variant of a study of a "
                "part of them; leave out the option that chooses this part (--sites, --layers or --stack)"
            )
        return None if sums is None else sums[off.argmax()].astype(np.float64)
    given = [row.reference for row in rows.rows]
    return np.array(given) if asked == "rows" and all(given) else None
