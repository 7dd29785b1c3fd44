"""The settings: their declaration, how they are read, and how they are checked."""
