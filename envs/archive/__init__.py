"""Questions at the end of a long archive that is read page by page."""
