"""Read tasks from local files or the Hugging Face Hub, and turn them into batches."""
