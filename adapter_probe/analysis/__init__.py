"""Statistics from predictions to tables: frame in, frame out. Never imports torch."""
