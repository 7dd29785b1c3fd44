"""The list: what users were promised, and one change each that breaks it."""

from tools.mutations.mutation import Mutation

_UNIT, _INTEGRATION = "tests/unit", "tests/integration"


def _broken(file: str, tests: str, *changes: tuple[str, str, str]) -> tuple[Mutation, ...]:
    """Mutations of one file, each as promise, text, and what stands in its place; `tests` has a space between two."""
    return tuple(Mutation(promise, file, old, new, tuple(tests.split())) for promise, old, new in changes)


def _tests(room: str, *names: str) -> str:
    """These files of tests in one folder."""
    return " ".join(f"tests/{room}/test_{name}.py" for name in names)


PLATFORMS = _broken(
    "extender/images/platform.py",
    f"{_UNIT}/images/test_platform.py {_UNIT}/images/test_config.py",
    (
        "an image for one operating system runs on no node of another",
        "    if node.os != required.os:\n        return False\n",
        "",
    ),
    (
        "a node of an older arm does not run what is built for a later one",
        "_RUNS = {variant: frozenset(_ARM[: index + 1])",
        "_RUNS = {variant: frozenset(_ARM[index:])",
    ),
    (
        "an image for 386 runs on amd64 only where the setting says so",
        "return compatibility.run_386_on_amd64 and not required.variant",
        "return not required.variant",
    ),
    (
        "an index of a level of amd64 runs nowhere",
        "        return not required.variant\n",
        "        return True\n",
    ),
    ("aarch64 with v8 is arm64, as in containerd", '"arm64": {"8": "", "v8": "", ', '"arm64": {"8": "", '),
    (
        "a word that is no valid label value is no part of a platform",
        "if not (_WORD.fullmatch(os) and _WORD.fullmatch(architecture) and",
        "if not (_WORD.match(os) and _WORD.match(architecture) and",
    ),
)

DECISION = _broken(
    "extender/placement/scheduling.py",
    " ".join(f"{_UNIT}/placement/test_{name}.py" for name in ("scheduling", "scheduling_properties")),
    ("retry beats assume", "if choice is Choice.ASSUME and not self.retried\n", "if choice is Choice.ASSUME\n"),
    (
        "a node on which a known image does not run is refused, whatever else is not known",
        "            case Fit.NO:\n                return Verdict.NO\n",
        "            case Fit.NO:\n                return Verdict.RETRY if self.retried else Verdict.NO\n",
    ),
    (
        "a pod that is only observed is answered as it was asked",
        "DecidedAnswer(decided if decision.enforced else args.echo(), decided, numbers",
        "DecidedAnswer(decided, decided, numbers",
    ),
    (
        "an unresolved image earns no score",
        "return score if score and self.verdict(platform) is Verdict.YES else 0",
        "return score",
    ),
    (
        "no pod is evicted while an image is to be retried",
        "if not decision.retried and verdicts[name] not in REFUSED",
        "if verdicts[name] not in REFUSED",
    ),
    (
        "no pod is evicted on a node that filter would refuse",
        "if not decision.retried and verdicts[name] not in REFUSED",
        "if not decision.retried",
    ),
    (
        "a node that states no platform passes",
        "        if platform is None:\n            return Verdict.UNSTATED\n",
        "        if platform is None:\n            return Verdict.NO\n",
    ),
    (
        "a node that is not in view may be the first of its platform",
        "{self.verdict(platform) for platform in platforms.union(USUAL)}",
        "{self.verdict(platform) for platform in platforms}",
    ),
    (
        "a strict preference leaves out only nodes that are not refused",
        "verdict: names if verdict in REFUSED else [name for name in names if name in best]",
        "verdict: [name for name in names if name in best]",
    ),
    (
        "what the operator assumes is matched as an image's own platforms are",
        "runs = runs_on(self.policy.assume, platform, self.policy.compatibility)",
        "runs = platform in self.policy.assume",
    ),
)

FACTS = _broken(
    "extender/placement/facts.py",
    _tests("unit/placement", "facts", "scheduling", "asked_platforms", "bounds"),
    (
        "a pod of data alone runs on no node of another system than its own",
        "elif fact.os and fact.os != platform.os:",
        "elif not platform.os:",
    ),
    (
        "the image of a registry that does not answer is waited for",
        "if may_be_pending and failure.cause in RETRYABLE:",
        "if may_be_pending and failure.cause in RETRYABLE - {Cause.UNAVAILABLE}:",
    ),
    (
        "an init container's image counts",
        "containers = (*containers, *(spec.init_containers or ()), *(spec.ephemeral_containers or ()))",
        "containers = (*containers, *(spec.ephemeral_containers or ()))",
    ),
    (
        "an ephemeral container's image counts",
        "containers = (*containers, *(spec.init_containers or ()), *(spec.ephemeral_containers or ()))",
        "containers = (*containers, *(spec.init_containers or ()))",
    ),
    (
        "a pod of too many images costs no lookup",
        "if len(containers) + len(mounted) > MOST_IMAGES:",
        "if len(containers) > MOST_IMAGES:",
    ),
    (
        "a failure that may end is pending only until the pod's limit",
        "if may_be_pending and failure.cause in RETRYABLE:",
        "if failure.cause in RETRYABLE:",
    ),
    (
        "an artifact as a data image is not taken to run anywhere",
        "    if image.role is Role.DATA and content.kind is Kind.ARTIFACT:\n        return _unreadable(content)\n",
        "",
    ),
    (
        "a script from a ConfigMap needs the image's shell",
        "return Role.CONTAINER if holds_texts else Role.DATA",
        "return Role.DATA",
    ),
    (
        "of an image that is never pulled the node's copy decides",
        'if image.pull_policy == "Never":',
        'if image.pull_policy == "never":',
    ),
)

REASONS = _broken(
    "extender/placement/reasons.py",
    f"{_UNIT}/placement/test_reasons.py {_UNIT}/placement/test_scheduling_properties.py",
    (
        "every refused node is refused by one of the images that are named",
        "if not any(other < platforms for other in sets)}",
        "if not any(other > platforms for other in sets)}",
    ),
)

GATE = _broken(
    "extender/placement/gate.py",
    _tests("unit/placement", "gate", "mutation"),
    (
        "no pod is held for an image that waiting cannot make known",
        "if choice is UnknownImages.GATE and (expired or fact.cause not in _MAY_END):",
        "if choice is UnknownImages.GATE and expired:",
    ),
    (
        "no pod is held for longer than the limit",
        "if choice is UnknownImages.GATE and (expired or fact.cause not in _MAY_END):",
        "if choice is UnknownImages.GATE and fact.cause not in _MAY_END:",
    ),
    (
        "a pod of the cluster's own critical classes is never held",
        'frozenset({"system-node-critical", "system-cluster-critical"})',
        'frozenset({"system-node-critical"})',
    ),
    (
        "the gates of others stay",
        'left = [gate for gate in cast("list[Json]", spec["schedulingGates"]) if not _is_ours(gate)]',
        "left: list[Json] = []",
    ),
    (
        "a pod that has the gate already is given no second one",
        "    if not is_gated(document):\n        spec[",
        "    if True:\n        spec[",
    ),
    (
        "a patch takes our gate alone",
        'gates: list[Json] = [{"$patch": "delete", "name": GATE}]',
        'gates: list[Json] = [{"$patch": "replace"}]',
    ),
)

