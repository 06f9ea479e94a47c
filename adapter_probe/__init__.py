"""Which adapters earn their keep: ablation studies for parameter-efficient transfer learning."""

__version__ = "0.1.0"
