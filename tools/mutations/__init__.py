"""Breaks what users were promised, one small change at a time, and sees that a test falls: `python -m tools.mutations`.

Before a test goes, this says whether another holds what it held. `promises` has the list. A mutation without a test
that falls, or whose text is no longer in the code, fails the run.
"""
