"""The first request, run before anyone waits for it: what runs first has its kernels compiled and its threads started."""

from dataclasses import replace

from inference.config import EngineConfig
from inference.engine import Engine
from inference.models.base import Model
from inference.protocol.frames import Submit
from inference.protocol.sampling import Sampling

_PROMPT_TOKENS = 32
_OUTPUT_TOKENS = 3


def warm_up(model: Model, config: EngineConfig) -> None:
    """Prefill and decode once, on an engine of its own with a few blocks: the serving engine's cache and counters know nothing of it."""
    output = min(_OUTPUT_TOKENS, model.context_length - 1)
    prompt = min(_PROMPT_TOKENS, model.context_length - output)
    blocks = -(-(prompt + output) // config.block_size)
    engine = Engine(model, replace(config, blocks=blocks, max_sequences=1))
    sampling = Sampling(max_tokens=output, ignore_eos=True)
    engine.submit(Submit(request_id="warm-up", prompt=[0] * prompt, sampling=sampling, allowance=output, account="", share=""))
    while engine.has_work:
        engine.step()
