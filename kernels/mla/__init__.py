"""Gated NoPE multi-head latent attention."""
