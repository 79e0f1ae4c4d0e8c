"""Engines: what turns sessions into tokens."""
