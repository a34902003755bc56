"""The official JavaScript client against a running installation."""

import os
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(shutil.which("npm") is None, reason="Node.js and npm are needed for the JavaScript client"),
]

PACKAGES = Path(__file__).parent / "node"

PROGRAM = textwrap.dedent("""
    import OpenAI from "openai";
    const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: process.env.API_KEY, maxRetries: 0 });
    const model = process.env.MODEL_NAME;
    const messages = [{ role: "user", content: "What is the capital of France?" }];
    const done = await client.chat.completions.create({ model, messages, temperature: 0 });
    let streamed = "";
    let usage = null;
    for await (const chunk of await client.chat.completions.create({
        model, messages, temperature: 0, stream: true, stream_options: { include_usage: true } })) {
        streamed += chunk.choices[0]?.delta?.content ?? "";
        usage = chunk.usage ?? usage;
    }
    let refused = null;
    try { await client.chat.completions.create({ model: "no-such-model", messages }); } catch (error) { refused = error; }
    const models = [];
    for await (const m of client.models.list()) models.push(m.id);
    const text = done.choices[0].message.content;
    console.log(JSON.stringify({ text, streamed, usage, models, status: refused.status, code: refused.code }));
""")


@pytest.fixture(scope="session")
def node_modules(tmp_path_factory):
    """The pinned client, installed from its lock file once a session."""
    folder = tmp_path_factory.mktemp("node")
    for file in ("package.json", "package-lock.json"):
        shutil.copy(PACKAGES / file, folder / file)
    subprocess.run(["npm", "ci", "--silent", "--no-audit", "--no-fund"], cwd=folder, check=True, timeout=240)
    return folder


def test_chat_streaming_and_not(up, model, node_modules):
    import json

    (node_modules / "program.mjs").write_text(PROGRAM)
    environment = os.environ | {"BASE_URL": up.demo["base_url"], "API_KEY": up.demo["api_key"], "MODEL_NAME": model}
    done = subprocess.run(
        ["node", "program.mjs"], cwd=node_modules, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["text"] == said["streamed"] == "The capital of France is Paris."
    assert said["usage"]["completion_tokens"] == 8
    assert said["models"] == [model]
    assert said["status"] == 404
    assert said["code"] == "model_not_found"
