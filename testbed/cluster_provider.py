"""The interface of a cluster, as benchmarks and end-to-end tests use it, whatever it is made of.

Knows no provider. A cluster is brought up by synchronous calls, and spoken to through `testbed.api_client`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec

from testbed.objects import KubernetesObject
from testbed.processes import Process

OPEN_PATHS = "--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics"
"""A flag of kube-scheduler: its metrics can be read from the first moment on, before it has learnt whom to trust."""
TYPE_META = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}


class ClusterProvider(Protocol):
    """A cluster with real control-plane programs. As a context manager it is up inside the block, and gone after it."""

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig; there once the cluster is up."""

    @property
    def host_address(self) -> str:
        """Where kube-apiserver and kube-scheduler reach a server of this process; it must listen there."""

    @property
    def processes(self) -> Sequence[Process]:
        """The control plane's programs, where they are processes of this machine that can be looked at; else none."""

    def up(self) -> None:
        """Returns when the API is ready and has its default namespace. A failure leaves nothing behind."""

    def down(self) -> None:
        """Ends everything that `up` and `start_scheduler` began; calling it again does nothing."""

    def start_scheduler(
        self, configuration: Mapping[str, Any] | str = "", name: str = "kube-scheduler", arguments: Sequence[str] = ()
    ) -> None:
        """Returns when a kube-scheduler with this KubeSchedulerConfiguration (YAML or mapping) is ready.

        `name` is how it is stopped and its log is called; which pods it takes is the configuration's `schedulerName`.
        """

    def stop_scheduler(self, name: str = "kube-scheduler") -> None:
        """Returns when that scheduler has ended."""

    def scheduler_metrics(self, name: str = "kube-scheduler") -> str:
        """What that scheduler's /metrics says, in the Prometheus text format."""

    def logs(self) -> str:
        """The end of each program's log, for a failure report."""

    def __enter__(self) -> Self:
        """Brings it up."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Takes it down."""


@contextmanager
def running_scheduler(
    cluster: ClusterProvider,
    configuration: Mapping[str, Any] | str = "",
    name: str = "kube-scheduler",
    arguments: Sequence[str] = (),
) -> Iterator[None]:
    """A kube-scheduler is ready inside the block, and has ended after it; arguments as `start_scheduler`."""
    cluster.start_scheduler(configuration, name, arguments)
    try:
        yield
    finally:
        cluster.stop_scheduler(name)


def complete_scheduler_configuration(configuration: Mapping[str, Any] | str, kubeconfig: str) -> KubernetesObject:
    """The configuration with what every run needs: its type, our kubeconfig, and no leader election unless asked for.

    Everything else is as given. kube-scheduler's own `clientConnection.qps` of 50 holds it to about 50 pods a second:
    a benchmark raises it. Raises msgspec.ValidationError for YAML that is no mapping.
    """
    if isinstance(configuration, str):
        configuration = msgspec.yaml.decode(configuration, type=dict[str, Any] | None) or {}
    complete: KubernetesObject = {**TYPE_META, **configuration}
    complete["clientConnection"] = {**complete.get("clientConnection", {}), "kubeconfig": kubeconfig}
    complete["leaderElection"] = {"leaderElect": False, **complete.get("leaderElection", {})}
    return complete
