"""A real Karpenter on this machine, which buys fake nodes for the pods that wait.

`instance_types.py` has what it can buy, `karpenter.py` runs it, `node_pools.py` reads the pools that the documentation
shows.
"""
