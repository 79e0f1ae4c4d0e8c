"""Quantile balancing."""
