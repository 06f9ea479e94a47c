"""Execution of many trials or shards: processes on this machine, or a SLURM cluster."""
