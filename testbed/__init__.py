"""A cluster on this machine, and the servers, processes and clocks that tests and benchmarks share."""
