"""Operators: a folder each with reference, public op and README."""
