"""Models: a base joined with adapters, training methods, and plain evaluation."""
