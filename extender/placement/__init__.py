"""From image facts and nodes to decisions and reasons. Pure."""
