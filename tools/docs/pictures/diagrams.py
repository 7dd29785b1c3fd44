"""The diagrams of the documentation, as declarations. A picture and the words of its page must agree."""

from tools.docs.pictures.diagram import Arrow, Box, Diagram, Frame, Kind

OVERVIEW = Diagram(
    name="overview",
    title="Registries and the API server feed one decision; kube-scheduler, kube-apiserver and you ask for it.",
    boxes=[
        Box("registries", 0, 0, ["Image registries", "platforms of images"], rows=2),
        Box("api", 0, 2, ["Kubernetes API", "platforms of nodes"], rows=3),
        Box("decision", 1, 0, ["One decision", "for a pod and a node:", "yes, no, unresolved"], Kind.OURS, rows=5),
        Box("filter", 2, 0, ["filter, preempt", "drop unfit nodes"], Kind.OURS),
        Box("prioritize", 2, 1, ["prioritize", "boost arm64 nodes"], Kind.OURS),
        Box("admission", 2, 2, ["webhook", "tolerations, affinity"], Kind.OURS),
        Box("gate", 2, 3, ["gate", "hold until known"], Kind.OURS),
        Box("commands", 2, 4, ["commands", "audit, fix, explain"], Kind.OURS),
        Box("scheduler", 3, 0, ["kube-scheduler", "binds the pod"], rows=2),
        Box("apiserver", 3, 2, ["kube-apiserver", "creates the pod"], rows=2),
        Box("you", 3, 4, ["You, your pipelines", "change manifests"]),
    ],
    arrows=[
        Arrow("registries", "decision"),
        Arrow("api", "decision"),
        Arrow("decision", "filter"),
        Arrow("decision", "prioritize"),
        Arrow("decision", "admission"),
        Arrow("decision", "gate"),
        Arrow("decision", "commands"),
        Arrow("filter", "scheduler", both=True),
        Arrow("prioritize", "scheduler", both=True),
        Arrow("admission", "apiserver", both=True),
        Arrow("gate", "apiserver", both=True),
        Arrow("commands", "you", both=True),
    ],
    frames=[Frame("multiarch-extender", ["decision", "filter", "prioritize", "admission", "gate", "commands"])],
)

DECISION = Diagram(
    name="decision",
    title="No if an image is known not to run on the node's platform, yes if all are known to; else a setting decides.",
    boxes=[
        Box("images", 0, 0, ["Images of the pod", "platforms of each,", "or not known yet"]),
        Box("node", 0, 1, ["Platform of the node", "such as linux/arm64"]),
        Box("wrong", 1, 0, ["Is an image known", "not to run there?"], Kind.OURS, rows=2),
        Box("all", 2, 0, ["Are all known", "to run there?"], Kind.OURS, rows=2),
        Box("unresolved", 3, 0, ["unresolved", "a setting decides", "for each image"], Kind.MAYBE, rows=2),
        Box("no", 1, 2, ["no", "refused, and the", "image named as reason"], Kind.NO),
        Box("yes", 2, 2, ["yes", "kept, and boosted", "if multi-arch"], Kind.YES),
        Box("retry", 3, 2, ["retry", "error, asked again soon"], Kind.MAYBE),
        Box("assume", 3, 2.8, ["assume", "runs where you say"], Kind.MAYBE),
        Box("pass", 3, 3.6, ["pass", "the node stays"], Kind.MAYBE),
    ],
    arrows=[
        Arrow("images", "wrong"),
        Arrow("node", "wrong"),
        Arrow("wrong", "all", "no"),
        Arrow("wrong", "no", "yes"),
        Arrow("all", "unresolved", "no"),
        Arrow("all", "yes", "yes"),
        Arrow("unresolved", "retry"),
    ],
)

SECOND_SCHEDULER = Diagram(
    name="second-scheduler",
    title="kube-scheduler and the service share a pod and talk over loopback; the API server calls the webhook.",
    boxes=[
        Box("apiserver", 0, 0, ["kube-apiserver", "pods, nodes, secrets"], rows=2),
        Box("scheduler", 1.4, 0, ["kube-scheduler", "of your version"]),
        Box("service", 1.4, 1, ["multiarch-extender", "verbs and webhook"], Kind.OURS),
        Box("registries", 2.65, 1, ["Image registries", "manifests only"]),
        Box("default", 0, 2, ["Default scheduler", "other pods, unchanged"]),
    ],
    arrows=[
        Arrow("apiserver", "scheduler", "pods, bindings", both=True),
        Arrow("scheduler", "service", "loopback"),
        Arrow("apiserver", "service", "AdmissionReview", shift=-14),
        Arrow("service", "apiserver", "watch nodes", shift=14, label_shift=22),
        Arrow("service", "registries", "HEAD, GET"),
        Arrow("default", "apiserver", both=True),
    ],
    frames=[Frame("pod, two replicas", ["scheduler", "service"])],
)

