"""Tasks and tools of other libraries as environments; what each needs is an extra."""
