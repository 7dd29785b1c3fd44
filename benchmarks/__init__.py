"""How fast, how large, how many: one file, one question."""
