"""Read tasks from local files or the Hugging Face hub, and turn them into batches."""
