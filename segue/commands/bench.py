"""`segue bench serve`: load for any OpenAI server. `segue bench compare`: ours and a peer in turn.

Knows flags; what they mean is segue/bench's. Invariant: exit code 1 where a request failed, so that
no figure of half a run passes for one of a whole.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from segue.bench import report
from segue.bench.compare import Turns, compare
from segue.bench.figures import BadLimit, figures, parse_limits
from segue.bench.load import LoadResult, Target, run_closed_loop, run_open_loop
from segue.bench.peers import Peer, PeerFailed, llama_cpp, ours, vllm
from segue.bench.workload import (
    COMMON_TOKEN_IDS,
    BenchRequest,
    PromptSource,
    TraceScale,
    WorkloadError,
    random_requests,
    read_trace,
    with_poisson_arrivals,
)

if TYPE_CHECKING:
    from argparse import _SubParsersAction  # pyright: ignore[reportPrivateUsage]

READABLE = (BadLimit, WorkloadError, PeerFailed, report.NoPlots, OSError)
DEFAULT_URL = "http://127.0.0.1:8000/v1"


def register(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("bench", help="measure this or any other OpenAI server")
    commands = parser.add_subparsers(dest="bench_command", required=True, metavar="ACTION")
    serve = commands.add_parser("serve", help="put a load on a server that runs")
    serve.add_argument("--base-url", default=DEFAULT_URL, help=f"default: {DEFAULT_URL}")
    serve.add_argument("--model", default="", help="default: the first that the server names")
    serve.add_argument("--api-key", default="", help="sent as a bearer token")
    serve.add_argument(
        "--rate", type=float, default=0.0, help="Poisson arrivals, requests a second"
    )
    serve.add_argument("--trace", type=Path, help="replay Azure's .csv or Mooncake's .jsonl [.gz]")
    serve.add_argument("--num-requests", type=int, help="default: two for each stream; trace: 100")
    serve.add_argument("--length-scale", type=float, default=1.0, help="of a trace's lengths")
    serve.add_argument("--time-scale", type=float, default=1.0, help="of a trace's times")
    serve.add_argument(
        "--max-prompt-tokens", type=int, default=1 << 30, help="of a trace's prompts"
    )
    serve.add_argument("--max-output-tokens", type=int, default=1 << 30, help="of its answers")
    serve.add_argument(
        "--closed-loop", action="store_true", help="a trace's requests, not its times"
    )
    serve.add_argument(
        "--goodput", nargs="+", default=(), metavar="ttft|tpot|e2e:MS", help="limits"
    )
    _add_load_flags(serve)
    serve.add_argument("--plot", type=Path, help="write a plot (.png, .svg)")
    serve.set_defaults(func=run_serve)

    other = commands.add_parser("compare", help="start ours and a peer in turn; prints ratios")
    other.add_argument(
        "--with", dest="peers", required=True, help="llama.cpp, vllm: comma separated"
    )
    other.add_argument("--model", type=Path, required=True, help="directory of our model")
    other.add_argument("--gguf", type=Path, help="llama.cpp's file of the same model")
    other.add_argument("--llama-server", default="llama-server", help="its program")
    other.add_argument("--vllm-python", default=sys.executable, help="a Python that has vLLM")
    other.add_argument("--num-threads", type=int, default=0, help="of each side; 0: its own choice")
    other.add_argument("--rounds", type=int, default=2, help="turns of each side; the best counts")
    other.add_argument(
        "serve_flags", nargs="*", metavar="-- FLAG", help="flags of segue serve, for our side"
    )
    _add_load_flags(other)
    other.set_defaults(func=run_compare)


def _add_load_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--streams", default="1,8,32", help="closed loop: streams, comma separated")
    parser.add_argument("--prompt-tokens", type=int, default=128, help="random ones, none alike")
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--seed", type=int, default=1)
    common = f"{COMMON_TOKEN_IDS.start}:{COMMON_TOKEN_IDS.stop}"
    parser.add_argument(
        "--token-ids", default=common, help=f"prompts are made of; default: {common}"
    )
    parser.add_argument("--json", type=Path, help="write all figures here")


def run_serve(args: argparse.Namespace) -> int:
    try:
        limits = parse_limits(args.goodput)
        model = args.model or _first_model(args.base_url, args.api_key)
        target = Target(args.base_url, model, args.api_key)
        rows, messages = list[dict[str, Any]](), list[str]()
        for name, result in _loads(args, target):
            rows.append({"load": name} | figures(result, limits))
            messages += result.failures
            print("\n".join(report.table(rows[-1:])), flush=True)
        about = {"url": args.base_url, "model": model, "seed": args.seed}
        if args.json:
            report.write_json(args.json, about, rows)
        if args.plot:
            report.plot(args.plot, rows)
    except BrokenPipeError:
        raise
    except READABLE as error:
        print(f"segue bench: error: {error}", file=sys.stderr)
        return 1
    for line in report.failures(messages):
        print(f"segue bench: failed: {line}", file=sys.stderr)
    return 1 if messages else 0


def _loads(args: argparse.Namespace, target: Target) -> Iterator[tuple[str, LoadResult]]:
    if args.trace is not None:
        scale = TraceScale(
            args.length_scale, args.time_scale, args.max_prompt_tokens, args.max_output_tokens
        )
        requests = read_trace(args.trace, args.num_requests or 100, scale, _source(args))
        if not args.closed_loop:
            yield args.trace.name, uvloop.run(run_open_loop(target, requests))
            return
        for streams in _streams(args.streams):
            yield _closed(target, requests, streams)
    elif args.rate > 0:
        requests = with_poisson_arrivals(
            _random(args, args.num_requests or 100), args.rate, args.seed
        )
        yield f"{args.rate:g} req/s", uvloop.run(run_open_loop(target, requests))
    else:
        for streams in _streams(args.streams):
            requests = _random(args, args.num_requests or 2 * streams)
            yield _closed(target, requests, streams)


def _closed(
    target: Target, requests: Sequence[BenchRequest], streams: int
) -> tuple[str, LoadResult]:
    return f"{streams} streams", uvloop.run(run_closed_loop(target, requests, streams))


def _random(args: argparse.Namespace, count: int) -> list[BenchRequest]:
    return random_requests(count, args.prompt_tokens, args.output_tokens, _source(args))


def _source(args: argparse.Namespace) -> PromptSource:
    first, _, end = args.token_ids.partition(":")
    if not (first.isdecimal() and end.isdecimal() and int(first) < int(end)):
        raise WorkloadError(f"--token-ids {args.token_ids}: not FIRST:END")
    return PromptSource(args.seed, range(int(first), int(end)))


def _streams(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = [0]
    if min(counts) < 1:
        raise WorkloadError(f"--streams {text}: not numbers above 0")
    return counts


def _first_model(base_url: str, api_key: str) -> str:
    url = f"{base_url.rstrip('/').removesuffix('/v1')}/v1/models"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {api_key}"})
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return json.load(response)["data"][0]["id"]
    except (urllib.error.URLError, OSError, ValueError, KeyError, IndexError) as error:
        raise WorkloadError(f"{url}: {error}") from error


def run_compare(args: argparse.Namespace) -> int:
    try:
        streams = tuple(_streams(args.streams))
        turns = Turns(streams, args.prompt_tokens, args.output_tokens, _source(args), args.rounds)
        with tempfile.TemporaryDirectory(prefix="segue-bench-") as scratch:
            mine = ours(args.model, Path(scratch), args.num_threads, args.serve_flags)
            peers = [mine, *_peers(args, max(streams))]
            rows = compare(peers, turns, Path(scratch), lambda line: print(line, flush=True))
        for row in rows:
            ratios = {name: value for name, value in row.items() if " / " in name}
            print(f"{row['streams']} streams: {ratios}")
        if args.json:
            report.write_json(args.json, {"model": str(args.model), "seed": args.seed}, rows)
    except BrokenPipeError:
        raise
    except READABLE as error:
        print(f"segue bench: error: {error}", file=sys.stderr)
        return 1
    return 0


def _peers(args: argparse.Namespace, num_slots: int) -> list[Peer]:
    peers: list[Peer] = []
    for name in args.peers.split(","):
        if name == "llama.cpp":
            peers.append(llama_cpp(args.llama_server, args.gguf, num_slots, args.num_threads))
        elif name == "vllm":
            peers.append(vllm(args.vllm_python, args.model))
        else:
            raise PeerFailed(f"--with {name}: not one of llama.cpp, vllm")
    return peers
