"""The process that asks registries and credential providers for the service, and the service's client of it."""
