"""Lists, selectors, pages, watches, tables and metadata-only answers."""

from tests.real.conformance.stories.objects import config_map, pod
from tests.real.conformance.story import PARTIAL, PARTIAL_LIST, TABLE, Story, delete, get, merge, post, watch

CM = "/api/v1/namespaces/{ns}/configmaps"
PODS = "/api/v1/namespaces/{ns}/pods"

_MADE = tuple(
    post(f"make-{n}", CM, config_map(n, labels={"app": n[0], "n": n[1]})) for n in ("a1", "a2", "a3", "b1", "b2")
)

STORIES = (
    Story(
        "lists",
        (
            *_MADE,
            get("all", CM),
            get("by-label", CM, query={"labelSelector": "app=a"}),
            get("by-set", CM, query={"labelSelector": "n in (1,2),app!=b"}),
            get("not-exists", CM, query={"labelSelector": "!app"}),
            get("bad-label-selector", CM, query={"labelSelector": "a=="}),
            get("bad-label-operator", CM, query={"labelSelector": "a in x"}),
            get("by-name", CM, query={"fieldSelector": "metadata.name=a1"}),
            get("by-name-not", CM, query={"fieldSelector": "metadata.name!=a1,metadata.namespace={ns}"}),
            get("unknown-field", CM, query={"fieldSelector": "data.k=v"}),
            get("page-1", CM, query={"limit": "2"}),
            get("page-2", CM, query={"limit": "2", "continue": "${page-1.metadata.continue}"}),
            get("page-3", CM, query={"limit": "2", "continue": "${page-2.metadata.continue}"}),
            get("bad-continue", CM, query={"limit": "2", "continue": "nonsense"}),
            get(
                "continue-with-revision",
                CM,
                query={"limit": "2", "continue": "${page-1.metadata.continue}", "resourceVersion": "5"},
            ),
            get("from-cache", CM, query={"resourceVersion": "0"}),
            get("match-without-revision", CM, query={"resourceVersionMatch": "Exact"}),
            get("bad-match", CM, query={"resourceVersion": "5", "resourceVersionMatch": "Sometimes"}),
            get("bad-revision", CM, query={"resourceVersion": "abc"}),
            get("bad-limit", CM, query={"limit": "many"}),
            get("get-with-revision-0", f"{CM}/a1", query={"resourceVersion": "0"}),
            delete("collection", CM, query={"labelSelector": "app=a"}),
            get("left", CM, query={"labelSelector": "app in (a,b)"}),
            delete("collection-dry", CM, query={"labelSelector": "app=b", "dryRun": "All"}),
            get("left-again", CM, query={"labelSelector": "app in (a,b)"}),
        ),
    ),
    Story(
        "pod-fields",
        (
            post("one", PODS, pod("one", spec={"nodeName": "n1"})),
            post("two", PODS, pod("two")),
            merge(
                "run",
                f"{PODS}/one/status",
                {"status": {"phase": "Running", "podIP": "10.1.2.3", "podIPs": [{"ip": "10.1.2.3"}]}},
            ),
            get("by-node", PODS, query={"fieldSelector": "spec.nodeName=n1"}),
            get("unbound", PODS, query={"fieldSelector": "spec.nodeName="}),
            get("by-phase", PODS, query={"fieldSelector": "status.phase=Running"}),
            get("not-phase", PODS, query={"fieldSelector": "status.phase!=Running,spec.restartPolicy=Always"}),
            get("by-scheduler", PODS, query={"fieldSelector": "spec.schedulerName=default-scheduler"}),
            get("unknown", PODS, query={"fieldSelector": "spec.priority=1"}),
        ),
    ),
    Story(
        "watches",
        (
            post("before", CM, config_map("w1", labels={"app": "a"})),
            merge("change", f"{CM}/w1", {"data": {"k": "2"}}),
            merge("unmatch", f"{CM}/w1", {"metadata": {"labels": {"app": "b"}}}),
            delete("delete", f"{CM}/w1"),
            watch("from-start", CM, 3, resourceVersion="${before.metadata.resourceVersion}"),
            watch("selected", CM, 2, resourceVersion="${before.metadata.resourceVersion}", labelSelector="app=a"),
            watch("entering", CM, 2, resourceVersion="${before.metadata.resourceVersion}", labelSelector="app=b"),
            watch(
                "one-name",
                CM,
                3,
                resourceVersion="${before.metadata.resourceVersion}",
                fieldSelector="metadata.name=w1",
            ),
            post("present", CM, config_map("w2")),
            watch("initial", CM, 1, fieldSelector="metadata.name=w2"),
            watch(
                "initial-events",
                CM,
                2,
                fieldSelector="metadata.name=w2",
                sendInitialEvents="true",
                resourceVersionMatch="NotOlderThan",
                allowWatchBookmarks="true",
            ),
            get("initial-events-without-match", CM, query={"watch": "true", "sendInitialEvents": "true"}),
            get("bad-revision", CM, query={"watch": "true", "resourceVersion": "abc"}),
            watch("single-object", f"{CM}/w2", 1),
            get("bad-timeout", CM, query={"watch": "true", "timeoutSeconds": "soon"}),
        ),
    ),
    Story(
        "tables",
        (
            post("pod", PODS, pod("t", spec={"nodeName": "n1"})),
            get("pod-table", PODS, accept=TABLE),
            merge(
                "ready",
                f"{PODS}/t/status",
                {
                    "status": {
                        "phase": "Running",
                        "podIP": "10.0.0.9",
                        "podIPs": [{"ip": "10.0.0.9"}],
                        "containerStatuses": [
                            {
                                "name": "c",
                                "image": "i",
                                "imageID": "",
                                "ready": True,
                                "restartCount": 2,
                                "state": {"running": {}},
                            }
                        ],
                    }
                },
            ),
            get("running-table", f"{PODS}/t", accept=TABLE),
            get("table-with-object", PODS, accept=TABLE, query={"includeObject": "Object"}),
            get("table-without-object", PODS, accept=TABLE, query={"includeObject": "None"}),
            get("table-bad-include", PODS, accept=TABLE, query={"includeObject": "Half"}),
            post("cm", CM, config_map("t", {"a": "1", "b": "2"})),
            get("cm-table", f"{CM}/t", accept=TABLE),
            get("missing-table", f"{CM}/none", accept=TABLE),
            get("partial", f"{CM}/t", accept=PARTIAL),
            get("partial-list", PODS, accept=PARTIAL_LIST),
            get("not-acceptable", f"{CM}/t", accept="text/html"),
        ),
    ),
)
