#!/usr/bin/env python
"""Lockgate's commands. `manage.py up` starts everything; `manage.py help` lists the rest."""

import os
import sys

MINIMUM_PYTHON = (3, 11)


def main() -> None:
    if sys.version_info < MINIMUM_PYTHON:
        sys.exit("Lockgate needs Python %d.%d or newer; this is %d.%d." % (MINIMUM_PYTHON + sys.version_info[:2]))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
    from django.core.management import execute_from_command_line

    from gateway.configuration import ConfigurationError

    try:
        execute_from_command_line(sys.argv)
    except ConfigurationError as error:
        sys.exit(f"lockgate: {error}")


if __name__ == "__main__":
    main()
