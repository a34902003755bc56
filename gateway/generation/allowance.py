"""How many tokens a request may generate so far, and when to ask for more."""

from gateway.admission.outcomes import Extension

MAX_TRANCHE_TOKENS = 512


class Allowance:
    """A cumulative bound over all choices. Grows by doubling, so that a long answer asks few times and a short one holds little."""

    def __init__(self, total: int, *, most: int) -> None:
        self.total = min(total, most)
        self.most = most
        """What the whole request may generate."""
        self.budget_ended = False
        """No more will ever be granted: the request ends at `total`."""
        self._tranche = max(self.total, 1)

    def due(self, generated: int) -> bool:
        """Whether half of the latest tranche is used up and there is more to ask for."""
        return not self.budget_ended and self.total < self.most and 2 * (self.total - generated) <= self._tranche

    def wanted(self) -> int:
        """The total to ask for."""
        return min(self.most, self.total + min(max(2 * self._tranche, 16), MAX_TRANCHE_TOKENS))

    def answer(self, extension: Extension) -> bool:
        """Take an extension in; whether the total has grown."""
        total = min(extension.allowance, self.most)
        grown = total > self.total
        if grown:
            self._tranche = total - self.total
            self.total = total
        if extension.ended_by == "budget":
            self.budget_ended = True
        return grown

    def spent(self, generated: int) -> bool:
        """Whether the budget has ended and its last token is out."""
        return self.budget_ended and generated >= self.total
