"""What figures, tables and summaries call each method; without pandas, for commands that start at once."""

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
"""The method without pretraining."""
