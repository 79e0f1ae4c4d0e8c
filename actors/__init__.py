"""Processes: controller, actors, buffer, weight channel, run folder, command line."""
