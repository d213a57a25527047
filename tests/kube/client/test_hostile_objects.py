"""An object that is nested too deeply for any decoder is reported by name; the others are listed and watched."""

from __future__ import annotations

import msgspec
import pytest

from koord.api.kubernetes.builtin_kinds import CONFIG_MAPS
from koord.api.kubernetes.core_v1 import ConfigMap
from koord.kube.client.list_watch import decode_event, decode_typed_page, decode_unstructured_page
from koord.kube.transport.interface import BytesResponseBody
from koord.kube.transport.watch_frames import WatchFrameSplitter


def config_map(name: str, levels: int = 0) -> bytes:
    more = b',"unknown":' + b'{"a":[' * levels + b"1" + b"]}" * levels if levels else b""
    return b'{"metadata":{"name":"%s","namespace":"n","uid":"u-%s","resourceVersion":"7"}%s}' % (
        name.encode(),
        name.encode(),
        more,
    )


@pytest.mark.parametrize("levels", [5_000, 500_000])
def test_a_list_goes_on_without_it(levels: int) -> None:
    items = b",".join((config_map("a"), config_map("deep", levels), config_map("b")))
    body = BytesResponseBody(b'{"metadata":{"resourceVersion":"9","continue":"c"},"items":[%s]}' % items)
    page, undecodable = decode_typed_page(body, ConfigMap)
    assert [item.metadata.name for item in page.items] == ["a", "b"]
    assert (page.metadata.resource_version, page.metadata.continue_) == ("9", "c")
    assert [(one.namespace, one.name, one.uid, one.why) for one in undecodable] == [
        ("n", "deep", "u-deep", "it is nested too deeply")
    ]
    with pytest.raises(msgspec.ValidationError, match="nested too deeply"):
        decode_unstructured_page(body)


@pytest.mark.parametrize("levels", [5_000, 500_000])
@pytest.mark.parametrize("layout", [b'{"type":"ADDED","object":%s}\n', b'{ "type": "ADDED", "object": %s }\n'])
def test_a_watch_goes_on_after_it(levels: int, layout: bytes) -> None:
    splitter = WatchFrameSplitter()
    frames = splitter.feed(layout % config_map("deep", levels) + layout % config_map("b"))
    if splitter.broken:  # an unusual layout cannot be cut apart without being decoded
        assert frames[0].type == "ERROR"
        return
    deep, well = (decode_event(frame, ConfigMap) for frame in frames)
    assert deep.object is None
    assert deep.resource_version == "7"
    assert deep.status is not None
    assert "n/deep does not fit ConfigMap: it is nested too deeply" in deep.status.message
    assert well.object is not None
    assert well.object.metadata.name == "b"


def test_one_object_is_refused_by_its_reader() -> None:
    assert CONFIG_MAPS.model is ConfigMap
    with pytest.raises(msgspec.ValidationError, match="nested too deeply"):
        BytesResponseBody(config_map("deep", 5_000)).typed(ConfigMap)
