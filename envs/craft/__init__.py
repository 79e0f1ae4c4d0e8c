"""Making a thing from parts that a recipe book names."""
