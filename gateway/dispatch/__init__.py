"""Which worker, and the link to it: `registry` finds workers, `routing` picks one, `link` speaks to it."""
