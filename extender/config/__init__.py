"""The settings: their declaration, how they are read, and what can be wrong with them."""
