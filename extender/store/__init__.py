"""The persistent image cache: its rows, and the databases that keep them."""
