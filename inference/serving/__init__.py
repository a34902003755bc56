"""The worker process around the engine: links to gateways, the engine's thread, streams, announcement. See `inference/worker.py`."""
