"""The domain: tenants, projects, keys, limits, cache policies, the ledger. Only its services write."""
