#!/bin/sh
# Process 1 of a node: `node.sh FOLDER CONTAINERD KUBELET ARGUMENTS…` runs containerd and kubelet until one of them ends.
# It runs in mount and PID namespaces of its own, so that whatever is mounted and started here ends with it.
set -eu
folder=$1 containerd=$2
shift 2
mount -t proc proc /proc
if [ "${POD_NETWORK:-}" ]; then # in a network namespace of its own
  ip link set lo up
  ip link add cni0 type bridge
  ip address add 10.88.0.1/16 dev cni0
  ip address add 10.0.0.1/32 dev cni0 # of the Service kubernetes
  ip link set cni0 up
fi
# kubelet wants these settings of the machine to have certain values: it is shown files that say so.
find "$folder/sys" -type f | while read -r file; do
  mount --bind "$file" "/proc/sys${file#"$folder/sys"}"
done
# kubelet and containerd keep their files here, some of them at paths that cannot be set. The machine's are hidden.
for path in /run /var/log /var/lib; do
  mount -t tmpfs -o mode=755 tmpfs "$path"
done
"$containerd" --config "$folder/containerd.toml" >"$folder/containerd.log" 2>&1 &
until [ -S /run/containerd/containerd.sock ]; do
  kill -0 $! # ends this script if containerd has ended
  sleep 0.05
done
# Not by exec: this shell takes the exit statuses of shims whose parents have ended.
"$@" &
wait $!
