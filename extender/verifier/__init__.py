"""Finds the program that an image starts and the machine that it is for. Pure: no I/O, clock, metric or logger."""
