"""The fixtures of these tests, shared with those of `jobs`."""

from trainings import label_task, regression_task, short_task, tag_task, train, tree  # noqa: F401
