"""From contents, workloads and nodes to findings. Pure: each report calls the functions of `placement` that decide."""
