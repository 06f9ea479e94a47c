"""The adapters: ours, and those of other libraries in one common form."""
