"""The certificate that the service makes for its webhook, and when it is replaced."""