UNGATING = _broken(
    "extender/placement/ungating.py",
    _tests("unit/placement", "gate"),
    (
        "a pod that changed since it was read is not patched",
        "metadata.uid, version=metadata.resource_version, annotations",
        "metadata.uid, annotations",
    ),
    ("a pod of another uid is not patched", "encode_ungating(metadata.uid, version", "encode_ungating(None, version"),
    (
        "what was added is recorded, so that it can be taken back",
        "ADDED: added.record if is_recorded else None,",
        "ADDED: None,",
    ),
)

AFFINITY = _broken(
    "extender/placement/affinity.py",
    " ".join(f"{_UNIT}/placement/test_{name}.py" for name in ("affinity", "decision_fuzz")),
    (
        "a system is written only where one is left out",
        "if not cluster or not systems.issuperset(node.os for node in possible):",
        "if True:",
    ),
    (
        "what keeps the pod off no node is not written",
        "elif wrong is None or _allows(present, wrong):",
        "else:",
    ),
    (
        "a pod of several systems that share no architectures is kept to one",
        "if any(node.os in systems and node.architecture in architectures for node in possible - nodes):",
        "if False:",
    ),
    (
        "a term that allows none of the image's nodes is kept from all",
        "added = (NO_NODE,) if may_match else ()",
        "added = ()",
    ),
    (
        "a pod whose author names architectures is given no preference",
        "    if any(LABELS.get(item.key) == ARCHITECTURE for item in named):\n        return ()\n",
        "",
    ),
    ("a weight is one that an API server takes", "min(points * 10, _HIGHEST_WEIGHT)", "points * 11"),
    (
        "an empty term matches nothing and is left alone",
        "if demands.terms is not None and not is_open(term):",
        "if False:",
    ),
)

TOLERATIONS = _broken(
    "extender/placement/tolerations.py",
    _tests("unit/placement", "tolerations", "mutation"),
    (
        "a toleration of one value does not cover one of all values",
        'if other.operator not in (None, "", "Equal") and existing.operator != "Exists":',
        "if False:",
    ),
    (
        "a toleration that an API server refuses is refused in the settings",
        (
            '        if not self.key and self.operator != "Exists":\n'
            '            raise ValueError("without a key the operator must be Exists")\n'
        ),
        "",
    ),
)

RELAXING = _broken(
    "extender/placement/relaxing.py",
    _tests("unit/placement", "relaxing"),
    (
        "a constraint on architecture stays if an image lacks a platform that its removal opens",
        "if any(fit(facts, target, self._compatibility) is not Fit.YES for target in opened):",
        "if False:",
    ),
    (
        "nothing is taken out while an image is not known",
        "        if any(map(is_unresolved, facts)):\n            return Relaxation()\n",
        "",
    ),
    (
        "nothing is taken out of terms of which one is enough and that differ",
        "if len(bare) > 1 or any(set(each) != set(found[0]) for each in found):",
        "if False:",
    ),
    (
        "no term is left without a requirement, as it would match no node",
        "if not any(term[_EXPRESSIONS] for term in written):",
        "if False:",
    ),
    (
        "a toleration stays that the webhook does not give again",
        "if any(covers(each, own[index]) for each in given)]",
        "]",
    ),
    ("a DaemonSet keeps its tolerations, since its pods get none", "given = () if is_daemon_set else ", "given = "),
    (
        "requirements on other labels stay",
        "return LABELS.get(requirement.key) == ARCHITECTURE and not all(",
        "return not all(",
    ),
)

UNNEEDED = _broken(
    "extender/reports/workload_judgement.py",
    _tests("unit/reports", "audit"),
    (
        "audit calls no constraint unneeded whose removal frees no node",
        "if taking or platform not in self.nodes:",
        "if True:",
    ),
    (
        "audit counts the nodes that pods reach with the tolerations that the webhook gives them",
        "        demands = found.demands\n",
        "        demands = judged.demands\n",
    ),
    (
        "audit takes no node for another that has other taints",
        "kinds.setdefault((node.spec, *map(labels.get, keys)), [])",
        "kinds.setdefault((None, *map(labels.get, keys)), [])",
    ),
)

EDITING = _broken(
    "extender/manifests/editing.py",
    _tests("unit/manifests", "editing"),
    (
        "what is removed from a manifest takes its own lines alone",
        "if (gone := _missing(before, after)) is not None:",
        "if (gone := _missing([], after)) is not None:",
    ),
)

LOGINS = _broken(
    "extender/credentials/logins.py",
    f"{_UNIT}/credentials " + _tests("integration/credentials", "kubelet_plugins"),
    (
        "a login for one port is not sent to another",
        "return self.port == port and path.startswith(self.path) and _matches_host(self.host, host)",
        "return path.startswith(self.path) and _matches_host(self.host, host)",
    ),
    (
        "the most specific login is tried first",
        "keyed.sort(key=itemgetter(0), reverse=True)",
        "keyed.sort(key=itemgetter(0))",
    ),
    (
        "no password is shown where a login is printed",
        'return f"Login(pattern={self.pattern!r})"',
        'return f"Login(pattern={self.pattern!r}, {self.password})"',
    ),
    (
        "Docker Hub's login is stored under its oldest name",
        "if not found and is_on_default_registry(repository):\n            return tuple(self.defaults())\n",
        "if False:\n            return tuple(self.defaults())\n",
    ),
)

KEYRING = _broken(
    "extender/credentials/keyring.py",
    f"{_UNIT}/credentials {_INTEGRATION}/service/test_tenants.py",
    (
        "no password is shown where a credential is printed",
        'return f"Credential(id={self.id!r})"',
        'return f"Credential(id={self.id!r}, {self.password})"',
    ),
)

ADDRESSES = _broken(
    "extender/registry/addresses.py",
    f"{_UNIT}/registry/test_addresses.py {_INTEGRATION}/registry/test_egress.py",
    ("the metadata services of clouds are not asked", '"169.254.0.0/16",', '"169.255.0.0/16",'),
    (
        "an IPv6 address is judged by the IPv4 addresses inside",
        "return all(map(self._is_open, inside)) if inside else self._is_open_itself(address)",
        "return self._is_open_itself(address)",
    ),
    (
        "an address in another spelling is the same address",
        "            return IPv4Address(socket.inet_aton(host))\n",
        "            return None\n",
    ),
    (
        "what is denied is not asked, though it is allowed too",
        "        if _matches(self._deny, host, port):\n            raise _denied(host)\n        if not",
        "        if not",
    ),
    (
        "a redirect to a host that is denied is not followed",
        "        if _matches(self._deny, host, port):\n            raise _denied(host)\n        if self._is_named",
        "        if self._is_named",
    ),
    (
        "a name of this host is not asked",
        "        if _INNER_NAME.fullmatch(host):\n            raise inner_refusal(host)\n",
        "",
    ),
    (
        "private addresses are asked only where the setting says so",
        "            return self._private_addresses\n",
        "            return True\n",
    ),
    ("`*` alone names no host, so that all hosts are judged by their address", 'host.strip("*.-_:") != ""', "True"),
)

