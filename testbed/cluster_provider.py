"""The interface of a cluster that benchmarks and end-to-end tests use, whatever the cluster is made of.

A cluster is brought up by synchronous calls; its API is used through `testbed.api_client`.
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
"""A flag of kube-scheduler: its metrics can be read from the start, before it has loaded whom to trust."""
TYPE_META = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}


class ClusterProvider(Protocol):
    """A cluster with real control-plane programs. As a context manager it is up inside the block and gone after it."""

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, which exists once the cluster is up."""

    @property
    def host_address(self) -> str:
        """The address on which a server of this process must listen for the control plane to reach it."""

    @property
    def processes(self) -> Sequence[Process]:
        """The control plane's programs if they are processes of this machine that can be observed; else empty."""

    def up(self) -> None:
        """Brings the cluster up; returns when the API is ready and has its default namespace.

        Cleans up after a failure.
        """

    def down(self) -> None:
        """Ends everything that `up` and `start_scheduler` started; calling it again does nothing."""

    def start_scheduler(
        self, configuration: Mapping[str, Any] | str = "", name: str = "kube-scheduler", arguments: Sequence[str] = ()
    ) -> None:
        """Starts a kube-scheduler with this KubeSchedulerConfiguration (YAML or mapping); returns when it is ready.

        `name` is what `stop_scheduler` takes and what the log is named after. The configuration's `schedulerName`
        decides which pods it schedules.
        """

    def stop_scheduler(self, name: str = "kube-scheduler") -> None:
        """Stops that scheduler; returns when it has ended."""

    def scheduler_metrics(self, name: str = "kube-scheduler") -> str:
        """Returns that scheduler's /metrics, in the Prometheus text format."""

    def logs(self) -> str:
        """Returns the end of each program's log, for a failure report."""

    def __enter__(self) -> Self:
        """Brings the cluster up."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Takes the cluster down."""


@contextmanager
def running_scheduler(
    cluster: ClusterProvider,
    configuration: Mapping[str, Any] | str = "",
    name: str = "kube-scheduler",
    arguments: Sequence[str] = (),
) -> Iterator[None]:
    """Runs a kube-scheduler: it is ready inside the block and has ended after it. Arguments as in `start_scheduler`."""
    cluster.start_scheduler(configuration, name, arguments)
    try:
        yield
    finally:
        cluster.stop_scheduler(name)


def complete_scheduler_configuration(configuration: Mapping[str, Any] | str, kubeconfig: str) -> KubernetesObject:
    """Returns the configuration with its type, our kubeconfig, and no leader election unless it asks for one.

    Everything else is as given. kube-scheduler's default `clientConnection.qps` of 50 limits it to about 50 pods a
    second; benchmarks raise it. Raises msgspec.ValidationError for YAML that is not a mapping.
    """
    if isinstance(configuration, str):
        configuration = msgspec.yaml.decode(configuration, type=dict[str, Any] | None) or {}
    complete: KubernetesObject = {**TYPE_META, **configuration}
    complete["clientConnection"] = {**complete.get("clientConnection", {}), "kubeconfig": kubeconfig}
    complete["leaderElection"] = {"leaderElect": False, **complete.get("leaderElection", {})}
    return complete
