"""What outlives the process: the rows, and the databases that keep them."""
