"""The fixtures of these tests, shared with those of `jobs`."""

from random_checkpoints import random_checkpoint  # noqa: F401
