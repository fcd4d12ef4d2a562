"""Config and batches -> checkpoints."""
