"""Train adapters."""
