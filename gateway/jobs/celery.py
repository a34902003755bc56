"""The Celery application: what is done by the clock and may be a little late. Run by `celery -A gateway.jobs.celery worker -B`.

What admission and the ledger need by the second is the flusher's, a process of its own.
"""

import os
from datetime import timedelta

from celery import Celery
from celery.schedules import crontab

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")

app = Celery("lockgate", include=["gateway.jobs.tasks"])
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.beat_schedule = {
    "make ledger partitions": {"task": "gateway.jobs.tasks.make_partitions", "schedule": crontab(hour="3", minute="17")},
    "note when keys were used": {"task": "gateway.jobs.tasks.note_key_use", "schedule": timedelta(minutes=1)},
    "renew the projection": {"task": "gateway.jobs.tasks.renew_projection", "schedule": timedelta(hours=1)},
}
app.conf.task_default_queue = "lockgate"
app.conf.worker_hijack_root_logger = False
