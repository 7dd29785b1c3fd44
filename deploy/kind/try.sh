#!/usr/bin/env bash
# Proves that the cluster of cluster.yaml does its job: a pod whose image lacks the nodes' architecture waits with our
# reason, and one whose image has it runs. Takes images from docker.io. Exit code 0 if so.
set -euo pipefail

here=$(kubectl get nodes -o jsonpath='{.items[0].status.nodeInfo.architecture}')
case $here in
  amd64) foreign=arm64v8/busybox:1.37 other=arm64 ;;
  arm64) foreign=amd64/busybox:1.37 other=amd64 ;;
  *) echo "nodes of $here are not tried" >&2; exit 2 ;;
esac

kubectl delete pod fits --ignore-not-found --wait
kubectl run fits --image=docker.io/library/busybox:1.37 --restart=Never -- sleep 600
kubectl wait pod/fits --for=condition=Ready --timeout=180s

# The first pod of an image may be placed before the image is known: `scheduler.pending: assume` takes it for amd64.
reason="image docker.io/$foreign is built only for linux/$other"
for _ in $(seq 10); do
  kubectl delete pod waits --ignore-not-found --wait
  kubectl run waits --image="docker.io/$foreign" --restart=Never -- sleep 600
  for _ in $(seq 15); do
    said=$(kubectl get pod waits -o jsonpath='{.status.conditions[?(@.type=="PodScheduled")].message}')
    case $said in
      *"$reason"*) echo "waits: $said"; exit 0 ;;
    esac
    test -z "$(kubectl get pod waits -o jsonpath='{.spec.nodeName}')" || break
    sleep 1
  done
done
echo "no pod waits with the reason \"$reason\"; the last one says \"$said\"" >&2
exit 1
