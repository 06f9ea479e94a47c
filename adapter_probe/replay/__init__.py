"""Any transformers model with any tuner that can be switched, by its own modules along the prefix tree."""
