"""The segue command line."""
