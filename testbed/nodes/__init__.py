"""Real nodes on this machine: kubelet, containerd and runc, which pull images and run containers.

`machine.py` says whether a machine can run one, `programs.py` finds the programs, `images.py` builds images that run,
`node.py` runs a node.
"""
