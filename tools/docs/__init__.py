"""Makes what the documentation shows from code, and reads its pages."""
