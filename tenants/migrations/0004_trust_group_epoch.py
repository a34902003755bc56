"""A trust group has a cache epoch of its own, above any that a member or former member had."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0003_ledger_source")]

    operations = [
        migrations.AddField(
            model_name="trustgroup",
            name="cache_epoch",
            field=models.PositiveIntegerField(default=0, help_text="What its members' epoch is at least, former members' included."),
        ),
        migrations.RunSQL(
            "UPDATE tenants_trustgroup SET cache_epoch = (SELECT coalesce(max(cache_epoch), 0) FROM tenants_tenant)",
            migrations.RunSQL.noop,
        ),
    ]
