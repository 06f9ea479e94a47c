"""Open and save checkpoints."""
