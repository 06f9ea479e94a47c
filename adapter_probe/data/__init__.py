"""Load labelled texts from local files and turn them into batches."""
