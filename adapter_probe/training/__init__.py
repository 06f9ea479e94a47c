"""One training: its settings, the loop, the objectives, cached features."""
