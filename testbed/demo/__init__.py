"""The demonstration: its pods and nodes, and the answers that the service gives about them."""
