"""The anatomy of the model families, the adapter modules, and the model that carries them."""
