"""Tags that have moved to other platforms than the pods that use them need."""
