"""The protobuf table: names from Go's tags, types from the definitions, and an error where the two disagree."""

from __future__ import annotations

import pytest

from tools.gen_protobuf import Source, definition_of, messages

RUNTIME = """
package k8s.io.apimachinery.pkg.runtime;
message TypeMeta {
  optional string apiVersion = 1;
}
message Unknown {
  optional TypeMeta typeMeta = 1;
  optional bytes raw = 2;
}
"""
META = """
package k8s.io.apimachinery.pkg.apis.meta.v1;
message Duration {
  optional int64 duration = 1;
}
"""
POLICY = """
package k8s.io.api.policy.v1beta1;
message Eviction {
}
"""
THINGS = """
package k8s.io.sample_server.pkg.v1;

// A thing.
message Thing {
  // optional string lie = 9;
  optional Inner inner = 2;

  optional string hostIP = 1;

  map<string, .k8s.io.apimachinery.pkg.runtime.TypeMeta> kinds = 3;
  repeated Names names = 4;
  optional bool hidden = 5;
}
message Inner {
  repeated int32 numbers = 1;
}
message Names {
  repeated string items = 1;
}
message Unreached {
}
"""
GO = """
type Thing struct {
\tmetav1.TypeMeta `json:",inline"`
\tHostAddress string `json:"hostIP,omitempty" protobuf:"bytes,1,opt,name=hostIP"`
\tInner `json:",inline" protobuf:"bytes,2,opt,name=inner"`
\tKinds map[string]runtime.TypeMeta `json:"kinds" protobuf:"bytes,3,rep,name=kinds"`
\tNames []Names `json:"names" protobuf:"bytes,4,rep,name=names"`
\tHidden bool `json:"-" protobuf:"varint,5,opt,name=hidden"`
\tCache string `json:"cache" protobuf:"-"`
}
type Inner struct {
\tNumbers []int32 `json:"numbers" protobuf:"varint,1,rep,name=numbers"`
}
type Names []string
"""
THING = "io.k8s.sample-server.pkg.v1.Thing"


def sources(things: str = THINGS, go: str = GO) -> list[Source]:
    return [Source(RUNTIME, ()), Source(META, ()), Source(POLICY, ()), Source(things, (go,))]


def test_names_come_from_go_and_types_from_protobuf() -> None:
    table = messages(sources(), [THING])
    assert table[THING] == {
        "fields": [
            [1, "hostIP", "string", "HostAddress"],
            [2, "", "io.k8s.sample-server.pkg.v1.Inner", "Inner"],
            [3, "kinds", "{}io.k8s.apimachinery.pkg.runtime.TypeMeta", "Kinds"],
            [4, "names", "[]io.k8s.sample-server.pkg.v1.Names", "Names"],
        ]
    }


def test_what_is_reached_is_in_and_nothing_else() -> None:
    table = messages(sources(), [THING])
    assert [name.rpartition(".")[2] for name in table] == [
        "Eviction",
        "Duration",
        "TypeMeta",
        "Unknown",
        "Inner",
        "Names",
        "Thing",
    ]


def test_list_types_are_marked() -> None:
    table = messages(sources(), [THING])
    assert table["io.k8s.sample-server.pkg.v1.Names"] == {"fields": [[1, "items", "[]string", "Items"]], "wraps": True}


@pytest.mark.parametrize(
    ("things", "go", "why"),
    [
        pytest.param(THINGS, GO.replace("bytes,1,opt,name=hostIP", "bytes,9,opt"), "has number 1", id="number"),
        pytest.param(THINGS.replace("message Inner", "message Other"), GO, "no protobuf message", id="message"),
        pytest.param(THINGS.replace("optional bool", "required bool"), GO, "not understood", id="syntax"),
    ],
)
def test_disagreement_stops_the_generator(things: str, go: str, why: str) -> None:
    with pytest.raises((LookupError, ValueError), match=why):
        messages(sources(things, go), [THING])


def test_definition_names() -> None:
    assert definition_of(".k8s.io.kube_aggregator.pkg.apis.X") == "io.k8s.kube-aggregator.pkg.apis.X"