AUTHENTICATION = _broken(
    "extender/registry/auth.py",
    f"{_UNIT}/registry/test_auth.py " + _tests("integration/registry", "auth", "mirrors"),
    (
        "a redirect to another origin carries no credential",
        "hop = _Hop(url, endpoint, credential if is_endpoint else ANONYMOUS)",
        "hop = _Hop(url, endpoint, credential)",
    ),
    (
        "a redirect of a token server carries no credential to another origin",
        "shown = login if there.origin() == url.origin() else {}",
        "shown = login",
    ),
    (
        "a token of one credential is not used for another",
        "        hop.credential.id,\n    )",
        '        CredentialId("any"),\n    )',
    ),
    (
        "a redirect to another origin carries none of the endpoint's headers",
        "headers = CIMultiDict(endpoint.headers if is_endpoint else ())",
        "headers = CIMultiDict(endpoint.headers)",
    ),
    ("a token is asked for again before it ends", "if token and self._clock() < token.renew_at:", "if token:"),
    (
        "a credential that the token server refuses is denied, and not unavailable",
        "        if response.status in (401, 403):\n            return RegistryDenied",
        "        if response.status == 401:\n            return RegistryDenied",
    ),
)

RESTS = _broken(
    "extender/registry/rests.py",
    _tests("unit/registry", "mirror_failover"),
    (
        "a host rests only when several repositories cannot be reached",
        "return len(self.unreached) >= _REPOSITORIES",
        "return len(self.unreached) >= 1",
    ),
    (
        "a host that has answered lately does not rest",
        "if isinstance(error, RegistryUnreachable) and not has_answered_lately and not",
        "if isinstance(error, RegistryUnreachable) and not",
    ),
    (
        "an account that is throttled is not asked before its time",
        "if throttled and (seconds := throttled.wait_seconds()):",
        "if throttled and (seconds := 0 * throttled.wait_seconds()):",
    ),
    (
        "a 429 rests the account alone",
        "    return (root, endpoint.mirror_of, None), (root, endpoint.mirror_of, account)",
        "    return (root, endpoint.mirror_of, None), (root, endpoint.mirror_of, None)",
    ),
)

CONTENT = _broken(
    "extender/registry/registry_client.py",
    f"{_INTEGRATION}/registry",
    (
        "bytes that do not have the digest are not believed",
        "if digest and not matches_digest(response.body, digest):",
        "if False and digest:",
    ),
    (
        "the digest of a tag is that of the bytes, not what a header says",
        "digest = reference.digest or digest_of(body)",
        'digest = response.headers.get("Docker-Content-Digest") or reference.digest or digest_of(body)',
    ),
)

FAILURES = _broken(
    "extender/images/failures.py",
    _tests("unit/images", "failure_words") + " " + _tests("unit/fetcher", "looker"),
    (
        "of several failures the one that tells most is told",
        "if _TELLING.index(failure.cause) > _TELLING.index(result.cause):",
        "if _TELLING.index(failure.cause) < _TELLING.index(result.cause):",
    ),
    ("a registry's own words about a refusal are shown", "            if not error.said:\n", "            if True:\n"),
)

LOOKER = _broken(
    "extender/fetcher/looker.py",
    _tests("unit/fetcher", "looker") + " " + _tests("integration/service", "tenants"),
    (
        "the next credential is tried only where that can help",
        "                    if not depends_on_credential(failure):\n",
        "                    if False:\n",
    ),
    ("what opened the image before is tried first", "        sources.sort(key=lambda source: source != first)\n", ""),
    ("no credential is tried twice", "                        yielded.add(login)\n", ""),
)

HELD_FAILURES = _broken(
    "extender/resolver/failures.py",
    _tests("unit/resolver", "freshness"),
    (
        "an image that is missing is asked for again soon, so that one that is pushed late is found",
        "return _SOON_MISSING_SECONDS if in_a_row <= _SOON_TIMES else _MISSING_SECONDS",
        "return _MISSING_SECONDS",
    ),
    (
        "a Retry-After of the registry is kept to",
        "return _BACKOFF.seconds(in_a_row, random, retry_after) if fixed is None else fixed",
        "return _BACKOFF.seconds(in_a_row, random, None) if fixed is None else fixed",
    ),
)

_RESOLVER = _tests("unit/resolver", "credentials", "freshness", "lookups", "image_cache")

LOOKUPS = _broken(
    "extender/resolver/lookups.py",
    _RESOLVER,
    (
        "who was denied an image is not told of it any more",
        "            self._cache.revoke(target, credential_id, self._clock())\n",
        "            pass\n",
    ),
    (
        "a corrected secret is used in the lookup that was denied",
        "        for refresh in (False, True):\n",
        "        for refresh in (False,):\n",
    ),
    (
        "a name that was never known costs one GET where a HEAD saves nothing",
        "by_head = bool(rows or known or self._head_first) and",
        "by_head =",
    ),
)

UNREAD_SECRETS = _broken(
    "extender/resolver/resolver.py",
    _RESOLVER,
    (
        "that all credentials are denied tells nothing while a secret cannot be read",
        "        return UNREAD if keyring.is_unread() else failure\n",
        "        return failure\n",
    ),
)

IMAGE_CACHE = _broken(
    "extender/resolver/image_cache.py",
    _RESOLVER,
    (
        "the right to know a private digest ends like a tag's meaning",
        "                credential_id == ANONYMOUS.id\n                and not",
        "                not",
    ),
    (
        "a denial has the credential's other names in the repository confirmed",
        "        self._denied_at[target.repository, credential_id] = at\n",
        "",
    ),
    (
        "the tag latest is fresh for a minute",
        'is_often = query.always or target.name == "latest"',
        "is_often = query.always",
    ),
    (
        "what a registry has denied comes back from no store",
        "if not self._is_denied(key, known) and (before is None",
        "if (before is None",
    ),
)

SHOWN_BYTES = _broken(
    "extender/fetcher/looker.py",
    _tests("unit/resolver", "lookups"),
    (
        "a repository that states a digest gives its content only once it has shown the bytes",
        'image = self._described.get((reference.repository, stated or ""))',
        "image = next((row for (_, key), row in self._described.items() if key == stated), None)",
    ),
)

