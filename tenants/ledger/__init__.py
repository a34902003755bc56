"""What was used: append-only events, rollups kept in the same transaction, reports that read rollups only."""
