"""Serve a real trace of requests with a paged cache and continuous batching, on a small decoder with random weights.

    python examples/flexattn_serving.py --trace azure-conv --requests 64 --scale 0.1 --plot serving.svg

The trace says when requests came and how long prompts and outputs were, not what was in them; tokens are random, but
blocks of prompts that the Mooncake trace calls equal are equal here, and share pages. `--scale` shrinks lengths and the
time between arrivals alike, so as many requests meet as before. Time is simulated: a step of the model takes
`--step-ms`, whatever it takes here; tokens per second in the table are real. Where pages run out, the youngest request
loses its own and is computed again. In the end some outputs are compared with those of each request alone, without
pages.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

import serving_plot
import torch
from serving_decoder import Decoder, alone, over_pages
from torch import Tensor
from torch_flexattn import BatcherStats, BatchStep, CacheStats, ContinuousBatcher, DataFormatError, PagedKVCache
from torch_flexattn.data import load_llm_trace, load_prefix_trace

TOKENS = 512
"""Different ones that the model knows."""
BLOCK = 512
"""Tokens of a block of the Mooncake trace."""
TRACES = ("azure-conv", "azure-code", "mooncake")


@dataclass(frozen=True)
class Request:
    """Seconds until it arrives, its prompt, how many tokens are wanted, and names of the prompt's blocks."""

    arrival_s: float
    prompt: list[int]
    output: int
    blocks: tuple[int, ...] = ()


@dataclass
class Record:
    """What was seen at each step, and where none followed: the time, pages in use and shared, requests.

    And in all steps: how many there were, tokens that were computed, requests that were preempted.
    """

    time_s: list[float] = field(default_factory=list)
    used: list[int] = field(default_factory=list)
    shared: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    steps: int = 0
    computed: int = 0
    preempted: set[int] = field(default_factory=set)

    def see(self, time_s: float, cache: CacheStats, batcher: BatcherStats) -> None:
        self.time_s.append(time_s)
        self.used.append(cache.pages - cache.free_pages)
        self.shared.append(cache.shared_pages)
        self.running.append(batcher.running)
        self.waiting.append(batcher.waiting)

    def busy(self, values: list[int]) -> list[int]:
        """Those of steps."""
        return [value for value, running in zip(values, self.running) if running]


def scaled(length: int, scale: float) -> int:
    return max(1, round(length * scale))


