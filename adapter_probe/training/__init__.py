"""Training: settings, loop, objectives, and cached features of frozen layers."""
