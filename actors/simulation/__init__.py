"""A run's controller in virtual time, over sessions and a learner that only take time."""
