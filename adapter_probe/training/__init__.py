"""Training: settings, loop and objectives."""
