"""Methods: what is added to a base and what trains, in a form that a checkpoint can remember."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from adapter_probe.errors import ModelError

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "swish", "tanh")


@dataclass(frozen=True)
class Adapters:
    """Bottleneck adapters at both sites of every layer; adapters, LayerNorms and head train.

    Source: Houlsby et al. 2019 (arXiv 1902.00751), section 2.1 and Figure 2.

    Attributes:
        size: the bottleneck's width m, at least 1.
        init_std: std of the normal that weights are drawn from, before truncation at two std. The realised
            std is about 0.88 of it. Must be positive: with both matrices at zero no gradient reaches them.
        activation: the non-linearity between the two projections.
        train_pooler: also train a pooler that the base brings along (the authors' code keeps it frozen).
            A pooler that the base lacks always trains.
    """

    size: int = 64
    init_std: float = 1e-2
    activation: str = "gelu"
    train_pooler: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or isinstance(self.size, bool) or self.size < 1:
            raise ModelError(f"adapter size {self.size!r} is not allowed; give a whole number of at least 1")
        if not 0 < self.init_std < float("inf"):
            raise ModelError(
                f"init_std {self.init_std!r} is not allowed; give a positive number (at 0 both matrices "
                "are zero and neither gets a gradient)"
            )
        if self.activation not in ACTIVATIONS:
            raise ModelError(f"activation {self.activation!r} is not one of {', '.join(ACTIVATIONS)}")

    def to_json(self) -> dict[str, Any]:
        """A plain dict, with the method's name under ``name``."""
        return {"name": "adapters", **asdict(self)}

    @staticmethod
    def from_json(fields: dict[str, Any]) -> Adapters:
        """The inverse of `to_json`.

        Raises:
            ModelError: an unknown method, or a field that is missing, unknown or out of range.
        """
        fields = dict(fields)
        name = fields.pop("name", None)
        if name != "adapters":
            raise ModelError(f"method {name!r} is not one of adapters")
        try:
            return Adapters(**fields)
        except TypeError as error:
            raise ModelError(f"the method's fields {sorted(fields)} do not fit: {error}") from None
