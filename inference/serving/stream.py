"""What the worker knows of one request besides the engine: where its frames go, and what they said so far."""

from asyncio import TimerHandle
from collections.abc import Mapping
from dataclasses import dataclass, field

from inference.protocol.frames import Attached, ChoiceEnd, Finish, Frame, PromptLogprobs, Started, Submit, TokenOut, Tokens
from inference.serving.engine_thread import Command
from inference.serving.link import Link

_TOKENS_A_FRAME = 4096


@dataclass(slots=True, kw_only=True)
class Stream:
    """One request. A resumable one keeps all of its tokens, so that a gateway can attach at any index."""

    request_id: str
    link: Link | None
    """Where its frames go. None: its gateway is gone."""
    resumable: bool
    prompt_tokens: int
    slot: int | None = None
    """Its place in the journal; None until it is claimed, and again once it has ended."""
    deferred: list[Command] = field(default_factory=list)
    """What came before the claim was answered."""
    error: str | None = None
    """Why the worker itself ended it."""
    timer: TimerHandle | None = None
    """Of an orphan: when it is cancelled. Of an ended one: when it is forgotten."""
    started: Started | None = None
    finish: Finish | None = None
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    tokens: dict[int, list[TokenOut]] = field(default_factory=dict)
    ends: dict[int, ChoiceEnd] = field(default_factory=dict)

    @classmethod
    def of(cls, submit: Submit, link: Link) -> "Stream":
        return cls(request_id=submit.request_id, link=link, resumable=submit.resumable, prompt_tokens=len(submit.prompt))

    @property
    def running(self) -> bool:
        """The engine has it."""
        return self.slot is not None

    def keep(self, token: TokenOut) -> None:
        self.tokens.setdefault(token.choice, []).append(token)

    def point_to(self, link: Link | None) -> None:
        """Move the stream to this link, or to none."""
        if self.link is not None:
            self.link.request_ids.discard(self.request_id)
        self.link = link
        if link is not None:
            link.request_ids.add(self.request_id)

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def replay(self, next_index: Mapping[int, int]) -> list[Frame]:
        """The answer to Attach: what the new gateway lacks. Ends of choices come again, they are the same."""
        cached = self.started.cached_tokens if self.started else 0
        frames: list[Frame] = [Attached(request_id=self.request_id, prompt_tokens=self.prompt_tokens, cached_tokens=cached)]
        if self.prompt_logprobs and not any(next_index.values()):
            frames.append(Tokens(prompt_logprobs=self.prompt_logprobs))
        missing = [token for choice, tokens in self.tokens.items() for token in tokens[next_index.get(choice, 0) :]]
        frames += [Tokens(tokens=missing[start : start + _TOKENS_A_FRAME]) for start in range(0, len(missing), _TOKENS_A_FRAME)]
        if self.ends:
            frames.append(Tokens(ends=list(self.ends.values())))
        if self.finish is not None:
            frames.append(self.finish)
        return frames
