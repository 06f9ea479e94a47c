"""The public API's objects: open models, ablations, initialisation sweeps, trade-offs and suites."""
