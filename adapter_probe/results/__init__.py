"""Results on disk: run directories, atomic writes, schemas. Never imports torch."""
