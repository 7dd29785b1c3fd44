"""The admission policies that a cluster is given beside the service, as objects ready to apply. Pure.

`multiarch-extender policies` prints them and `deploy/policies` holds what it prints, so the files cannot disagree with
the code.
"""
