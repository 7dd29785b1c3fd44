"""What writes, draws, lints and releases; nothing here is shipped or is a test."""
