"""Layers of the model."""