def random_tokens(count: int, seed: int) -> list[int]:
    return torch.randint(TOKENS, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def load(trace: str, root: str | None, count: int, scale: float, seed: int) -> list[Request]:
    """The first requests of a trace, shrunk."""
    if trace != "mooncake":
        azure = load_llm_trace("conv" if trace == "azure-conv" else "code", root)
        rows = zip(azure.arrival_s.tolist(), azure.prompt_tokens.tolist(), azure.output_tokens.tolist())
        return [
            Request(when * scale, random_tokens(scaled(prompt, scale), seed + number), scaled(output, scale))
            for number, (when, prompt, output) in zip(range(count), rows)
        ]
    mooncake = load_prefix_trace(root)
    size, found = scaled(BLOCK, scale), []
    for number in range(min(count, len(mooncake))):
        blocks = mooncake.blocks_of(number).tolist()
        last = int(mooncake.prompt_tokens[number]) - BLOCK * (len(blocks) - 1)
        tokens = [token for block in blocks for token in random_tokens(size, seed + block)]
        prompt = tokens[: size * (len(blocks) - 1) + min(scaled(last, scale), size)]
        arrival = float(mooncake.arrival_ms[number]) / 1e3 * scale
        found.append(Request(arrival, prompt, scaled(int(mooncake.output_tokens[number]), scale), tuple(blocks)))
    return found


@torch.no_grad()
def run(model: Decoder, caches: list[PagedKVCache], step: BatchStep, tokens: dict[int, list[int]]) -> None:
    """One step of the model: what it says is put behind the tokens of each request."""
    device = caches[0].device
    new = [token for chunk in step.chunks for token in tokens[chunk.request][chunk.start : chunk.stop]]
    positions = torch.cat([torch.arange(chunk.start, chunk.stop) for chunk in step.chunks])
    last = torch.tensor([chunk.tokens for chunk in step.chunks]).cumsum(0) - 1
    wanted: Tensor = last[torch.tensor([chunk.samples for chunk in step.chunks])]
    said = model(torch.tensor(new, device=device), positions.to(device), wanted.to(device), over_pages(caches, step))
    sampled = (chunk.request for chunk in step.chunks if chunk.samples)
    for request, token in zip(sampled, said.tolist()):
        tokens[request].append(token)


def replay(
    model: Decoder, caches: list[PagedKVCache], batcher: ContinuousBatcher, requests: list[Request], step_s: float
) -> tuple[dict[int, list[int]], Record]:
    """Serve the requests as they arrive. Returns prompt and output of each, and what was seen."""
    coming = deque(requests)
    tokens: dict[int, list[int]] = {}
    record = Record()
    pages = caches[0].stats().pages
    now = 0.0
    while coming or batcher.live:
        if not batcher.live:  # nothing happens until the next arrives
            now = max(now, coming[0].arrival_s)
        while coming and coming[0].arrival_s <= now:
            request = coming.popleft()
            blocks = request.blocks if batcher.prefix_block else ()
            tokens[batcher.add(len(request.prompt), request.output, blocks=blocks)] = list(request.prompt)
        step = batcher.schedule()
        run(model, caches, step, tokens)
        record.see(now, caches[0].stats(), batcher.stats())
        record.steps += 1
        record.computed += step.tokens
        record.preempted |= set(step.preempted)
        batcher.update()
        now += step_s
        show(batcher.stats(), len(requests), record.used[-1] / pages, last=not (coming or batcher.live))
        if not batcher.live:
            record.see(now, caches[0].stats(), batcher.stats())
    return tokens, record


def show(stats: BatcherStats, requests: int, occupied: float, *, last: bool, width: int = 30) -> None:
    """The progress bar; in a log, where lines cannot be drawn over, its last state alone."""
    is_drawn = sys.stderr.isatty()
    if not (last or is_drawn):
        return
    full = width * stats.finished // requests
    bar = f"[{'#' * full}{'.' * (width - full)}] {stats.finished}/{requests} requests, {stats.running} running"
    bar += f", {stats.waiting} waiting, {occupied:4.0%} of pages, {stats.preemptions} preemptions"
    print(f"\r{bar:<110}" if is_drawn else bar, end="\n" if last else "", file=sys.stderr, flush=True)


def check(
    model: Decoder, requests: list[Request], tokens: dict[int, list[int]], numbers: list[int], device: torch.device
) -> None:
    """Outputs of some requests are those of each alone.

    Raises:
        AssertionError: they are not.
    """
    for number in numbers:
        request = requests[number]
        expected, got = alone(model, request.prompt, request.output, device), tokens[number][len(request.prompt) :]
        if got != expected:
            raise AssertionError(f"request {number} got {got} over pages and {expected} alone")


def chosen(count: int, requests: int, preempted: set[int]) -> list[int]:
    """Requests to be checked: first those that were preempted, then others, evenly spread."""
    others = [number for number in range(requests) if number not in preempted]
    count = min(count, requests)
    first = sorted(preempted)[:count]
    left = count - len(first)
    return first + [others[place * len(others) // left] for place in range(left)]


def tenths(record: Record, pages: int) -> str:
    """Mean occupancy in each tenth of the time, in percent; a dash where nothing happened."""
    end = record.time_s[-1] or 1.0
    parts: list[list[float]] = [[] for _ in range(10)]
    for when, used in zip(record.time_s, record.used):
        parts[min(9, int(10 * when / end))].append(100 * used / pages)
    return " ".join(f"{mean(part):.0f}" if part else "-" for part in parts)


def table(record: Record, stats: BatcherStats, requests: list[Request], pages: int, took_s: float) -> str:
    output = sum(request.output for request in requests)
    prompts = sum(len(request.prompt) for request in requests)
    used = mean(record.busy(record.used))
    rows = {
        "requests": f"{stats.finished}: {prompts:,} prompt and {output:,} output tokens",
        "tokens/s": f"{output / took_s:,.0f} of output, {record.computed / took_s:,.0f} computed, in {took_s:.1f} s",
        "steps": f"{record.steps:,}, {record.computed / record.steps:.1f} tokens each",
        "running requests": f"{mean(record.busy(record.running)):.1f} on average, {max(record.running)} at most",
        "pages in use": f"{used / pages:.0%} on average, {max(record.used) / pages:.0%} at most",
        "  by tenths of time": f"{tenths(record, pages)} %",
        "preemptions": f"{stats.preemptions}, {stats.dropped_tokens:,} tokens dropped",
        "shared pages": f"{max(record.shared)} at most, {stats.shared_tokens:,} tokens not computed",
        "kept for prefixes": f"{stats.kept} finished sequences at the end",
    }
    return "\n".join(f"{name:<20} {words}" for name, words in rows.items())


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    line = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    line.add_argument("--trace", choices=TRACES, default="azure-conv")
    line.add_argument("--root", help="folder that holds the trace; default: ../shared/data, or $TORCH_EXT_DATA")
    line.add_argument("--requests", type=int, default=64, help="the first ones (default: %(default)s)")
    line.add_argument("--scale", type=float, default=0.02, help="of lengths and times (default: %(default)s)")
    line.add_argument("--step-ms", type=float, default=30.0, help="of simulated time (default: %(default)s)")
    line.add_argument("--pages", type=int, help="of the cache; default: twice what the longest request needs")
    line.add_argument("--page-size", type=int, default=16, help="tokens (default: %(default)s)")
    line.add_argument("--sequences", type=int, default=256, help="that run or are kept (default: %(default)s)")
    line.add_argument("--budget", type=int, default=128, help="tokens of a step (default: %(default)s)")
    line.add_argument("--no-sharing", action="store_true", help="no pages for several requests (mooncake)")
    line.add_argument("--check", type=int, default=8, help="requests that are compared (default: %(default)s)")
    line.add_argument("--plot", type=Path, help="file for pages and requests over time, .svg")
    line.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    line.add_argument("--seed", type=int, default=0)
    line.add_argument("--threads", type=int, default=1, help="of the CPU (default: %(default)s: the model is small)")
    options = line.parse_args(arguments)
    for name in ("requests", "pages", "sequences", "budget", "check", "threads"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            line.error(f"--{name} must be at least 1, got {getattr(options, name)}")
    for name in ("scale", "step_ms"):
        if not getattr(options, name) > 0:
            line.error(f"--{name.replace('_', '-')} must be above 0, got {getattr(options, name)}")
    if options.page_size < 16 or options.page_size & (options.page_size - 1):
        line.error(f"--page-size must be a power of two, at least 16, got {options.page_size}")
    if options.device == "cuda" and not torch.cuda.is_available():
        line.error("--device cuda needs a GPU, and PyTorch finds none")
    if options.plot is not None and options.plot.suffix != ".svg":
        line.error(f"--plot must end in .svg, got {str(options.plot)!r}")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parsed(arguments)
    try:
        requests = load(options.trace, options.root, options.requests, options.scale, options.seed)
    except (FileNotFoundError, DataFormatError) as error:
        print(f"{error}\n--root names the folder that holds the trace", file=sys.stderr)
        return 2
    if not requests:
        print(f"the file of {options.trace} holds no request", file=sys.stderr)
        return 2

    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    device = torch.device(options.device)
    model = Decoder(TOKENS, width=64, heads=4, kv_heads=2, layers=2).to(device)
    longest = max(len(request.prompt) + request.output - 1 for request in requests)
    needed = -(-longest // options.page_size)
    pages = 2 * needed if options.pages is None else options.pages
    if pages < needed:
        print(f"--pages must be at least {needed}, which the longest request needs, got {pages}", file=sys.stderr)
        return 2
    caches = [
        PagedKVCache(pages, options.page_size, 2, 16, max_seqs=options.sequences, device=device) for _ in model.layers
    ]
    shares = options.trace == "mooncake" and not options.no_sharing
    block = scaled(BLOCK, options.scale) if shares else None
    batcher = ContinuousBatcher(caches, token_budget=options.budget, prefix_block=block)
    print(f"{options.trace}: {len(requests)} requests over {requests[-1].arrival_s:.2f} s, lengths × {options.scale}")
    print(f"2 layers on {device}, each with a cache of {pages} pages of {options.page_size} tokens", flush=True)
    began = time.perf_counter()
    tokens, record = replay(model, caches, batcher, requests, options.step_ms / 1e3)
    took_s = time.perf_counter() - began
    print(table(record, batcher.stats(), requests, pages, took_s))
    numbers = chosen(options.check, len(requests), record.preempted)
    check(model, requests, tokens, numbers, device)
    again = len(record.preempted.intersection(numbers))
    print(f"{'equal to alone':<20} {len(numbers)} of {len(numbers)} requests, of which {again} were preempted")
    if options.plot is not None:
        words = f"{options.trace}, {len(requests)} requests, {pages} pages of {options.page_size}"
        counts = {"running": record.running, "waiting": record.waiting}
        drawing = serving_plot.svg(words, record.time_s, pages, record.used, counts)
        options.plot.write_text(drawing, encoding="utf-8")
        print(f"{'plot':<20} {options.plot}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