PERSISTENCE = _broken(
    "extender/resolver/persistence.py",
    f"{_tests('unit/resolver', 'stored_answers')} {_tests('integration/store', 'restart')}",
    (
        "what a login has opened is kept only under a key of the operator's",
        "return self._persist_private or credential_id == ANONYMOUS.id",
        "return True",
    ),
    ("a store that fails is left alone for a while", "        breaker.record_failure()\n", ""),
)

FETCHER = (
    *_broken(
        "extender/fetcher/fetcher_client.py",
        _tests("unit/fetcher", "fetcher_client"),
        (
            "what was asked for when a fetcher ended is asked for again at once",
            "                deaths += 1\n",
            "                deaths = _DEATHS\n",
        ),
        (
            "an image that has ended fetchers ends no more that others use",
            "        self._alone_until.put(image, time.monotonic() + _SUSPECTED_SECONDS)\n",
            "",
        ),
    ),
    *_broken(
        "extender/fetcher/messages.py",
        _tests("unit/fetcher", "messages"),
        (
            "four bytes make nobody wait for four gigabytes",
            "            if length > MOST_BYTES:\n",
            "            if False:\n",
        ),
    ),
)

VERIFIER = (
    *_broken(
        "extender/verifier/start_program.py",
        _tests("unit/verifier", "hostile_layers"),
        (
            "a script is for the machine that its interpreter is for",
            "            verdict = self._follow(found, left - 1)\n",
            "            verdict = StartVerdict(PlatformState.VERIFIED, _path_of(found), '')\n",
        ),
        (
            "a Windows node that emulates a program is not refused it",
            "    if emulated or may_run(head.architecture, platform.architecture):\n",
            "    if may_run(head.architecture, platform.architecture):\n",
        ),
    ),
    *_broken(
        "extender/verifier/image_verifier.py",
        _tests("unit/verifier", "hostile_layers"),
        (
            "nothing is refuted whose bytes do not have their digest",
            "    if not blob.has_digest():\n",
            "    if False:\n",
        ),
        (
            "of an image's layers no more is read than the bound",
            "if self._read + end - start > self._bounds.read_bytes:",
            "if False:",
        ),
    ),
)

LISTENERS = _broken(
    "extender/server/http.py",
    _tests("integration/server", "limits", "connection"),
    (
        "a body without a stated length is read up to the limit",
        "                    if size > limit_bytes:\n                        return too_large\n",
        "",
    ),
    (
        "a body that states too great a length is refused unread",
        "        if (request.content_length or 0) > limit_bytes:\n            return too_large\n",
        "",
    ),
    (
        "all requests without an answer take bounded memory",
        "while self.pending_bytes > self.limits.pending_bytes:",
        "while False:",
    ),
    ("a body that is late is told so", "            self.refuse(_LATE)\n", "            self.abort()\n"),
)

FRAMES = _broken(
    "extender/server/http.py",
    _tests("fuzz", "smuggling") + " " + _tests("integration/server", "connection"),
    (
        "what comes behind a request is no part of its body",
        "if self._missing_bytes or self._post is None:  # something came behind it",
        "if self._post is None:",
    ),
    (
        "what comes before an answer ends the connection with it",
        "            self._has_more = True\n",
        "            pass\n",
    ),
)

TLS = _broken(
    "extender/server/tls.py",
    _tests("integration/server", "tls"),
    (
        "who has no client certificate is not let in where one is asked for",
        "context.verify_mode = ssl.CERT_REQUIRED",
        "context.verify_mode = ssl.CERT_OPTIONAL",
    ),
    (
        "new connections get the certificate of the new files",
        "        connection.context = self.files.value\n",
        "        pass\n",
    ),
)

OPERATIONS = _broken(
    "extender/server/operations.py",
    _tests("integration/server", "operations"),
    (
        "what is only seen makes no replica unready",
        "failed = not all(health.ok for health in found.values())",
        "failed = not all(check().ok for check in (*checks.values(), *seen.values()))",
    ),
    ("scrapes without end take little of the event loop", "        if self._left >= 1:\n", "        if True:\n"),
)

LEADER = _broken(
    "extender/cluster/leader_election.py",
    _tests("integration/cluster", "leader_election"),
    (
        "a lease is taken over only when it has ended",
        "return self._clock() >= self._seen_at + _duration_seconds(lease)",
        "return True",
    ),
    (
        "leadership counts from before the request was sent",
        "self._leads_until = started_at + STEP_DOWN_SECONDS",
        "self._leads_until = self._clock() + STEP_DOWN_SECONDS",
    ),
    (
        "a replica that ends gives the lease up",
        "        finally:\n            await self._release()\n",
        "        finally:\n            pass\n",
    ),
)

TURNS = _broken(
    "extender/turns.py",
    f"{_UNIT}/test_turns.py",
    (
        "a tenant with much to do does not go first again",
        "        if items:\n            self._items[tenant] = items\n",
        "        if items:\n            self._items = {tenant: items, **self._items}\n",
    ),
    (
        "a quarter of the slots is left to tenants that hold none",
        "self._shared = total - total // 4",
        "self._shared = total",
    ),
    (
        "no tenant holds more than its share",
        "return held <= self._shared and self._held_by[tenant] + slots <= self._each",
        "return held <= self._shared",
    ),
)

VERBS = _broken(
    "extender/scheduler/verbs.py",
    f"{_UNIT}/scheduler {_INTEGRATION}/service/test_verbs.py",
    (
        "a node that is missing in view is looked up before it passes",
        "            if is_missing or may_be_wrong:\n",
        "            if may_be_wrong:\n",
    ),
    (
        "kube-scheduler waits for a pod's images once, however often it asks",
        "left_seconds = self._wait_seconds - self._waited_seconds(args.pod)",
        "left_seconds = self._wait_seconds",
    ),
    (
        "an image is pending only until its pod has waited for the limit",
        "may_be_pending = not is_known and self._waited_seconds(pod) < self._pending_limit_seconds",
        "may_be_pending = not is_known",
    ),
    (
        "a defect of ours evicts no pod",
        "        return encode_preemption_result(ExtenderPreemptionResult({}))\n",
        '        return b""\n',
    ),
    (
        "a namespace of many pods does not make those of others wait anew",
        "owner_of=lambda _, row: row.namespace,",
        'owner_of=lambda *_: "",',
    ),
    (
        "where a node could not be looked up, kube-scheduler tries again",
        "if is_missing and found.unreachable and decision.enforced and",
        "if False and",
    ),
)

MUTATION = _broken(
    "extender/placement/mutation.py",
    _tests("unit/placement", "bounds", "mutation_passes", "affinity"),
    (
        "a pod with too much to be decided about is left, with a warning",
        "    if touched_bytes(pod) > TOUCHED_BYTES:\n        return {}, _SIZE\n",
        "",
    ),
    (
        "what could not be taken back is not written",
        "        if excess := excess_with(added, after):\n",
        '        if excess := "":\n',
    ),
    (
        "a pass that would only move what was added changes nothing",
        "        if record == taken == added and _is_noted(before, after):\n",
        "        if False:\n",
    ),
    (
        "an impossible pod is refused only where the operator wants it",
        "refused = self._settings.impossible is ImpossiblePods.DENY",
        "refused = True",
    ),
)

