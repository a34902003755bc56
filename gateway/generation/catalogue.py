"""The models that linked workers serve, and what the gateway needs of each."""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.dispatch.link import Link
from gateway.text import Tokenizer, TokenizerUnsupported
from inference.protocol.frames import ModelCard

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServedModel:
    card: ModelCard
    tokenizer: Tokenizer


class Catalogue:
    """A tokenizer for every model, made off the event loop as a worker introduces itself; a worker takes requests from then on.

    Workers of one name serve one model. Where fingerprints differ (an upgrade that rolls), new requests go to the model that was there
    first, until no worker of it is left.
    """

    def __init__(self) -> None:
        self._by_link: dict[Link, ServedModel] = {}
        self._making: dict[Link, asyncio.Task[None]] = {}

    def greeted(self, link: Link) -> None:
        """A worker has introduced itself, for the first time or again."""
        card = link.card
        assert card is not None
        known = self._by_link.get(link)
        if known is not None and known.card == card:
            return
        if link in self._making:
            self._making[link].cancel()
        task = asyncio.create_task(self._make(link, card))
        self._making[link] = task
        task.add_done_callback(lambda done: self._making.pop(link, None) if self._making.get(link) is done else None)

    async def settle(self) -> None:
        """Wait until every worker that has introduced itself is known."""
        await asyncio.gather(*self._making.values(), return_exceptions=True)

    def close(self) -> None:
        for task in self._making.values():
            task.cancel()

    def models(self) -> list[ServedModel]:
        """One for each name, of the workers that are up; in order of name."""
        by_name: dict[str, ServedModel] = {}
        for link, model in self._by_link.items():
            if link.up:
                by_name.setdefault(model.card.name, model)
        return [by_name[name] for name in sorted(by_name)]

    def model(self, name: str) -> ServedModel | None:
        return next((model for link, model in self._by_link.items() if link.up and model.card.name == name), None)

    def of(self, link: Link) -> ServedModel | None:
        """The model that this worker serves."""
        return self._by_link.get(link)

    def links(self, model: ServedModel) -> list[Link]:
        """The links that are up and serve exactly this model."""
        fingerprint = model.card.fingerprint
        return [link for link, other in self._by_link.items() if link.up and other.card.fingerprint == fingerprint]

    def keep(self, links: Iterable[Link]) -> None:
        """Forget all links but these."""
        kept = set(links)
        for link in [link for link in self._by_link if link not in kept]:
            del self._by_link[link]

    async def _make(self, link: Link, card: ModelCard) -> None:
        tokenizer = next((model.tokenizer for model in self._by_link.values() if _same_text(model.card, card)), None)
        try:
            if tokenizer is None:
                tokenizer = await asyncio.get_running_loop().run_in_executor(None, Tokenizer, card)
        except TokenizerUnsupported as error:
            log.error("worker %s can't be used: the tokenizer of %s isn't supported: %s", link.worker_id, card.name, error)
            self._by_link.pop(link, None)
            return
        self._by_link[link] = ServedModel(card, tokenizer)


def _same_text(one: ModelCard, other: ModelCard) -> bool:
    return (
        one.name == other.name
        and one.fingerprint == other.fingerprint
        and one.tokenizer_json == other.tokenizer_json
        and one.chat_template == other.chat_template
        and (one.bos_token, one.eos_token) == (other.bos_token, other.eos_token)
    )