DEFAULT_SCHEDULER = Diagram(
    name="default-scheduler",
    title="On each control-plane node kube-scheduler asks the service over loopback; the webhook runs in its own pods.",
    boxes=[
        Box("apiserver", 0, 0, ["kube-apiserver", "pods, nodes, secrets"], rows=3.4),
        Box("scheduler", 1.4, 0, ["kube-scheduler", "of the cluster"]),
        Box("service", 1.4, 1, ["multiarch-extender", "DaemonSet, verbs"], Kind.OURS),
        Box("webhook", 1.4, 2.4, ["multiarch-webhook", "Deployment, webhook"], Kind.OURS),
        Box("registries", 2.65, 1, ["Image registries", "manifests only"], rows=2.4),
    ],
    arrows=[
        Arrow("apiserver", "scheduler", "pods, bindings", both=True),
        Arrow("scheduler", "service", "loopback"),
        Arrow("service", "apiserver", "watch nodes"),
        Arrow("service", "registries", "HEAD, GET"),
        Arrow("apiserver", "webhook", "AdmissionReview"),
        Arrow("webhook", "registries", "HEAD, GET"),
    ],
    frames=[Frame("control-plane node", ["scheduler", "service"])],
)

WEBHOOK_ONLY = Diagram(
    name="webhook-only",
    title="The API server asks the webhook when a pod is created; schedulers and autoscalers read what it wrote.",
    boxes=[
        Box("author", 0, 0, ["You, controllers", "create pods"]),
        Box("apiserver", 1.1, 0, ["kube-apiserver", "keeps pods"], rows=2),
        Box("webhook", 2.5, 0, ["multiarch-webhook", "two replicas"], Kind.OURS),
        Box("registries", 2.5, 1, ["Image registries", "manifests only"]),
        Box("scheduler", 0, 1, ["Any scheduler", "reads the affinity"]),
        Box("autoscaler", 1.1, 2, ["Autoscaler", "reads the affinity"]),
    ],
    arrows=[
        Arrow("author", "apiserver", "pod"),
        Arrow("apiserver", "webhook", "AdmissionReview", shift=-12),
        Arrow("webhook", "apiserver", "patch", shift=12, label_shift=22),
        Arrow("webhook", "registries", "HEAD, GET"),
        Arrow("apiserver", "scheduler", "pod"),
        Arrow("apiserver", "autoscaler"),
    ],
)

ROOMS = Diagram(
    name="rooms",
    title="The rooms of the package in layers; each imports from the layers below it.",
    boxes=[
        Box("cli", 0, 0, ["cli", "one file per command"], Kind.OURS, columns=3),
        Box("service", 0, 0.9, ["service", "one process from a configuration"], Kind.OURS, columns=3),
        Box("features", 0, 1.8, ["scheduler, admission, gates", "a feature each"], Kind.OURS, columns=3),
        Box("server", 0, 2.7, ["server", "HTTP, TLS"], Kind.MAYBE),
        Box("cluster", 2, 2.7, ["cluster", "Kubernetes API"], Kind.MAYBE),
        Box("resolver", 1, 2.7, ["resolver", "cache and lookups"], Kind.MAYBE),
        Box("store", 0, 3.6, ["store", "SQLite, Redis"], Kind.MAYBE, columns=1.5),
        Box("fetcher", 1.5, 3.6, ["fetcher, registry", "a process of its own"], Kind.MAYBE, columns=1.5),
        Box("credentials", 0, 4.5, ["credentials", "who may pull what"], Kind.MAYBE, columns=3),
        Box("placement", 0, 5.7, ["placement", "the decision"], Kind.YES, columns=3),
        Box("images", 0, 6.6, ["images", "what an image is"], Kind.YES, columns=1.5),
        Box("kubernetes", 1.5, 6.6, ["kubernetes", "fields on the wire"], Kind.YES, columns=1.5),
    ],
    arrows=[
        Arrow("cli", "service"),
        Arrow("service", "features"),
        Arrow("features", "server"),
        Arrow("features", "cluster"),
        Arrow("features", "resolver"),
        Arrow("resolver", "store"),
        Arrow("fetcher", "credentials"),
        Arrow("credentials", "placement", shift=120),
        Arrow("placement", "images"),
        Arrow("placement", "kubernetes"),
    ],
    frames=[Frame("pure: no await, clock, log or metric", ["placement", "images", "kubernetes"])],
)

DIAGRAMS = (OVERVIEW, DECISION, SECOND_SCHEDULER, DEFAULT_SCHEDULER, WEBHOOK_ONLY, ROOMS)
