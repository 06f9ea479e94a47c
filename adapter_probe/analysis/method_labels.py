"""Names of methods in figures, tables and summaries; without pandas, for a fast start."""

from __future__ import annotations

METHOD_LABELS = {
    "adapters": "adapters",
    "top_layers": "top k layers",
    "layernorm_only": "LayerNorm only",
    "head_only": "head only",
    "full": "full fine-tuning",
    "tfidf": "TF-IDF, no pretraining",
}
BASELINE = "tfidf"
"""The baseline without pretraining."""
