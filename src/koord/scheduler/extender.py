"""Ask extenders: HTTP services that filter and score nodes, check preemption and bind pods beside the plugins.

The protocol is k8s.io/kube-scheduler/extender/v1: JSON is posted to `urlPrefix/verb`, and keys are Go's field names.
An extender is asked only about pods that request one of its managed resources, or about all if it has none. What it is
shown are whole objects as the server has them, because the scheduler keeps only parts of them.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import aiohttp
import msgspec

from koord.api.config.scheduler.configuration import Extender, ExtenderTLS
from koord.api.kubernetes import builtin_kinds
from koord.api.kubernetes.meta import Object
from koord.api.model import Obj, to_dict
from koord.kube.client.typed_client import Client
from koord.kube.config.connection import BadConfig, ClientKeyPair, Connection, PemSource, SettingOrigin
from koord.kube.informer.factory import InformerFactory
from koord.kube.informer.informer import Informer
from koord.kube.transport.api_error import ApiError, go_error_text
from koord.kube.transport.http import TlsContexts
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.framework.decision import ExtenderResults
from koord.scheduler.framework.verdict import Fault, Reject
from koord.scheduler.preemption.extender_review import PreemptionReview, VictimProposal
from koord.scheduler.preemption.victims import PreemptionCandidate
from koord.values import duration

_LOG = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 256 << 20  # thousands of whole nodes
SCORE_SCALE = 10  # extenders score from 0 to 10, plugins from 0 to 100
DEFAULT_TIMEOUT_S = 5.0


class ExtenderTransport(Protocol):
    """Carry one call to an extender."""

    async def post(self, url: str, body: bytes, timeout_s: float) -> tuple[int, bytes] | Fault:
        """Return the status code and the body of the answer, or why there is none."""

    async def close(self) -> None: ...


class HttpExtenderTransport:
    """Call an extender over HTTP or HTTPS as its configuration says. Without a CA HTTPS is not verified."""

    def __init__(self, extender: Extender, path: str) -> None:
        """Read the certificates once, so that a mistake is told at the start. Raise BadConfig."""
        tls = extender.tls_config or ExtenderTLS()
        ca = _pem(tls.ca_file, tls.ca_data, f"{path}.tlsConfig.ca")
        certificate = _pem(tls.cert_file, tls.cert_data, f"{path}.tlsConfig.cert")
        key = _pem(tls.key_file, tls.key_data, f"{path}.tlsConfig.key")
        origin = SettingOrigin("", path)
        if (certificate is None) != (key is None):
            raise origin.error("tlsConfig has a certificate without its key, or a key alone", "give both, or none")
        self._pair = None
        if certificate is not None and key is not None:
            self._pair = ClientKeyPair(certificate=certificate, key=key)
        self._contexts = TlsContexts(
            Connection(
                server=extender.url_prefix,
                origin=origin,
                ca=ca,
                insecure=tls.insecure or (extender.enable_https and ca is None),
            )
        )
        self._contexts.context(self._pair)
        self._server_name = tls.server_name or None
        self._session: aiohttp.ClientSession | None = None

    async def post(self, url: str, body: bytes, timeout_s: float) -> tuple[int, bytes] | Fault:
        if self._session is None:
            self._session = aiohttp.ClientSession(trust_env=True)
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._session.post(
                    url,
                    data=body,
                    headers={"Content-Type": "application/json"},
                    ssl=self._contexts.context(self._pair),
                    server_hostname=self._server_name,
                ) as answer,
            ):
                raw = bytearray()
                async for part in answer.content.iter_any():
                    raw += part
                    if len(raw) > MAX_ANSWER_BYTES:
                        return Fault(f'Post "{url}": the answer is longer than {MAX_ANSWER_BYTES} bytes')
                return answer.status, bytes(raw)
        except TimeoutError:
            waiting = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
            return Fault(f'Post "{url}": {waiting}')
        except (aiohttp.ClientError, OSError, ssl.SSLError, BadConfig, ValueError) as error:
            return Fault(f'Post "{url}": {go_error_text(error)}')

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


def _pem(path: str, data: str, field: str) -> PemSource | None:
    origin = SettingOrigin("", f"{field}{'Data' if data else 'File'}")
    if data:  # as in a kubeconfig, data wins over the file
        try:
            return PemSource(origin=origin, data=base64.b64decode(data, validate=True))
        except binascii.Error as error:
            raise origin.error(f"it is not base64 ({error})", "give the PEM text in base64") from None
    return PemSource(origin=origin, path=path) if path else None


class _FilterAnswer(msgspec.Struct, frozen=True):
    passing: frozenset[str]
    failed: Mapping[str, str]
    unresolvable: Mapping[str, str]


class HttpExtender:
    """Speak the protocol with one extender."""

    def __init__(self, settings: Extender, transport: ExtenderTransport) -> None:
        self.settings = settings
        self.transport = transport
        self.name = settings.url_prefix
        self._resources = frozenset(resource.name for resource in settings.managed_resources)
        self._timeout_s = duration.parse_seconds(settings.http_timeout or "0s") or DEFAULT_TIMEOUT_S

    def is_interested(self, pod: PodInfo) -> bool:
        """Return whether some container of the pod names a managed resource; all pods count when none is managed."""
        return _names_resource(pod, self._resources)

    async def filter(self, pod: Obj, nodes: Mapping[str, Obj]) -> _FilterAnswer | Fault:
        """Ask which of the nodes take the pod."""
        answer = await self._call(self.settings.filter_verb, self._args(pod, nodes))
        if isinstance(answer, Fault):
            return answer
        found = _fields(answer)
        if found is None:
            return self._malformed(self.settings.filter_verb, "an object", answer)
        if found.get("error"):
            return Fault(str(found["error"]))
        names = found.get("nodenames") if self.settings.node_cache_capable else None
        if names is None:
            items = (_fields(found.get("nodes")) or {}).get("items") or ()
            names = [((_fields(item) or {}).get("metadata") or {}).get("name", "") for item in items]
        for name in names:
            if name not in nodes:
                return Fault(
                    f'extender "{self.name}" claims a filtered node "{name}" which is not found in the input node list'
                )
        failed, unresolvable = found.get("failednodes") or {}, found.get("failedandunresolvablenodes") or {}
        if not isinstance(failed, dict) or not isinstance(unresolvable, dict):
            return self._malformed(self.settings.filter_verb, "failed nodes by name", answer)
        return _FilterAnswer(frozenset(names), failed, unresolvable)

    async def prioritize(self, pod: Obj, nodes: Mapping[str, Obj]) -> dict[str, int] | Fault:
        """Ask for the scores of the nodes; return them weighted, on the scale of plugins."""
        answer = await self._call(self.settings.prioritize_verb, self._args(pod, nodes))
        if isinstance(answer, Fault):
            return answer
        scores: dict[str, int] = {}
        for item in answer if isinstance(answer, list) else ():
            found = _fields(item) or {}
            host, score = found.get("host"), found.get("score", 0)
            if not isinstance(host, str) or not isinstance(score, int):
                return self._malformed(self.settings.prioritize_verb, "a list of hosts with whole scores", answer)
            scores[host] = scores.get(host, 0) + score * self.settings.weight * SCORE_SCALE
        return scores

    async def preempt(self, args: Obj) -> dict[str, tuple[list[str], int]] | Fault:
        """Ask which candidates are left: by node the UIDs of the victims and the number of budget violations."""
        answer = await self._call(self.settings.preempt_verb, args)
        if isinstance(answer, Fault):
            return answer
        left = (_fields(answer) or {}).get("nodenametometavictims")
        if left is not None and not isinstance(left, dict):
            return self._malformed(self.settings.preempt_verb, "victims by node", answer)
        found: dict[str, tuple[list[str], int]] = {}
        for node, victims in (left or {}).items():
            fields = _fields(victims) or {}
            uids = [str((_fields(pod) or {}).get("uid", "")) for pod in fields.get("pods") or ()]
            found[node] = (uids, int(fields.get("numpdbviolations") or 0))
        return found

    async def bind(self, pod: PodInfo, node: str) -> Fault | None:
        args = {"PodName": pod.name, "PodNamespace": pod.namespace, "PodUID": pod.uid, "Node": node}
        answer = await self._call(self.settings.bind_verb, args)
        if isinstance(answer, Fault):
            return answer
        error = (_fields(answer) or {}).get("error")
        return Fault(str(error)) if error else None

    def _args(self, pod: Obj, nodes: Mapping[str, Obj]) -> Obj:
        if self.settings.node_cache_capable:
            return {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)}
        return {"Pod": pod, "Nodes": {"metadata": {}, "items": list(nodes.values())}, "NodeNames": None}

    async def _call(self, verb: str, args: Obj) -> Any | Fault:
        url = f"{self.settings.url_prefix.rstrip('/')}/{verb}"
        answer = await self.transport.post(url, msgspec.json.encode(args), self._timeout_s)
        if isinstance(answer, Fault):
            return answer
        status, raw = answer
        if status != 200:
            return Fault(f"failed {verb} with extender at URL {url}, code {status}")
        try:
            return msgspec.json.decode(raw)
        except msgspec.DecodeError as error:
            return Fault(f"the answer of extender {url} is not JSON: {error}")

    def _malformed(self, verb: str, expected: str, answer: Any) -> Fault:
        return Fault(f"extender {self.name} answered {verb} with {str(answer)[:200]!r}; expected is {expected}")


def _fields(value: Any) -> dict[str, Any] | None:
    """Return an object with its keys in lower case, as Go matches them; None for anything else."""
    return {key.lower(): field for key, field in value.items()} if isinstance(value, dict) else None


class WholeNode(Object, frozen=True, kw_only=True):
    """Hold a Node with every field of its spec and status, for extenders that keep no nodes of their own."""

    spec: Obj = {}
    status: Obj = {}


def _names_resource(pod: PodInfo, resources: frozenset[str]) -> bool:
    spec = pod.shape.spec
    return not resources or any(
        not resources.isdisjoint(amounts)
        for container in (*spec.containers, *spec.init_containers)
        for amounts in (container.resources.requests, container.resources.limits)
    )


def extenders_for(pod: PodInfo, extenders: Sequence[Extender]) -> tuple[str, ...]:
    """Return the addresses of the extenders that have a say about the pod's node, for who does not ask them."""
    return tuple(
        one.url_prefix
        for one in extenders
        if not _binds_only(one) and _names_resource(pod, frozenset(managed.name for managed in one.managed_resources))
    )


