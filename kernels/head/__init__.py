"""Log-probability of labels over the vocabulary."""
