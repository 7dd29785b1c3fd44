"""What kube-scheduler asks: filter, prioritize and preempt."""
