"""Tasks that are solved by running Python in a sandbox."""
