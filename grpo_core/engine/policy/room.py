"""Say that a prompt does not fit into a model's context, and what to do about it."""

from __future__ import annotations

from grpo_core.protocol.errors import ConfigError


class NoRoomError(ConfigError):
    """A prompt and the new tokens after it exceed the model's context.

    Args:
        prompt: tokens of the prompt.
        new: new tokens after it; 0 where the model fills gaps of the prompt.
        context: most tokens that the model can attend to.
    """

    def __init__(self, prompt: int, new: int, context: int) -> None:
        lengths = (
            f"a prompt of {prompt} tokens and {new} new ones exceed"
            if new
            else f"a prompt of {prompt} tokens exceeds"
        )
        self.finding = f"{lengths} the model's context of {context}"
        """What is wrong."""
        room = context - prompt
        lower = f"lower sampling.max_new_tokens to {room} or less, " if room > 0 else ""
        self.advice = f"{lower}shorten the prompt, or take a model with a larger context"
        """What to do."""
        super().__init__(f"{self.finding}; {self.advice}")
