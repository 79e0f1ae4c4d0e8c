"""Tokenizers with the structure tokens of XTML."""
