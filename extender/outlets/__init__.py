"""The requests that the service answers: the scheduler verbs and the admission webhook."""
