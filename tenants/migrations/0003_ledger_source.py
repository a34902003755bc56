"""A ledger row knows the stream entry that brought it, so that what Redis counts of it is counted once."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0002_ledger")]

    operations = [
        migrations.RunSQL(
            "ALTER TABLE tenants_ledgerevent ADD COLUMN source varchar(64) NOT NULL DEFAULT ''",
            "ALTER TABLE tenants_ledgerevent DROP COLUMN source",
            state_operations=[
                migrations.AddField(
                    model_name="ledgerevent",
                    name="source",
                    field=models.CharField(default="", help_text="The stream entry that brought it.", max_length=64),
                )
            ],
        )
    ]