EARNED = _broken(
    "extender/placement/planning.py",
    _tests("unit/placement", "mutation", "mutation_properties", "decision_fuzz"),
    (
        "a pod gets no toleration for a platform that its author allows no node of",
        "if any(_may_run(terms, platform) for platform in platforms) and not any(",
        "if not any(",
    ),
    (
        "a toleration is earned on every platform of its rule",
        "if known and all(self._may_run(known, each) for each in rule_platforms)",
        "if known and any(self._may_run(known, each) for each in rule_platforms)",
    ),
)

ADMISSION = _broken(
    "extender/admission/pod_admission.py",
    _tests("integration/service", "webhook", "gates"),
    (
        "no pod is held unless somebody provably removes gates",
        "any(map(is_unresolved, facts)) and self._can_gate()",
        "any(map(is_unresolved, facts))",
    ),
    ("a required affinity rests on an answer that was confirmed", "revalidate=self._confirms)", "revalidate=False)"),
    (
        "a pod that cannot be read is allowed with a warning",
        (
            "        except UNDECODABLE as exc:\n            ADMISSIONS[_UNREADABLE].inc()\n"
            "            return unreadable(review, exc)\n"
        ),
        "        except ZeroDivisionError as exc:\n            return unreadable(review, exc)\n",
    ),
)

HELD = _broken(
    "extender/gates/gate_controller.py",
    f"{_INTEGRATION}/gates/test_gates.py",
    (
        "a patch that the cluster's own rules refuse is followed by one for the gate alone",
        "            if not _is_final(exc):\n                raise\n",
        "            if exc:\n                raise\n",
    ),
    (
        "a held pod is decided about again once it has changed",
        "        self._waits.leave(pod)\n        self._hand(pod)\n",
        "        self._waits.leave(pod)\n",
    ),
    (
        "a pod goes at its limit, by what is known then",
        "overrides, nodes, expired=is_expired)",
        "overrides, nodes, expired=False)",
    ),
    (
        "a pod that has changed since its patch was refused is decided about again",
        "        if held.version != version:\n            self._later(held, 0.0)\n            return\n",
        "",
    ),
)

HELD_PODS = _broken(
    "extender/gates/held_pods.py",
    f"{_UNIT}/gates",
    (
        "a pod's limit counts only while no other gate holds it",
        "        if is_held_by_others(seen):\n",
        "        if False:\n",
    ),
    (
        "a pod that was made anew is another pod",
        "if pod and (pod.reference.uid != seen.metadata.uid or not is_held(seen)):",
        "if pod and not is_held(seen):",
    ),
)

ARMING = _broken(
    "extender/gates/policy_arming.py",
    f"{_INTEGRATION}/gates {_INTEGRATION}/service/test_gates.py",
    (
        "the policy is not in force while nobody removes gates",
        "        if not self._can_ungate():\n",
        "        if False:\n",
    ),
    (
        "the policy is bound to probes first",
        '"spec": {"policyName": self._name, "matchResources": {"objectSelector": {"matchLabels": PROBE_LABELS}}},',
        '"spec": {"policyName": self._name},',
    ),
    (
        "the policy is put into force once a probe was held",
        "if not is_held(await send_probe(self._client, self._namespace)):",
        "if await send_probe(self._client, self._namespace) is None:",
    ),
)

SETTINGS = _broken(
    "extender/config/checks.py",
    f"{_UNIT}/test_config.py",
    (
        "a gate without a cluster is refused at the start",
        "if admission.unknown is UnknownImages.GATE and not config.has_cluster:",
        "if False:",
    ),
    (
        "two listeners of one port are refused at the start",
        "return bool(port) and port == other_port and",
        "return bool(port) and port == other_port and one == other and",
    ),
    ("an address without a port is refused with what to write", "        not colon\n        or host", "        host"),
)

PLANNING = _broken(
    "extender/placement/planning.py",
    _tests("unit/placement", "mutation", "gate", "platforms_annotation"),
    (
        "a pod gets no toleration that it has already",
        "covers(each, rule.toleration) for each in present",
        "False for each in present",
    ),
    (
        "an image that is never pulled holds no pod",
        "            if fact.cause not in LOCAL:\n",
        "            if True:\n",
    ),
    ("a pod of an exempt priority class is not held", "expired=expired or pod.never_held", "expired=expired"),
    (
        "policies read of platforms only where the setting says so",
        "if self._settings.platforms_annotation else None",
        "if True else None",
    ),
)

SHARES = _broken(
    "extender/placement/shares.py",
    _tests("unit/placement", "annotations"),
    (
        "few replicas with ordinals are divided evenly",
        "        if _ORDINAL.fullmatch(ordinal):\n",
        "        if False:\n",
    ),
)

ADDITIONS = _broken(
    "extender/placement/additions.py",
    _tests("unit/placement", "mutation", "mutation_passes"),
    (
        "a record that we could not have written takes nothing back",
        "return record if credible else None",
        "return record",
    ),
    (
        "a record cannot take an author's toleration away",
        "[item for item in record.tolerations if item in tolerations]",
        "list(record.tolerations)",
    ),
    (
        "an entry of the nodeSelector that somebody has changed since stays",
        "if present.get(key) == value}",
        "if key in present}",
    ),
    (
        "a scheduler that the pod's author chose stays",
        'if name in ("", DEFAULT_SCHEDULER) or before not in (None, "", DEFAULT_SCHEDULER):',
        'if name in ("", DEFAULT_SCHEDULER):',
    ),
    (
        "a record that is too long is not read",
        "if not isinstance(text, str) or len(text) > RECORD_CHARACTERS:",
        "if not isinstance(text, str):",
    ),
)

NODE_MATCH = _broken(
    "extender/placement/node_match.py",
    _tests("unit/placement", "decision_fuzz", "node_match"),
    (
        "a term without requirements matches no node",
        "    if not expressions and not fields:\n        return False\n",
        "",
    ),
    (
        "a toleration of one effect tolerates no other",
        "    if toleration.effect and toleration.effect != taint.effect:\n        return False\n",
        "",
    ),
    (
        "numbers in terms are compared as kube-scheduler compares them",
        'return number > bound if operator == "Gt" else number < bound',
        "return number > bound",
    ),
    (
        "a taint that only lowers a score refuses no pod",
        "if taint.effect not in _HARD or (taint.key == UNSCHEDULABLE and spec.unschedulable):",
        "if taint.key == UNSCHEDULABLE and spec.unschedulable:",
    ),
)

