"""Start the whole gateway on this machine and keep it running until Ctrl-C or SIGTERM."""

import json
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from gateway import configuration
from gateway.configuration import ConfigurationError
from gateway.jobs.installation import Demo, Installation, Options, prepare_home
from gateway.jobs.supervisor import Output, StartError

PRECISIONS = ("auto", "fp32", "bf16", "fp16")


class Command(BaseCommand):
    help = "Start Postgres, Valkey, jobs, engine workers and the web server, and keep them running. Options may be given as variables too."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        env = os.environ
        parser.add_argument("--home", default=env.get("LOCKGATE_HOME"), help="data folder (LOCKGATE_HOME)")
        parser.add_argument("--host", default=env.get("HOST", "127.0.0.1"), help="address to listen on (HOST)")
        parser.add_argument("--port", default=env.get("PORT", "8000"), help="port to listen on (PORT)")
        parser.add_argument("--model", default=env.get("MODEL", "default"), help="folder, GGUF file or hub id (MODEL)")
        parser.add_argument("--precision", default=env.get("PRECISION", "auto"), help="auto, fp32, bf16 or fp16 (PRECISION)")
        parser.add_argument("--workers", default=env.get("WORKERS", "1"), help="engine processes (WORKERS)")
        parser.add_argument("--web", default=env.get("WEB", "1"), help="web processes (WEB)")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            self._run(self._options(options))
        except (ConfigurationError, StartError) as error:
            raise CommandError(str(error)) from error

    def _options(self, given: dict[str, Any]) -> Options:
        if given["precision"] not in PRECISIONS:
            raise ConfigurationError(f"PRECISION: expected one of {', '.join(PRECISIONS)}, got {given['precision']!r}")
        return Options(
            home=Path(given["home"] or configuration.default_home()).expanduser().absolute(),
            host=given["host"],
            port=configuration.integer("PORT", given["port"], low=1, high=65535),
            model=given["model"],
            precision=given["precision"],
            workers=configuration.integer("WORKERS", given["workers"], low=1, high=64),
            web=configuration.integer("WEB", given["web"], low=1, high=64),
            database_url=os.environ.get("DATABASE_URL"),
            redis_url=os.environ.get("REDIS_URL"),
        )

    def _run(self, options: Options) -> None:
        lock = prepare_home(options.home)
        output = Output(options.home / "logs", sys.stdout)
        installation = Installation(options, output)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: installation.supervisor.request_stop())
        try:
            demo = installation.start()
            if not installation.supervisor.stopping:
                self._greet(installation, demo, output)
            installation.supervisor.run()
        finally:
            installation.supervisor.stop()
            output.say("Lockgate has stopped.")
            os.close(lock)

    def _greet(self, installation: Installation, demo: Demo, output: Output) -> None:
        model = (installation.models(demo.api_key) or ["?"])[0] if demo.api_key else "?"
        messages = [{"role": "user", "content": "What is the capital of France?"}]
        body = json.dumps({"model": model, "stream": True, "temperature": 0, "messages": messages})
        curl = (
            f"curl -sN {demo.base_url}/chat/completions -H 'Authorization: Bearer {demo.api_key}' "
            f"-H 'Content-Type: application/json' -d {shlex.quote(body)}"
        )
        program = (
            f"from openai import OpenAI; client = OpenAI(base_url='{demo.base_url}', api_key='{demo.api_key}'); "
            f"print(client.chat.completions.create(model='{model}', temperature=0, "
            f"messages={messages}).choices[0].message.content)"
        )
        output.say(
            f"""
Lockgate is up, serving {model}.

  Console   {installation.url}/console/   login: {demo.operator}   password: {demo.password}
  API       {demo.base_url}   key: {demo.api_key}

Try it:
  {curl}

  {shlex.quote(sys.executable)} -c {shlex.quote(program) if '"' in program else f'"{program}"'}

Ctrl-C stops everything; the data stays in {installation.home}."""
        )
