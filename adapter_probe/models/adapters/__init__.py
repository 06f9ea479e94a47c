"""Adapters of this project, and those of other libraries in a common representation."""