class Extenders:
    """Ask the extenders that are interested in a pod, in the order of the configuration."""

    def __init__(
        self,
        extenders: Sequence[HttpExtender],
        client: Client,
        informers: InformerFactory,
        state: ClusterState,
        latest_pod: Callable[[PodInfo], Pod | None],
    ) -> None:
        """Take the extenders; whole nodes are watched if one of them wants to be shown nodes."""
        self._extenders = tuple(extenders)
        self._client = client
        self._state = state
        self._latest_pod = latest_pod
        self._nodes: Informer[WholeNode] | None = None
        if any(not one.settings.node_cache_capable for one in extenders):
            self._nodes = informers.for_resource(builtin_kinds.NODES.with_model(WholeNode))

    async def wait_synced(self) -> None:
        if self._nodes is not None:
            await self._nodes.wait_for_sync()

    async def close(self) -> None:
        for extender in self._extenders:
            await extender.transport.close()

    def are_interested(self, pod: PodInfo) -> bool:
        """Return whether some extender is to be asked before the pod gets a node."""
        return any(one.is_interested(pod) for one in self._extenders if not _binds_only(one.settings))

    async def filter_and_prioritize(self, pod: PodInfo, names: Sequence[str]) -> ExtenderResults | Fault:
        """Show the nodes to the extenders, each the ones that the former left; then ask for scores of those left."""
        asked = frozenset(names)
        whole = await self._whole_pod(pod)
        if isinstance(whole, Fault):
            return whole
        nodes = self._whole_nodes(names)
        rejections: dict[str, Reject] = {name: Reject((), resolvable=False) for name in names if name not in nodes}
        for extender in self._extenders:
            if not nodes:
                break
            if not extender.settings.filter_verb or not extender.is_interested(pod):
                continue
            answer = await extender.filter(whole, nodes)
            if isinstance(answer, Fault):
                if not extender.settings.ignorable:
                    return answer
                _LOG.warning("extender %s is ignored for %s: %s", extender.name, pod.key, answer.message)
                continue
            for name in nodes.keys() - answer.passing:
                rejections[name] = _rejection(name, answer)
            nodes = {name: node for name, node in nodes.items() if name in answer.passing}
        scores = await self._prioritize(pod, whole, nodes) if len(nodes) > 1 else {}
        return ExtenderResults(asked, rejections, scores)

    async def _prioritize(self, pod: PodInfo, whole: Obj, nodes: Mapping[str, Obj]) -> dict[str, int]:
        """Return the sums of all extenders' scores. One that gives none is left out, as upstream."""
        interested = [one for one in self._extenders if one.settings.prioritize_verb and one.is_interested(pod)]
        sums: dict[str, int] = {}
        for extender, scores in zip(
            interested, await asyncio.gather(*(one.prioritize(whole, nodes) for one in interested)), strict=True
        ):
            if isinstance(scores, Fault):
                _LOG.warning("extender %s gives no scores for %s: %s", extender.name, pod.key, scores.message)
                continue
            for name, score in scores.items():
                sums[name] = sums.get(name, 0) + score
        return sums

    async def process_preemption(
        self, pod: PodInfo, candidates: Sequence[PreemptionCandidate]
    ) -> Sequence[PreemptionCandidate] | Fault:
        """Show the candidates to the extenders that look at preemption; return those left, with their victims."""
        interested = [one for one in self._extenders if one.settings.preempt_verb and one.is_interested(pod)]
        whole = await self._whole_pod(pod) if interested else {}
        if isinstance(whole, Fault):
            return whole
        for extender in interested:
            if not candidates:
                break
            left = await self._candidates_left(extender, whole, candidates)
            if isinstance(left, Fault):
                if not extender.settings.ignorable:
                    return left
                _LOG.warning("extender %s is ignored for %s: %s", extender.name, pod.key, left.message)
                continue
            candidates = left
        return candidates

    def reviews_preemption_for(self, pod: PodInfo) -> bool:
        """Return whether some extender is to see the victims that make room for the pod."""
        return any(one.settings.preempt_verb and one.is_interested(pod) for one in self._extenders)

    async def review_proposals(self, proposals: Sequence[VictimProposal], review: PreemptionReview) -> None:
        """Show the victims of a plan for many pods to the extenders, kind of pod by kind of pod."""
        left = {candidate.node: candidate for proposal in proposals for candidate in proposal.candidates}
        asked = tuple(left.values())
        for proposal in proposals:
            nodes = {candidate.node for candidate in proposal.candidates}
            shown = [candidate for node, candidate in left.items() if node in nodes]
            answer = await self.process_preemption(proposal.pod, shown)
            if isinstance(answer, Fault):
                review.error = answer.message
                return
            kept = {candidate.node: candidate for candidate in answer}
            left = {node: kept.get(node, one) for node, one in left.items() if node in kept or node not in nodes}
        review.add(asked, tuple(left.values()))

    async def _candidates_left(
        self, extender: HttpExtender, whole: Obj, candidates: Sequence[PreemptionCandidate]
    ) -> Sequence[PreemptionCandidate] | Fault:
        args = await self._preemption_args(extender, whole, candidates)
        if isinstance(args, Fault):
            return args
        answer = await extender.preempt(args)
        if isinstance(answer, Fault):
            return answer
        left: list[PreemptionCandidate] = []
        order = {candidate.node: place for place, candidate in enumerate(candidates)}
        for name in sorted(answer, key=lambda name: order.get(name, len(order))):
            uids, violations = answer[name]
            node = self._state.node(name)
            if node is None:
                return Fault(f'extender {extender.name} claims to preempt on node "{name}", which is not there')
            for uid in uids:
                if uid not in node.pods:
                    return Fault(
                        f"extender: {extender.name} claims to preempt pod (UID: {uid}) on node: {name}, "
                        "but the pod is not found on that node"
                    )
            if uids:
                left.append(PreemptionCandidate(name, tuple(node.pods[uid] for uid in uids), violations))
            elif not extender.settings.ignorable:
                return Fault(f'expected at least one victim pod on node "{name}"')
        return left

    async def _preemption_args(
        self, extender: HttpExtender, whole: Obj, candidates: Sequence[PreemptionCandidate]
    ) -> Obj | Fault:
        cached = extender.settings.node_cache_capable
        shown: dict[str, Obj] = {}
        for candidate in candidates:
            pods: list[Obj] = []
            for victim in candidate.victims:
                pod = {"UID": victim.uid} if cached else await self._whole_pod(victim)
                if isinstance(pod, Fault):
                    return pod
                pods.append(pod)
            shown[candidate.node] = {"Pods": pods, "NumPDBViolations": candidate.violations}
        return {
            "Pod": whole,
            "NodeNameToVictims": None if cached else shown,
            "NodeNameToMetaVictims": shown if cached else None,
        }

    def binder_of(self, pod: PodInfo) -> HttpExtender | None:
        """Return the extender that binds the pod in place of the scheduler. Nobody else can bind a reserve pod."""
        if pod.is_reserve_pod:
            return None
        return next((one for one in self._extenders if one.settings.bind_verb and one.is_interested(pod)), None)

    async def _whole_pod(self, pod: PodInfo) -> Obj | Fault:
        if pod.is_reserve_pod:  # no server has it
            latest = self._latest_pod(pod)
            return Fault(f"{pod.key} is gone") if latest is None else to_dict(latest)
        try:
            found = await self._client.dynamic.get(builtin_kinds.PODS, pod.name, pod.namespace)
        except TRANSIENT_ERRORS as outage:
            return Fault(str(outage))
        if isinstance(found, ApiError):
            return Fault(found.message)
        metadata = {key: value for key, value in found["metadata"].items() if key != "managedFields"}
        return {**found, "metadata": metadata}

    def _whole_nodes(self, names: Sequence[str]) -> dict[str, Obj]:
        """Return the nodes as extenders are shown them, without those that are gone; names alone if all cache nodes."""
        if self._nodes is None:
            return {name: {} for name in names}
        found = ((name, self._nodes.get("", name)) for name in names)
        return {name: to_dict(node) for name, node in found if node is not None}


def _binds_only(settings: Extender) -> bool:
    return not (settings.filter_verb or settings.prioritize_verb or settings.preempt_verb)


def _rejection(name: str, answer: _FilterAnswer) -> Reject:
    """Return the verdict on a node that did not pass; one that is not mentioned is out of the question silently."""
    if name in answer.unresolvable:
        return Reject((answer.unresolvable[name],), resolvable=False)
    if name in answer.failed:
        return Reject((answer.failed[name],))
    return Reject((), resolvable=False)


def build_extenders(
    settings: Sequence[Extender],
    client: Client,
    informers: InformerFactory,
    state: ClusterState,
    latest_pod: Callable[[PodInfo], Pod | None],
    make_transport: Callable[[Extender, str], ExtenderTransport] = HttpExtenderTransport,
) -> Extenders | None:
    """Return the extenders of a configuration, None where it has none. Raise BadConfig for unusable certificates.

    `make_transport` is called with each extender and where the configuration has it.
    """
    if not settings:
        return None
    made = [HttpExtender(one, make_transport(one, f"extenders[{i}]")) for i, one in enumerate(settings)]
    return Extenders(made, client, informers, state, latest_pod)