KEPT_TEMPLATES = _broken(
    "extender/placement/templates.py",
    _tests("integration/service", "templates") + " " + _tests("unit/placement", "decision_fuzz"),
    (
        "a template of other images is decided anew",
        "or not changed.has_same_images:",
        "or False:",
    ),
    (
        "the webhook leaves pods of a fixed template where they may go",
        "self._fixed_daemons if template.kind == DAEMON_SET else self._fixed\n",
        "self._fixed_daemons\n",
    ),
)

SCHEDULER_WIRE = _broken(
    "extender/kubernetes/extender_v1.py",
    _tests("unit/kubernetes", "extender_v1"),
    (
        "nodes count where a request has names too",
        "    if read.nodes != _NULL:\n",
        "    if read.nodes != _NULL and read.node_names == _NULL:\n",
    ),
    (
        "a request about no nodes at all is the caller's mistake",
        '        raise InvalidRequest("ExtenderArgs has neither NodeNames nor Nodes")\n',
        "        return ExtenderArgs(pod, [], _NULL, _NULL)\n",
    ),
    (
        "no pod is evicted from a node that its image does not run on",
        "_ENCODER.encode(names)), failed_and_unresolvable_nodes=failed",
        "_ENCODER.encode(names)), failed_nodes=failed",
    ),
    ("victims are named by uid in either form", 'MetaPod((pod.metadata and pod.metadata.uid) or "")', 'MetaPod("")'),
)

REVIEWS = _broken(
    "extender/kubernetes/admission_v1.py",
    _tests("unit/kubernetes", "admission_v1"),
    ("a warning fits a header", 'f"{warning[: WARNING_CHARACTERS - 1]}…"', "warning"),
    ("a container that is added to a pod is no pod that is created", "        and not request.sub_resource\n", ""),
    (
        "an answer has the version of its question",
        'review.api_version or "admission.k8s.io/v1"',
        '"admission.k8s.io/v1"',
    ),
)

TEMPLATE_PLACES = _broken(
    "extender/kubernetes/pod_templates.py",
    _tests("unit/kubernetes", "pod_templates"),
    (
        "a policy about pods is no workload",
        "or not isinstance(api_version, str) or is_policy(document):",
        "or not isinstance(api_version, str):",
    ),
)

MANIFESTS = _broken(
    "extender/images/manifest.py",
    _tests("unit/images", "manifest"),
    (
        "an attestation is no platform of an image",
        "if _REFERENCE_TYPE in (descriptor.annotations or {}) or artifact_type == ATTESTATION:",
        "if artifact_type == ATTESTATION:",
    ),
    ("a document that can be read as two things is not read", "    if len(found) > 1:\n", "    if len(found) > 9:\n"),
    (
        "a config inside a manifest counts only if its digest is right",
        'return data if data and len(data) == config.size and matches_digest(data, config.digest or "") else None',
        "return data or None",
    ),
)

CONFIGS = _broken(
    "extender/images/image_config.py",
    _tests("unit/images", "config"),
    ("a config without an operating system is for Linux", 'platform_of(os or "linux",', 'platform_of(os or "windows",'),
    (
        "words that no platform has tell nothing of a single manifest",
        "    if not has_known_words(platform):\n",
        "    if False:\n",
    ),
)

REFERENCES = _broken(
    "extender/images/reference.py",
    _tests("unit/images", "reference"),
    ("an image ID is no name", " or _IMAGE_ID.fullmatch(text):\n        raise", ":\n        raise"),
    ("Docker Hub is one registry under both its names", "    if first == _LEGACY_DOMAIN:\n", "    if False:\n"),
)

PULL_SECRETS = _broken(
    "extender/credentials/pull_secrets.py",
    _tests("unit/credentials", "pull_secrets"),
    (
        "nothing that is kept for longer than half a minute holds a password",
        "                    reading.credentials = {}\n",
        "                    pass\n",
    ),
    (
        "a malformed secret costs its pod all its secrets, as on the node",
        "        if self._is_malformed:\n            self.used.clear()\n",
        "        if False:\n            pass\n",
    ),
    (
        "a secret that was denied is read again at once",
        "_JUST_READ_SECONDS if refresh else KEEP_SECONDS",
        "KEEP_SECONDS",
    ),
    (
        "an API server that fails takes no credential away",
        "reading = msgspec.structs.replace(before, is_unread=True)",
        "reading = _Reading(retried, is_unread=True)",
    ),
    ("a pod has so many secrets read and no more", "filter(None, names)))[:MOST_NAMES]", "filter(None, names)))"),
)

PROVIDERS = _broken(
    "extender/credentials/providers.py",
    _tests("unit/credentials", "providers"),
    ("a password that has expired is not presented", "if answer and now < answer.until), None)", "if answer), None)"),
    (
        "a provider that failed is not asked all the time",
        "        self._answers.put((None, reference.domain), failure)\n",
        "",
    ),
    ("a provider is asked eight times at once at most", "_AT_ONCE = 8", "_AT_ONCE = 80"),
)

PLUGINS = _broken(
    "extender/credentials/kubelet_plugins.py",
    _tests("integration/credentials", "kubelet_plugins"),
    (
        "a plugin that needs the token of a ServiceAccount is refused",
        "    if plugin.token_attributes is not None:\n",
        "    if False:\n",
    ),
    ("a plugin is a program of its folder", ' or "/" in plugin.name or " " in plugin.name:', ":"),
)

PROGRAMS = _broken(
    "extender/credentials/programs.py",
    _tests("integration/credentials", "kubelet_plugins", "docker_config"),
    (
        "a program that hangs is ended with all that it started",
        "os.killpg(transport.get_pid(), signal.SIGKILL)",
        "os.kill(transport.get_pid(), signal.SIGKILL)",
    ),
    (
        "a program answers a mebibyte at most",
        "            if len(program.output) > MAX_OUTPUT_BYTES:\n",
        "            if False:\n",
    ),
)

DOCKER_CONFIG = _broken(
    "extender/credentials/docker_config.py",
    _tests("integration/credentials", "docker_config"),
    ("a helper's name is no path", "        if not _HELPER.fullmatch(helper):\n", "        if False:\n"),
)

CLOUDS = _broken(
    "extender/credentials/cloud_api.py",
    _tests("integration/credentials", "clouds"),
    ("no redirect takes a cloud's token along", "allow_redirects=False", "allow_redirects=True"),
)

OPERATORS = _broken(
    "extender/credentials/operator_keyring.py",
    _tests("integration/credentials", "operator_keyring"),
    (
        "a login of the operator's that was removed opens nothing any more",
        "parts = msgspec.msgpack.encode(stamps)",
        "parts = msgspec.msgpack.encode(len(stamps))",
    ),
)

FAILOVER = _broken(
    "extender/registry/mirror_failover.py",
    _tests("unit/registry", "mirror_failover"),
    (
        "an image is missing only if every endpoint says so",
        "    if silent and len(silent) < len(asked):\n",
        "    if False:\n",
    ),
    ("what the nodes' files block is not asked", "        if endpoint.not_asked:\n", "        if False:\n"),
    (
        "a mirror of CRI-O's is not shown a pod's login",
        'endpoint.credentials == "both" and credential not in operators',
        "credential not in operators",
    ),
    (
        "a mirror that is not allowed is not asked",
        "            self._guard.check_registry(endpoint.root)\n",
        "            pass\n",
    ),
)

