"""Trajectories, sessions, engines, chat and the agent loop."""
