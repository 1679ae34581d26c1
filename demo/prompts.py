"""The demo's conversation: one long system prompt that all requests share, and sixteen different questions."""

from __future__ import annotations

from dataclasses import dataclass

QUESTIONS = (
    "What is the capital of France?",
    "Which hall shows the oldest clock?",
    "Name three primary colours.",
    "How much is a ticket for two adults?",
    "Write one sentence about the sea.",
    "What can children do in hall 7?",
    "Explain photosynthesis in one sentence.",
    "When does the museum close on Sundays?",
    "Give me a synonym for happy.",
    "Who painted the Mona Lisa?",
    "Is photography allowed?",
    "What is two plus two?",
    "Where can I leave my coat?",
    "Tell me about the exhibit in hall 12.",
    "Name a planet with rings.",
    "How do I get to the café?",
)

_OBJECTS = (
    "clock",
    "globe",
    "sextant",
    "telescope",
    "loom",
    "printing press",
    "steam engine",
    "radio",
    "harp",
    "compass",
)
_MAKERS = (
    "a workshop in Lyon",
    "two sisters from Bergen",
    "an unknown master",
    "the city's own guild",
    "a royal foundry",
)


@dataclass(frozen=True)
class Conversation:
    """A chat request: what the operator says to every visitor, and what this visitor asks."""

    system: str
    question: str

    def messages(self) -> list[dict[str, str]]:
        return [{"role": "system", "content": self.system}, {"role": "user", "content": self.question}]


def system_prompt(halls: int = 60) -> str:
    """A museum guide's handbook; 60 halls make about 2,500 tokens with SmolLM2's tokenizer."""
    lines = [
        "You are the guide of the city museum. Answer every visitor in at most two short, friendly sentences.",
        "The museum opens at nine and closes at six, on Sundays at five. A ticket costs eight euros, children none.",
        "Photography without flash is allowed. Coats go to the cloakroom beside the entrance. The café is on the roof.",
    ]
    for hall in range(1, halls + 1):
        thing = _OBJECTS[hall * 7 % len(_OBJECTS)]
        maker = _MAKERS[hall * 3 % len(_MAKERS)]
        lines.append(
            f"Hall {hall} shows a {thing} made by {maker} in {1480 + hall * 7}; visitors may touch copy {hall % 9 + 1} "
            f"and find its story on panel {hall * 11 % 97}."
        )
    return "\n".join(lines)


def conversations(count: int) -> list[Conversation]:
    """`count` requests over one system prompt, all different."""
    system = system_prompt()
    return [
        Conversation(
            system, QUESTIONS[index % len(QUESTIONS)] + ("" if index < len(QUESTIONS) else f" (visitor {index})")
        )
        for index in range(count)
    ]
