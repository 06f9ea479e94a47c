"""The model that joins a base and adapters, the methods that say what trains, and plain evaluation."""
