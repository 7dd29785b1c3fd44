"""The authority and the certificate that the service makes for its webhook, and when each is replaced."""
