"""Question answering over a real SQLite database."""
