"""What a run is: schema, groups, experiments."""
