"""How fast Coterie is beside a plain PyTorch loop that does the same work."""

from .measure import Result, Side, machine, measure, measure_memory
from .workloads import WORKLOADS, Workload, find

__all__ = ["WORKLOADS", "Result", "Side", "Workload", "find", "machine", "measure", "measure_memory"]
