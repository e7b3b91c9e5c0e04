"""An agent whose conversation grows beyond the window goes on, and pays for each summary once."""

from __future__ import annotations

from typing import Any

PROGRAM = """
    import mulligan

    class TooLong(Exception):
        status_code, code = 400, "context_length_exceeded"

    class Filtered(Exception):
        status_code, code = 400, "content_policy_violation"

    TooLong.__module__ = Filtered.__module__ = "openai"
    paid = []

    def shorten(text):
        paid.append(text)
        return f"In short: {text[:6]}."

    def other(messages, **rest):
        return "The other model answers."

    @mulligan.model(compress=shorten, fallback_models=[mulligan.Fallback(other, on="content_policy")])
    def chat(messages, model="gpt-4o"):
        size = sum(len(message.content) for message in messages)
        if "forbidden" in messages[-1].content:
            raise Filtered("Your request was rejected by our safety system: content policy violation.")
        if size > 24_000:
            raise TooLong(f"This model's maximum context length is 6000 tokens. "
                          f"However, your messages resulted in {size // 4} tokens.")
        return f"{len(messages)} messages, {sum('In short' in message.content for message in messages)} summaries"

    class Message:
        '''Like a message of LangChain.'''
        def __init__(self, type, content, **fields):
            self.type, self.content = type, content
            self.__dict__.update(fields)
        @property
        def text(self):
            return self.content

    with mulligan.run("reader"):
        messages = [Message("human", "Read the pages.")]
        for page in range(8):
            call = {"id": f"c{page}", "name": "read", "args": {"page": page}, "type": "tool_call"}
            messages.append(Message("ai", "", tool_calls=[call]))
            messages.append(Message("tool", f"page {page} " * 600, tool_call_id=f"c{page}"))
            print(chat(messages))
        messages.append(Message("human", "Say something forbidden."))
        print(chat(messages))
    print(len(paid), "paid,", len(set(paid)), "different")
"""


def test_a_growing_conversation_pays_for_each_summary_once_and_show_names_them(user: Any) -> None:
    done = user.runs_program(PROGRAM)
    assert done.returncode == 0, done.stderr
    *answers, forbidden, paid = done.stdout.splitlines()
    assert answers[0] == "3 messages, 0 summaries"
    # Every message is still there, and the window of four pages holds the newest ones whole.
    assert answers[-1].startswith("17 messages, ")
    assert int(answers[-1].split()[2]) >= 3
    assert forbidden == "The other model answers."
    bought, different = paid.split()[0], paid.split()[2]
    assert bought == different
    shown = user.types("show", user.sees("runs")[0]["id"]).stdout
    assert "tokens, by summarizer" in shown
    assert "summarized message 2 (read): " in shown
