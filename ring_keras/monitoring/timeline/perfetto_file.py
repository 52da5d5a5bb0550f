"""A timeline as Perfetto's TrackEvents, for https://ui.perfetto.dev or a copy of it."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ring_keras.monitoring.timeline.merged import RankTimeline, Slice, slices, tracks

__all__ = ["require_perfetto", "write_perfetto"]

_SEQUENCE = 1


def require_perfetto() -> Any:
    """The modules of the package `perfetto` that make traces.

    Raises:
        ImportError: If it is not installed.
    """
    try:
        return (
            importlib.import_module("perfetto.trace_builder.proto_builder"),
            importlib.import_module(
                "perfetto.protos.perfetto.trace.perfetto_trace_pb2"
            ),
        )
    except ImportError as error:
        raise ImportError(
            "[RK710] "
            "a timeline in Perfetto's format needs the package perfetto: pip install "
            "'ring-keras[timeline]'. Or give a path that ends in .json, for Chrome's "
            f"format. ({error})"
        ) from error


def write_perfetto(path: Path, ranks: Sequence[RankTimeline]) -> None:
    """Writes all ranks, each as a process; arrows go from arrival to arrival."""
    builder_module, protos = require_perfetto()
    flows: dict[Any, int] = {}
    with path.open("wb") as file:
        builder = builder_module.StreamingTraceProtoBuilder(file)
        writer = _Writer(builder, protos)
        for rank in ranks:
            process = writer.add_process(rank)
            for found in tracks(slices(rank, flows)):
                writer.add_lane(process, found)


class _Writer:
    def __init__(self, builder: Any, protos: Any) -> None:
        self._builder = builder
        self._event = protos.TrackEvent
        self._cleared = protos.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        self._tracks = 0
        self._first = True

    def add_process(self, rank: RankTimeline) -> int:
        packet, uuid = self._track()
        packet.track_descriptor.process.pid = rank.rank + 1  # 0 is nobody's.
        packet.track_descriptor.process.process_name = rank.title
        self._builder.write_packet(packet)
        return uuid

    def add_lane(self, process: int, found: Sequence[Slice]) -> None:
        packet, uuid = self._track()
        packet.track_descriptor.parent_uuid = process
        packet.track_descriptor.name = "collectives"
        self._builder.write_packet(packet)
        for one in found:
            self._begin(uuid, one)
            for part in one.parts:
                self._begin(uuid, part)
                self._end(uuid, part)
            self._end(uuid, one)

    def _track(self) -> tuple[Any, int]:
        self._tracks += 1
        packet = self._packet()
        packet.track_descriptor.uuid = self._tracks
        return packet, self._tracks

    def _packet(self) -> Any:
        packet = self._builder.create_packet()
        packet.trusted_packet_sequence_id = _SEQUENCE
        if self._first:
            packet.sequence_flags = self._cleared
            self._first = False
        return packet

    def _begin(self, track: int, one: Slice) -> None:
        packet = self._packet()
        packet.timestamp = round(one.begin * 1e9)
        event = packet.track_event
        event.type = self._event.TYPE_SLICE_BEGIN
        event.track_uuid = track
        event.name = one.name
        if one.flow:
            event.flow_ids.append(one.flow)
        for name, value in one.arguments.items():
            annotation = event.debug_annotations.add()
            annotation.name = name
            if isinstance(value, int):
                annotation.int_value = value
            else:
                annotation.string_value = str(value)
        self._builder.write_packet(packet)

    def _end(self, track: int, one: Slice) -> None:
        packet = self._packet()
        packet.timestamp = round(one.end * 1e9)
        packet.track_event.type = self._event.TYPE_SLICE_END
        packet.track_event.track_uuid = track
        self._builder.write_packet(packet)
