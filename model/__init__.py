"""The sparse linear-attention model and its state."""
