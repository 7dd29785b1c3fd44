"""Makes the pictures of the documentation: `python -m tools.docs.pictures`, or `make docs-pictures`."""
