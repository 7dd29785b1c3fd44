"""One process from a configuration: what is opened, in which order, and how it is closed."""
