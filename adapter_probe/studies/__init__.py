"""The objects a user holds: an open model, an ablation, an initialisation sweep, a trade-off."""
