"""Opens everything that one process needs from its configuration, in order, and closes it again."""
