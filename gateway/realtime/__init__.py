"""The WebSocket at /v1/responses. See docs/guides/websocket.md."""
