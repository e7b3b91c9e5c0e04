"""Recover model calls: compress a conversation that is too long, answer a content refusal with a fallback."""

import mulligan

WINDOW = 2_000


class ProviderError(Exception):
    def __init__(self, status, message):
        super().__init__(message)
        self.status_code = status


def apologize(failure):
    return f"I cannot answer that: {failure.hint}"


@mulligan.model(fallback=apologize)
def chat(messages):
    tokens = sum(len(message["content"]) for message in messages) // 4
    if tokens > WINDOW:
        raise ProviderError(400, f"prompt is too long: {tokens} tokens > {WINDOW} maximum")
    if "secret plans" in messages[-1]["content"]:
        raise ProviderError(400, "Rejected by our safety system: content policy violation.")
    return f"I have read {len(messages)} messages, {tokens} tokens."


log = "\n".join(f"12:00:{number % 60:02} INFO page {number} of the ledger read" for number in range(400))
conversation = [
    {"role": "user", "content": "Read the ledger."},
    {"role": "assistant", "content": "I read it."},
    {"role": "tool", "content": log},
    *({"role": ("assistant", "user")[turn % 2], "content": f"Remark {turn}."} for turn in range(8)),
    {"role": "user", "content": "What does it say?"},
]

with mulligan.run("auditor") as run:
    print(chat(conversation))
    print(chat([{"role": "user", "content": "Tell me the secret plans."}]))
    print(f"run {run.id} is {run.status}")
