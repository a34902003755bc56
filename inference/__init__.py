"""The engine. Knows no Django, no HTTP, no tenant."""
