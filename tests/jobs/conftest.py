"""The fixtures of these tests, shared with those of `training` and `probe`."""

from random_checkpoints import random_checkpoint  # noqa: F401
from trainings import label_task, regression_task, short_task, tag_task, train, tree  # noqa: F401
