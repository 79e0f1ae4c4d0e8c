"""SiTU-GLU activation."""
