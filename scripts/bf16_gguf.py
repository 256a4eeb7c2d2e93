"""Write a GGUF file anew with bfloat16 weights: `python -m scripts.bf16_gguf IN.gguf OUT.gguf`.

For `segue bench compare --with llama.cpp --gguf OUT.gguf`, so that both sides read the same weights
in the same format. Knows no model. Invariant: all that is not a tensor is copied; vectors stay as
they are, matrices become bfloat16, rounded as `segue model convert` rounds.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter

from segue.model_files.gguf_weights import to_bfloat16

FILE_TYPE = gguf.LlamaFileType.MOSTLY_BF16
WRITTEN_BY_THE_WRITER = ("general.architecture", "general.file_type")


def rewrite(source: Path, target: Path) -> None:
    reader = GGUFReader(source)
    architecture = str(reader.fields["general.architecture"].contents())
    writer = GGUFWriter(target, architecture)
    writer.add_file_type(FILE_TYPE)
    _copy_metadata(reader, writer)
    for tensor in reader.tensors:
        if len(tensor.shape) == 1:
            writer.add_tensor(tensor.name, tensor.data)
            continue
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        packed = to_bfloat16(values).view("uint8")
        writer.add_tensor(tensor.name, packed, raw_dtype=GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy_metadata(reader: GGUFReader, writer: GGUFWriter) -> None:
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in WRITTEN_BY_THE_WRITER:
            continue
        element = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=element)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m scripts.bf16_gguf IN.gguf OUT.gguf")
    rewrite(Path(sys.argv[1]), Path(sys.argv[2]))
