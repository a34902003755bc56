"""What gateway and worker say to each other. Imports nothing of the engine, so the gateway may use it."""
