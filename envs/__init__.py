"""Environments, tools, rewards and the workers that run them."""
