"""The gateway as a Django app."""

from django.apps import AppConfig


class GatewayConfig(AppConfig):
    """The front door. Holds the management commands that span rooms, and listens to what the domain says."""

    name = "gateway"

    def ready(self) -> None:
        from gateway.admission import listeners

        listeners.connect()
