"""What is asked of the service and what it answers: the scheduler verbs and the admission webhook."""
