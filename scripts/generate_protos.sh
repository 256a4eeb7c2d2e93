#!/usr/bin/env bash
# Generates segue/v1/ from protos/ with plain grpc_tools.protoc; the output is committed.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
"$python" -m grpc_tools.protoc --proto_path=protos --python_out="${1:-.}" --pyi_out="${1:-.}" \
  --grpc_python_out="${1:-.}" protos/segue/v1/types.proto protos/segue/v1/executor.proto \
  protos/segue/v1/scheduler.proto
rm -f "${1:-.}/segue/v1/types_pb2_grpc.py"
