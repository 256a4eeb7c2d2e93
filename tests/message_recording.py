"""Fills every field of every message of segue/v1, and writes what the wire carries.

Knows descriptors, no message's meaning. Invariant: the same protos give the same recording; a oneof
gives one message for each of its variants.

    .venv/bin/python -m tests.message_recording TARGET     once for each protocol version
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from segue.v1 import executor_pb2, scheduler_pb2, types_pb2

FILES = (types_pb2, executor_pb2, scheduler_pb2)
REPEATS = 2


def message_classes() -> dict[str, type[Message]]:
    descriptors = [
        descriptor
        for module in FILES
        for _, descriptor in sorted(module.DESCRIPTOR.message_types_by_name.items())
    ]
    return {descriptor.full_name: GetMessageClass(descriptor) for descriptor in descriptors}


def recordings() -> Iterator[tuple[str, Message]]:
    for name, cls in message_classes().items():
        descriptor: Any = cls.DESCRIPTOR
        variants = [
            field.name
            for oneof in descriptor.oneofs
            if not oneof.name.startswith("_")  # a field that is optional is a oneof of its own
            for field in oneof.fields
        ]
        for variant in variants or [""]:
            message = cls()
            _fill(message, set(variants) - {variant})
            yield name, message


def _fill(message: Message, left_out: set[str]) -> None:
    for field in message.DESCRIPTOR.fields:
        if field.name in left_out:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        if field.is_repeated:
            _fill_repeated(getattr(message, field.name), field)
        elif field.message_type is not None:
            part = getattr(message, field.name)
            part.SetInParent()
            _fill(part, set())
        else:
            setattr(message, field.name, _value(field, 0))


def _fill_repeated(container: Any, field: Any) -> None:
    for index in range(REPEATS):
        if field.message_type is not None:
            _fill(container.add(), set())
        else:
            container.append(_value(field, index))


def _value(field: Any, index: int) -> Any:
    number = field.number * 10 + index + 1
    if field.enum_type is not None:
        return field.enum_type.values[-1].number
    match field.cpp_type:
        case field.CPPTYPE_STRING:
            is_bytes = field.type == field.TYPE_BYTES
            return f"v{number}".encode() if is_bytes else f"v{number}"
        case field.CPPTYPE_BOOL:
            return True
        case field.CPPTYPE_DOUBLE | field.CPPTYPE_FLOAT:
            return number + 0.5
        case _:
            return number


def as_dict(message: Message) -> dict[str, Any]:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def main(target: Path) -> None:
    lines = [
        json.dumps([name, message.SerializeToString(deterministic=True).hex(), as_dict(message)])
        for name, message in recordings()
    ]
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
