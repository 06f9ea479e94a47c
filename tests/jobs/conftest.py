"""The fixtures of these tests, shared with those of `training` and `probe`."""

from random_checkpoints import random_checkpoint  # noqa: F401
from trainings import regression_task, short_task, train, tree  # noqa: F401
