"""What the API server asks when a pod, or a template of pods, is created."""