ROUTES = _broken(
    "extender/registry/routes.py",
    _tests("unit/registry", "node_examples", "mirror_files", "node_files"),
    (
        "the rule with the longest prefix counts",
        "return max(matching, key=lambda rule: len(rule.prefix), default=None)",
        "return next(iter(matching), None)",
    ),
    (
        "a place whose name is blocked is not asked",
        "            if rule_there and rule_there.is_blocked:\n",
        "            if False:\n",
    ),
    (
        "the registry itself sees no login of its mirrors",
        'credentials=place.credentials if mirror_of else "image",',
        "credentials=place.credentials,",
    ),
)

TRUST = _broken(
    "extender/registry/endpoint_tls.py",
    _tests("unit/registry", "mirror_files") + " " + _tests("integration/registry", "mirrors"),
    (
        "certificates are skipped for the host alone, and not where it redirects to",
        "return self._replace(clients=(), is_unverified=False) if self.authorities else None",
        "return self",
    ),
)

HTTP = _broken(
    "extender/registry/http.py",
    _tests("integration/registry", "auth", "outcomes") + f" {_UNIT}/registry/test_http.py",
    ("a name and a password in an address are no login", "            url.with_user(None),\n", "            url,\n"),
    (
        "no body is unpacked",
        '    if response.headers.get("Content-Encoding", "").lower() not in ("", "identity"):\n',
        "    if False:\n",
    ),
    (
        "no redirect leads from https to http",
        '    if base.scheme == "https" and url.scheme == "http":\n',
        "    if False:\n",
    ),
)

CONNECTIONS = _broken(
    "extender/registry/capped_connection.py",
    _tests("unit/registry", "http") + " " + _tests("integration/registry", "hostile_bodies"),
    (
        "bodies that are under way take bounded memory together",
        "        while self._total > self._most_bytes:\n",
        "        while False:\n",
    ),
    (
        "headers without end are refused",
        "self._received_bytes > self._most_bytes(body)",
        "False",
    ),
)

QUOTAS = _broken(
    "extender/registry/quota.py",
    _tests("unit/registry", "quota"),
    ("a tenth of a registry's quota is left to the nodes", "_RESERVE = 0.1", "_RESERVE = 0.0"),
)

DESCRIPTIONS = _broken(
    "extender/registry/image_description.py",
    _tests("unit/registry", "image_description"),
    (
        "a part that cannot be read makes the image unknown where no index states its platform",
        "            if self._is_too_large or not is_optional:\n",
        "            if self._is_too_large:\n",
    ),
    ("an image costs sixteen requests at most", "        if not self._requests_left:\n", "        if False:\n"),
    ("a loop of indexes ends", "                self._seen.add(child.digest)\n", ""),
)

CERTIFICATES = _broken(
    "extender/certificates/own_certificate.py",
    f"{_UNIT}/certificates {_INTEGRATION}/service/test_self_managed.py",
    (
        "a certificate is served only once the API server trusts it",
        "may_change = published or now >= expires_at(self.present.certificate)",
        "may_change = True",
    ),
    (
        "the next certificate is trusted before it is served",
        'return self.present.certificate + (self.next.certificate if self.next else b"")',
        "return self.present.certificate",
    ),
    (
        "a key of another certificate is not served",
        "    if _read(pair.certificate).public_key() != key.public_key():\n",
        "    if False:\n",
    ),
    (
        "an authority that has not signed a certificate is no reason to trust it",
        "    except (ValueError, TypeError, InvalidSignature):\n        return False\n",
        "    except (ValueError, TypeError, InvalidSignature):\n        return True\n",
    ),
)

SELF_MANAGED = _broken(
    "extender/service/self_managed.py",
    f"{_UNIT}/certificates {_INTEGRATION}/service/test_self_managed.py",
    (
        "a Secret of others is left as it is",
        "        if not is_ours(secret.data):\n",
        "        if False:\n",
    ),
    (
        "one of several replicas makes the certificate",
        'metadata = {"resourceVersion": before.metadata.resource_version}\n            body',
        "metadata = dict[str, str]()\n            body",
    ),
    (
        "a configuration that lost its bundle gets it back",
        "if each.client_config != trusting]",
        "if not each.client_config.ca_bundle]",
    ),
    ("a write that ends halfway leaves the last file", 'made = self.file.with_suffix(".new")', "made = self.file"),
)

RIGHTS = _broken(
    "extender/cluster/own_rights.py",
    _tests("integration/cluster", "own_rights"),
    ("one right that is missing is enough to hold nothing", "            self._proven_until = 0.0\n", ""),
    (
        "an API server that cannot be asked disproves nothing",
        "            self._report(str(exc))\n            return RETRY_SECONDS\n",
        "            self._report(str(exc))\n            self._proven_until = 0.0\n            return RETRY_SECONDS\n",
    ),
)

SECRETS = _broken(
    "extender/cluster/secrets.py",
    _tests("integration/cluster", "secrets"),
    (
        "a name that authors of pods write leads to no other path",
        "if not (is_object_name(namespace) and is_object_name(name)):",
        "if not name:",
    ),
    (
        "an API server that fails is not taken for one without the secret",
        "if exc.status not in (403, 404):",
        "if exc.status not in (403, 404, 500):",
    ),
)

VIEWS = _broken(
    "extender/cluster/listwatch.py",
    _tests("unit/cluster", "listwatch"),
    (
        "a version that the server never reaches is given up",
        "if self._tries >= _TRIES_PER_VERSION or self.age_seconds() >= _SECONDS_PER_VERSION:",
        "if False:",
    ),
    (
        "history that is lost has everything listed anew",
        "        if is_gone:\n            self._version = self._first_version\n",
        "",
    ),
    (
        "an object that cannot be understood hides no other",
        '        except Exception:\n            log.exception("watch.object_skipped"',
        '        except ZeroDivisionError:\n            log.exception("watch.object_skipped"',
    ),
    (
        "a bookmark is gone on from",
        "self._version = event.meta.resource_version or self._version",
        "self._version = (event.has_object and event.meta.resource_version) or self._version",
    ),
)

PROBES = _broken(
    "extender/cluster/probe.py",
    _tests("integration/cluster", "probe") + f" {_INTEGRATION}/gates",
    (
        "a pod is held as the controller finds pods",
        "return is_gated(probe) and look(probe, (*LABELS_PATH, GATED_LABEL)) == GATED",
        "return is_gated(probe)",
    ),
    (
        "the policy's word is none of the webhook's",
        "return _IMAGE in str(annotations.get(REASON)) or ADDED in annotations",
        "return REASON in annotations or ADDED in annotations",
    ),
)

