"""`serve`: runs the service until a signal stops it."""

import uvloop

import extender.logs  # before all that logs
from extender.cli.options import Assignments, ConfigFile, Context, Kubeconfig, on_cluster
from extender.config.reading import load_config
from extender.service.process import run_service


def serve(
    file: ConfigFile = None, assignments: Assignments = None, kubeconfig: Kubeconfig = "", context: Context = ""
) -> None:
    """Answer kube-scheduler and kube-apiserver until SIGTERM.

    Example: multiarch-extender serve --config /etc/multiarch-extender/config.yaml

    Example: multiarch-extender serve --set cluster=none --set admission.listen=
    """
    config = on_cluster(load_config(file, assignments or ()), kubeconfig, context)
    extender.logs.configure_logs(config.log.level, None)
    uvloop.run(run_service(config))
