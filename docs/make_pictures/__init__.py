"""Makes the pictures of the documentation: `python -m docs.make_pictures`, or `make docs-pictures`."""