EVENTS = _broken(
    "extender/cluster/pod_events.py",
    _tests("integration/cluster", "pod_events"),
    (
        "a namespace with too many events takes nothing from others",
        "if not self._may_send(pod.namespace) or not self._slots.take(pod.namespace):",
        "if not self._slots.take(pod.namespace):",
    ),
    (
        "replicas tell of one change once",
        'suffix = hashlib.sha256(f"{pod.uid} {once}".encode())',
        'suffix = hashlib.sha256(f"{pod.uid} {once} {self._waiting}".encode())',
    ),
)

STORE = _broken(
    "extender/store/rows.py",
    f"{_UNIT}/store " + _tests("integration/store", "sqlite"),
    (
        "a row of another key is not believed",
        'return zlib.crc32(f"{repository}\\n{text}\\n{credential_id}\\n".encode())',
        'return zlib.crc32(f"{repository}\\n{text}\\n".encode())',
    ),
    (
        "a row cannot be fresh for ever",
        "    if not math.isfinite(found.confirmed_at):",
        "    if found.confirmed_at != found.confirmed_at:",
    ),
    ("a row that somebody else wrote fills no memory", "    if len(record) > _MOST_BYTES:\n", "    if False:\n"),
)

SQLITE = _broken(
    "extender/store/sqlite.py",
    _tests("integration/store", "sqlite"),
    ("a database of another program is left alone", "if objects and application != _APPLICATION:", "if False:"),
    ("a file holds no more rows than the setting says", "(self._size,),", "(self._size + 10_000,),"),
)

READING = _broken(
    "extender/config/reading.py",
    _tests("unit", "config"),
    (
        "a section that is assigned keeps what the file says beside it",
        "return tree | {key: _assigned(tree.get(key), field_of(kind, key), (), each) for key, each in value.items()}",
        "return {key: _assigned(tree.get(key), field_of(kind, key), (), each) for key, each in value.items()}",
    ),
    (
        "all that is wrong with the settings is told at once",
        "            fitting.problems += exc.problems\n",
        "            raise\n",
    ),
)

SERVICE = _broken(
    "extender/service/compose.py",
    _tests("integration/service", "opening", "shutdown", "liveness", "watches"),
    ("nobody can call before the files for registries have been read", "        await sources.check()\n", ""),
    (
        "a service that ends answers for a while and is not ready",
        "        if self._listeners:\n            await asyncio.sleep(self._linger_seconds)\n",
        "",
    ),
    ("work that ends by itself fails liveness", "    problem = background_problem()\n", '    problem = ""\n'),
)

HOLDING = _broken(
    "extender/service/gates.py",
    _tests("integration/service", "gates"),
    (
        "nothing is held without the rights to let go",
        "return self._election.is_led() and self._rights.are_proven()",
        "return self._election.is_led()",
    ),
    (
        "a replica that serves nothing is not ready while nobody removes gates",
        "return CheckResult(ok=self._serves and (self._was_able or has_started), detail=detail)",
        "return CheckResult(ok=self._was_able or has_started, detail=detail)",
    ),
    (
        "pods that were held before are let go where none is held any more",
        "limit_seconds=limit_seconds if holds else min(limit_seconds, RELEASE_SECONDS),",
        "limit_seconds=limit_seconds,",
    ),
)

DAEMON_PODS = _broken(
    "extender/admission/daemon_pods.py",
    _tests("integration/service", "templates"),
    (
        "a pod of a DaemonSet is held only where its node does not run it",
        "if platform is None or fit(facts, platform, self._policy.compatibility) is not Fit.NO:",
        "if platform is None:",
    ),
)

WORKLOADS = _broken(
    "extender/admission/workload_admission.py",
    _tests("integration/service", "templates") + f" {_INTEGRATION}/test_hostile_pods.py",
    (
        "a template that did not change is not reviewed again",
        "if old is None or old.template != template.template:",
        "if True:",
    ),
    (
        "a template that gets an image later is left as it is",
        "            if template.missing:",
        "            if False:",
    ),
    (
        "all templates of one object have bounds together",
        "            if whole_bytes > POD_BYTES:",
        "            if len(raw) > POD_BYTES:",
    ),
)

HOSTS_FILES = _broken(
    "extender/registry/hosts_toml.py",
    _tests("unit/registry", "mirror_files"),
    (
        "what a file without a server says of capabilities is not the registry's",
        "last if server else msgspec.structs.replace(last, capabilities=CAPABILITIES)",
        "last",
    ),
    (
        "a registry's folder is for that very port",
        'return "" if name == "_default" else f"{host_of_folder(name)}/"',
        'return "" if name == "_default" else host_of_folder(name)',
    ),
)

NODE_FILES = _broken(
    "extender/registry/registries_conf.py",
    _tests("unit/registry", "node_files", "node_examples"),
    (
        "nodes with several search registries are not second-guessed",
        '        searches_all=mode in ("permissive", "disabled"),  # nobody',
        "        searches_all=True,  # nobody",
    ),
    (
        "a mirror for digests alone is asked for no tag",
        'kind: ImageKind = "digest-only" if self.mirror_by_digest_only else "all"',
        'kind: ImageKind = "all"',
    ),
)

MUTATIONS: tuple[Mutation, ...] = (
    *PLATFORMS, *DECISION, *FACTS, *REASONS, *GATE, *UNGATING, *AFFINITY, *TOLERATIONS, *PLANNING, *SHARES,
    *ADDITIONS, *NODE_MATCH, *KEPT_TEMPLATES, *SCHEDULER_WIRE, *REVIEWS, *TEMPLATE_PLACES, *MANIFESTS, *CONFIGS,
    *REFERENCES, *RELAXING, *UNNEEDED, *EDITING, *LOGINS, *KEYRING, *ADDRESSES, *AUTHENTICATION, *RESTS, *CONTENT,
    *FAILURES, *LOOKER, *HELD_FAILURES, *LOOKUPS, *UNREAD_SECRETS, *IMAGE_CACHE, *SHOWN_BYTES, *PERSISTENCE,
    *FETCHER, *VERIFIER, *LISTENERS, *FRAMES, *TLS, *OPERATIONS, *LEADER, *TURNS, *VERBS, *MUTATION, *EARNED,
    *ADMISSION, *HELD, *HELD_PODS, *ARMING, *SETTINGS, *PULL_SECRETS, *PROVIDERS, *PLUGINS, *PROGRAMS,
    *DOCKER_CONFIG, *CLOUDS, *OPERATORS, *FAILOVER, *ROUTES, *TRUST, *HTTP, *CONNECTIONS, *QUOTAS,
    *DESCRIPTIONS, *HOSTS_FILES, *NODE_FILES,
    *CERTIFICATES, *SELF_MANAGED, *RIGHTS, *SECRETS, *VIEWS, *PROBES, *EVENTS, *STORE, *SQLITE,
    *READING, *SERVICE, *HOLDING, *DAEMON_PODS, *WORKLOADS,
)  # fmt: skip
