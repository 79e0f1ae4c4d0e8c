"""Causal depthwise short convolution."""
