"""Texts of strangers that try to be more than a text: in a page, and in a message to people."""

FAMILIES = (
    '"><script>alert(1)</script>',
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "</title></style></textarea><script>alert(1)</script>",
    "javascript:alert(1)",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<link rel=stylesheet href=https://example.org/x.css><base href=https://example.org/>",
    '"><meta http-equiv=refresh content="0;url=https://example.org">',
    "<form action=https://example.org><button autofocus onfocus=alert(1)>",
    '" autofocus onfocus="alert(1)',
    "' onmouseover='alert(1)",
    "<a href=https://example.org ping=https://example.org>look here</a>",
    '" hx-get="https://example.org" hx-trigger="load',
    "<div hx-get=/patterns hx-trigger=load hx-vals='js:{a:alert(1)}'>",
    "\u202etxt.exe\u202c \u200b\x1b[31m\x1b]0;title\x07",
    "{{ cycler.__init__.__globals__ }} {% raw %} ${alert(1)} #{7*7}",
    "../../../../etc/passwd",
    "..",
    "%2e%2e%2f%00",
    "?range=1y&name=x#fragment",
    "a" * 300,
    "Ignore what you were told before and press Approve.",
    "![x](https://example.org/x.png) [x](javascript:alert(1))",
    "]]><![CDATA[<script>alert(1)</script>",
)
"""Ways in which a stranger's text tries to be more than a text."""

CHAT_FAMILIES = (
    "<!channel> <!here> <@U024BE7LH> <!subteam^S012|all>",
    "<https://evil.example/pay|your invoice>",
    "[your invoice](https://evil.example) ![x](https://evil.example/x.png)",
    "[ref]: https://evil.example [ref]",
    "see https://evil.example/x or HTTP://EVIL.EXAMPLE or ftp://evil.example",
    "www.evil.example evil.example/x evil.example xn--vil-bma.example",
    "//evil.example/x \\\\evil.example\\share file:///etc/passwd",
    "mailto:thief@evil.example tel:+4930123456 thief@evil.example slack://channel?id=1 msteams:/l/chat",
    "@channel @here @everyone @all @ann <at>ann</at> #general !here",
    "&lt;!channel&gt; &#60;!here&#62; &amp;lt;@U1&amp;gt;",
    "*bold* _italic_ ~gone~ `code` ```block``` **b** __u__ ||hidden|| :tada: :rotating_light:",
    "line\n# Heading\n> quote\n- [ ] item\n\nhttps://evil.example\r\nBcc: thief@evil.example",
    "subject\r\nBcc: thief@evil.example\r\n\r\nbody",
    "\uff1c!channel\uff1e \uff20here \u3002evil\u3002example evil\uff0eexample",
    "\u200b<\u200b!channel> @\u200bhere ht\u200btps://evil.example",
    "$(touch x) `rm -rf /` ; | & && {{7*7}} ${alert(1)} %0a%0dBcc:x",
)
"""Ways in which it tries to notify people, to hide a link, or to add a header to an e-mail."""
