"""What an image is: references, platforms, manifests. Pure."""
