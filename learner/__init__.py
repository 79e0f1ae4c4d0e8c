"""Segmented exact learning: schedule, sweeps, losses, balance, optimiser backend."""
