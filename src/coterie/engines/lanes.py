"""Several streams of a GPU, so that more than one client is under way."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch


class Lanes:
    """Streams of a GPU that take turns; while it is entered, they run beside each other and beside nothing else.

    They wait for what was asked for before, and what is asked for afterwards waits for them. So memory of one stream
    may be read and written by another one meanwhile.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self.count = count
        self.streams = [torch.cuda.Stream(device) for _ in range(count)] if device.type == "cuda" else []  # type: ignore[no-untyped-call]

    def __enter__(self) -> None:
        for stream in self.streams:
            stream.wait_stream(torch.cuda.current_stream())

    def __exit__(self, *error: object) -> None:
        for stream in self.streams:
            torch.cuda.current_stream().wait_stream(stream)

    @contextmanager
    def turn(self, turn: int) -> Iterator[int]:
        """Run what is asked for meanwhile in the lane whose turn it is, and yield its number."""
        lane = turn % self.count
        with torch.cuda.stream(self.streams[lane]) if self.streams else nullcontext():
            yield lane
