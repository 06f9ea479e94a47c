"""The fixtures of these tests, shared with those of `jobs`."""

from trainings import regression_task, short_task, train, tree  # noqa: F401
