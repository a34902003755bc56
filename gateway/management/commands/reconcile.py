"""Compare ledger, rollups, budgets and Valkey's counters; exit 0 where all agree and everything is settled."""

import sys
import time
from datetime import date
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import OperationalError
from redis.exceptions import RedisError

from gateway.jobs.reconcile import Report, reconcile

_POLL_S = 0.25


class Command(BaseCommand):
    help = "Compare everything that counts tokens. Exits with 0 where nothing differs and everything is settled, else with 1."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--wait", type=float, default=0.0, metavar="SECONDS", help="let what isn't settled yet drain for so long")
        parser.add_argument("--since", type=date.fromisoformat, metavar="DATE", help="compare ledger and rollups from this UTC day on")

    def handle(self, *args: Any, **options: Any) -> None:
        deadline = time.monotonic() + options["wait"]
        try:
            report = reconcile(settings.REDIS_URL, since=options["since"])
            while (report.differs or not report.settled) and time.monotonic() < deadline:
                time.sleep(_POLL_S)
                report = reconcile(settings.REDIS_URL, since=options["since"])
        except (RedisError, OSError, OperationalError) as error:
            raise CommandError(f"nothing could be compared: {error}") from error
        self._print(report)
        if report.differs or not report.settled:
            sys.exit(1)

    def _print(self, report: Report) -> None:
        width = max(len(comparison.what) for comparison in report.comparisons)
        self.stdout.write(f"{'':{width}}  {'checked':>9}  {'differing':>9}")
        for comparison in report.comparisons:
            self.stdout.write(f"{comparison.what:{width}}  {comparison.checked:>9}  {comparison.differing:>9}")
        for comparison in report.comparisons:
            if comparison.differing:
                self.stdout.write(f"\n{comparison.what} (expected / found)")
                for example in comparison.examples:
                    self.stdout.write(f"  {example}")
                if comparison.differing > len(comparison.examples):
                    self.stdout.write(f"  … {comparison.differing - len(comparison.examples)} more")
        for what, count in report.pending.items():
            if count:
                self.stdout.write(f"not settled yet: {count} {what}")
        if not report.differs:
            self.stdout.write("No difference." if report.settled else "No difference so far.")
