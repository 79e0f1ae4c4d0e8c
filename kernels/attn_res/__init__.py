"""Block attention residuals."""
