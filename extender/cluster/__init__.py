"""The client of the Kubernetes API, and views that list and watch keep current."""
