"""What an operator should look at now: fact, consequence, next step."""

from dataclasses import dataclass
from typing import Literal

from gateway.console.fleet import Fleet, blocks_held

KV_NEARLY_FULL = 0.95


@dataclass(frozen=True, kw_only=True)
class Concern:
    level: Literal["warn", "bad"]
    fact: str
    consequence: str
    step: str


def concerns(fleet: Fleet) -> list[Concern]:
    """The worst first; empty when all is well."""
    if fleet.problem:
        return [
            Concern(
                level="bad",
                fact=fleet.problem,
                consequence="No call is admitted, and nothing below is current.",
                step="Check that Valkey runs and that REDIS_URL names it.",
            )
        ]
    found: list[Concern] = []
    if not fleet.workers:
        found.append(
            Concern(
                level="bad",
                fact="No worker is registered.",
                consequence="Calls get 503 until one is.",
                step="A worker that loads its model registers when it is ready; its log says how far it is.",
            )
        )
    for worker in fleet.workers:
        if worker.problem:
            found.append(
                Concern(
                    level="bad",
                    fact=f"Worker {worker.id}: {worker.problem}",
                    consequence="Its figures are missing from the sums below.",
                    step="The supervisor restarts a worker that died; look at its log if it doesn't come back.",
                )
            )
        elif worker.load is not None and worker.load.draining:
            found.append(
                Concern(
                    level="warn",
                    fact=f"Worker {worker.id} is draining.",
                    consequence=f"It takes no new call; {worker.load.running} running ones go on to their end.",
                    step="It leaves by itself when they are done.",
                )
            )
        elif worker.load is not None and worker.load.blocks_total and blocks_held(worker.load) / worker.load.blocks_total > KV_NEARLY_FULL:
            found.append(
                Concern(
                    level="warn",
                    fact=f"Worker {worker.id} holds {blocks_held(worker.load):,} of {worker.load.blocks_total:,} KV blocks.",
                    consequence="New prompts wait for blocks, and running ones may be preempted and computed again.",
                    step="Add a worker, or lower the in-flight limits of the largest tenants.",
                )
            )
    return sorted(found, key=lambda concern: concern.level)
