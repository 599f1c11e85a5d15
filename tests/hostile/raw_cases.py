"""More broken and hostile HTTP, and servers that lie: the bytes, and the kind of answer that they may get.

Each text says for a request what a strict reader of RFC 9112 does: ``refused`` (an error, and nothing reaches the
server), ``served`` (200, and one plain request reaches it), ``either`` of both; never a hang, never a second request.
``bare``: an answer without a body. ``ends``: the client closes its side,
because a reader has to wait for more.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

MIB = 1024 * 1024
NAME = "paced"
BODY = json.dumps({"model": NAME, "user": "case", "messages": [], "max_tokens": 1}).encode().ljust(77)
"""77 bytes, 4d: lengths below are other spellings of it."""
SIZE = f"Content-Length: {len(BODY)}"
TE = "Transfer-Encoding: "
ONE_CHUNK = b"%x\r\n%b\r\n" % (len(BODY), BODY)
WHOLE = ONE_CHUNK + b"0\r\n\r\n"
CHAT = b"/v1/chat/completions"
OK = b"HTTP/1.1 200 OK\r\n"
JSON = b'{"choices":[]}'
FINE = b"Content-Length: %d\r\n\r\n%b" % (len(JSON), JSON)
IN_CHUNKS = b"Transfer-Encoding: chunked\r\n\r\n"
HIDDEN = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 45\r\n\r\n"
HIDDEN += b'{"model": "paced", "user": "smuggled","a": 1}'
assert HIDDEN.endswith(b"}") and len(HIDDEN.split(b"\r\n\r\n")[1]) == 45

Cases = dict[str, tuple[bytes, str]]


def head(*lines: str | bytes, method: bytes = b"POST", target: bytes = CHAT) -> bytes:
    """A request's head with these header lines after ``Host``."""
    rows = [method + b" " + target + b" HTTP/1.1", b"Host: 127.0.0.1"]
    rows += [line.encode("latin-1") if isinstance(line, str) else line for line in lines]
    return b"\r\n".join(rows) + b"\r\n\r\n"


def post(body: bytes) -> bytes:
    """A whole request with this body."""
    return head("Content-Type: application/json", f"Content-Length: {len(body)}") + body


def sized(*lines: str | bytes, target: bytes = CHAT, method: bytes = b"POST") -> bytes:
    """A request with these headers and a body of known length."""
    return head(SIZE, *lines, method=method, target=target) + BODY


def chunks(data: bytes) -> bytes:
    """A request whose body is these bytes, in chunks."""
    return head(TE + "chunked") + data


def start(line: bytes) -> bytes:
    """A request with this first line."""
    return line + b"\r\nHost: 127.0.0.1\r\n" + SIZE.encode() + b"\r\n\r\n" + BODY


_REQUESTS: dict[str, Callable[[bytes], bytes]] = {
    "encoding": lambda text: head(TE.encode() + text) + WHOLE,
    "length": lambda text: head(b"Content-Length: " + text.replace(b"{n}", b"%d" % len(BODY))) + BODY,
    "size": lambda text: chunks(text + b"\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "line": lambda text: sized(text),
    "host": lambda text: sized().replace(b"127.0.0.1", text, 1),
    "page": lambda text: sized(b"Origin: " + text),
    "target": lambda text: sized(target=text),
    "first line": start,
    "body": post,
}
_ANSWERS: dict[str, Callable[[bytes], bytes]] = {
    "answer length": lambda text: OK + b"Content-Length: " + text + b"\r\n\r\n" + JSON,
    "answer size": lambda text: OK + IN_CHUNKS + text + b"\r\n" + JSON + b"\r\n0\r\n\r\n",
    "answer first line": lambda text: text + b"\r\n" + FINE,
}
_LONG = {
    "length": ((b"1" * 5000, "refused"),),
    "size": ((b"0" * MIB + b"5", "refused"), (b"4d;" + b"a" * MIB, "refused")),
    "line": ((b"X-A: " + b"b" * 16_000, "served"), (b"Cookie: " + b"a=b; " * 3000, "served")),
    "target": ((b"/" + b"a" * MIB, "refused"), (CHAT + b"?" + b"a" * 16_000, "served"), (b"/" * 10_000, "either"),
               (b"/" + b"%2e" * 10_000, "either")),
    "first line": ((b"A" * 65536 + b" / HTTP/1.1", "refused"),),
    "body": (
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "refused"), (b'{"model": "' + b"a" * MIB + b'"}', "refused"),
        (b'{"model": "paced", "messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "either"),
        (b'{"model": "paced", "seed": ' + b"9" * 100_000 + b"}", "either"),
    ),
}  # fmt: skip


def rows(table: str) -> list[tuple[bytes, str]]:
    """The bytes and the kind of each row of a table of raw_cases.toml, and of the long ones above."""
    kinds = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())[table]
    return [(text.encode("latin-1"), kind) for kind, texts in kinds.items() for text in texts] + [*_LONG.get(table, ())]


FRAMING: Cases = {
    "small letters": (head("transfer-encoding: chunked") + WHOLE, "served"),
    "the same length twice": (sized(SIZE), "either"),
    "a length, then chunks": (head("Content-Length: 4", TE + "chunked") + WHOLE + HIDDEN, "refused"),
    "chunks, then a length of 0": (head(TE + "chunked", "Content-Length: 0") + WHOLE + HIDDEN, "refused"),
    "an empty encoding beside a length": (sized(TE), "either"),
    "an encoding, and an unknown one": (head(TE + "chunked", TE + "x") + WHOLE, "refused"),
    "two lengths that differ": (head(SIZE, f"Content-Length: {len(BODY + HIDDEN)}") + BODY + HIDDEN, "refused"),
    "two encodings": (head(TE + "chunked", TE + "chunked") + WHOLE, "refused"),
    "an encoding in HTTP/1.0": (chunks(WHOLE).replace(b"HTTP/1.1", b"HTTP/1.0", 1), "refused"),
    "a tab before the colon": (head("Transfer-Encoding\t: chunked", SIZE) + BODY, "refused"),
    "underscores": (sized("Transfer_Encoding: chunked", "Content_Length: 3"), "either"),
    "length with a space before the colon": (head(f"Content-Length : {len(BODY)}") + BODY, "refused"),
    "length without a colon": (head(f"Content-Length {len(BODY)}") + BODY, "refused"),
    "a folded length": (head(f"Content-Length:\r\n {len(BODY)}") + BODY, "either"),
    "a folded encoding": (head(TE + "\r\n chunked") + WHOLE, "either"),
    "an encoding folded into another header": (sized("X-A: b\r\n Transfer-Encoding: chunked"), "either"),
    "an encoding behind a bare CR": (sized("X-A: b\r\rTransfer-Encoding: chunked"), "refused"),
    "an encoding behind NUL": (sized("X-A: b\0\r\n" + TE + "chunked"), "refused"),
    "an encoding in another alphabet": (head(TE.replace("E", "\xc4\x92") + "chunked", SIZE) + BODY, "refused"),
    "neither length nor chunks": (head("Content-Type: application/json") + BODY, "refused"),
    "hop-by-hop: the length": (sized("Connection: Content-Length, Host"), "served"),
    "hop-by-hop: the content type": (sized("Connection: close, content-type"), "served"),
    "a GET with a hidden request": (
        head(f"Content-Length: {len(HIDDEN)}", method=b"GET", target=b"/v1/models") + HIDDEN, "served",
    ),
    "a GET with chunks": (
        head(TE + "chunked", method=b"GET", target=b"/health") + b"%x\r\n%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN),
        "served",
    ),
    "a HEAD with a body": (head("Content-Length: 5", method=b"HEAD", target=b"/health") + b"GET /", "bare"),
}  # fmt: skip

CHUNKED: Cases = {
    "bare LF after the size": (chunks(b"4d\n" + BODY + b"\r\n0\r\n\r\n"), "either"),
    "bare LF after the data": (chunks(b"4d\r\n" + BODY + b"\n0\r\n\r\n"), "refused"),
    "bare LFs at the end": (chunks(ONE_CHUNK + b"0\n\n"), "either, ends"),
    "nothing after the data": (chunks(b"4d\r\n" + BODY + b"0\r\n\r\n"), "refused"),
    "CR CR LF after the data": (chunks(b"4d\r\n" + BODY + b"\r\r\n0\r\n\r\n"), "refused"),
    "an extension with a line feed": (chunks(b"4d;\n" + BODY + b"\r\n0\r\n\r\n"), "either"),
    "an extension hides a request": (
        chunks(ONE_CHUNK + b'0;a="\r\n\r\n' + HIDDEN.replace(b"smuggled", b"legal")), "either",
    ),
    "one byte a chunk": (chunks(b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n"), "served"),
    "100,000 empty lines": (chunks(b"\r\n" * 100_000), "refused"),
    "the end is 000": (chunks(ONE_CHUNK + b"000\r\n\r\n"), "served"),
    "the end has a sign": (chunks(ONE_CHUNK + b"-0\r\n\r\n"), "refused"),
    "trailers": (chunks(ONE_CHUNK + b"0\r\nX-A: b\r\nAuthorization: Bearer x\r\n\r\n"), "either"),
    "trailers with framing": (chunks(ONE_CHUNK + b"0\r\nTransfer-Encoding: x\r\nContent-Length: 9\r\n\r\n"), "either"),
    "a trailer without a colon": (chunks(ONE_CHUNK + b"0\r\nnonsense\r\n\r\n"), "either"),
    "a folded trailer": (chunks(ONE_CHUNK + b"0\r\nX-A: b\r\n c\r\n\r\n"), "either"),
    "a mebibyte of trailers": (chunks(ONE_CHUNK + b"0\r\n" + b"X-A: b\r\n" * (MIB // 8) + b"\r\n"), "refused"),
    "half a chunk": (chunks(b"ff\r\nabc"), "either, ends"),
    "a trailer with NUL": (chunks(ONE_CHUNK + b"0\r\nX-A: \0\r\n\r\n"), "either"),
    "a trailer with a bare CR": (chunks(ONE_CHUNK + b"0\r\nX-A: b\rc\r\n\r\n"), "either"),
}  # fmt: skip

HEADS: Cases = {
    "two pages": (sized("Origin: http://localhost", "Origin: https://evil.example"), "either"),
    "two sites": (sized("Sec-Fetch-Site: none", "Sec-Fetch-Site: cross-site"), "either"),
    "a header of 1 MiB": (sized("X-A: " + "a" * MIB), "refused"),
    "10,000 headers": (sized(*(f"X-{n}: b" for n in range(10_000))), "refused"),
    "an endless head": (b"POST / HTTP/1.1\r\n" + b"X-A: b\r\n" * 300_000, "refused"),
    "a fold before all headers": (b"POST / HTTP/1.1\r\n Host: a\r\n\r\n", "refused"),
    "a bare LF in a header": (sized("X-A: b\nContent-Length: 3"), "either"),
    "no Host": (sized().replace(b"Host: 127.0.0.1\r\n", b""), "refused"),
    "empty lines before": (b"\r\n" * 3 + sized(), "either"),
    "a foreign page's preflight": (
        head("Origin: https://evil.example", "Access-Control-Request-Method: POST", method=b"OPTIONS"), "either",
    ),
    "190 headers": (sized(*(f"X-{n}: b" for n in range(185))), "served"),
    "a head of 60,000 bytes": (sized(*(f"X-{n}: {'b' * 6000}" for n in range(10))), "served"),
    "a head of 130 kB in 20 lines": (sized(*(f"X-{n}: {'b' * 6500}" for n in range(20))), "refused"),
    "only bare LFs": (sized().replace(b"\r\n", b"\n"), "either"),
    "only bare CRs": (sized().replace(b"\r\n", b"\r"), "refused, ends"),
    "CR CR LF": (sized().replace(b"\r\n", b"\r\r\n"), "refused, ends"),
    "LF CR": (sized().replace(b"\r\n", b"\n\r"), "refused"),
    "a line feed before the end": (head(SIZE)[:-2] + b"\n\r\n" + BODY, "either"),
    "a folded Host": (sized().replace(b"Host: ", b"Host:\r\n "), "either"),
    "a Host only in the target": (
        b"POST http://127.0.0.1/v1/chat/completions HTTP/1.1\r\n" + SIZE.encode() + b"\r\n\r\n" + BODY, "refused",
    ),
    "Expect with HTTP/1.0": (sized("Expect: 100-continue").replace(b"HTTP/1.1", b"HTTP/1.0", 1), "served"),
    "Expect, and the body at once": (sized("Expect: 100-continue"), "served"),
    "Expect, and a body that is too long": (head("Content-Length: 99999999", "Expect: 100-continue"), "refused"),
}  # fmt: skip

TARGETS: Cases = {"OPTIONS of all": (head(method=b"OPTIONS", target=b"*"), "either")}

BODIES: Cases = {
    "a body that stops short": (head("Content-Length: 500") + BODY, "either, ends"),
    "a gibibyte declared": (head(f"Content-Length: {1024 * MIB}") + b"{", "refused"),
    "a GET that upgrades": (head("Upgrade: websocket", "Connection: Upgrade", method=b"GET", target=b"/"), "either"),
    "the HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x12\x04\0\0\0\0\0\0\x03\0\0\0\x64", "refused"),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 505, "refused, ends"),
    "random bytes": (bytes(range(256)) * 4 + b"\r\n\r\n", "refused"),
}  # fmt: skip

RAW_CASES: Cases = {**FRAMING, **CHUNKED, **HEADS, **TARGETS, **BODIES}
for _table, _make in _REQUESTS.items():
    RAW_CASES |= {f"{_table} {text[:48]!r}, {len(text)}": (_make(text), kind) for text, kind in rows(_table)}

# -- servers: their whole answer, and what the client of a request that is not streamed may get -----------------------
# whole: 200 with the body given. cut: a broken answer, seen as broken. refused: 502. told: cut, or an error at its end.

STREAM = OK + b"Content-Type: text/event-stream\r\n" + IN_CHUNKS
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":" hi"}}]}\n\n'


_BAD = "refused or cut"
LIARS: Cases = {
    "length 14, 14": (_ANSWERS["answer length"](b"14, 14"), "whole, refused or cut"),
    "size E;a=b": (_ANSWERS["answer size"](b"E;a=b"), "whole"),
    "a mebibyte of extension": (_ANSWERS["answer size"](b"e;" + b"a" * MIB), "whole, refused or cut"),
    "nothing": (b"", _BAD),
    "random bytes": (bytes(range(256)) * 64, _BAD),
    "an endless head": (OK + b"X-A: b\r\n" * 100_000, _BAD),
    "an endless line": (b"HTTP/1.1 200 " + b"a" * MIB, _BAD),
    "HTTP/9.9": (b"HTTP/9.9 200 OK\r\n" + FINE, "whole, refused or cut"),
    "two lengths": (OK + b"Content-Length: 200\r\n" + FINE, _BAD),
    "a length and chunks": (OK + b"Content-Length: 2\r\n" + IN_CHUNKS + b"e\r\n" + JSON + b"\r\n0\r\n\r\n", "anything"),
    "a body that stops short": (OK + b"Content-Length: 200\r\n\r\n" + JSON, _BAD),
    "a stream with a broken chunk": (STREAM + b"%x\r\n%b\r\nzz\r\n" % (len(EVENT), EVENT), "told or refused"),
    "a stream that is cut": (STREAM + b"%x\r\n%b\r\n" % (len(EVENT), EVENT), "told or refused"),
    "a stream that is cut in a chunk": (STREAM + b"%x\r\n%b" % (len(EVENT) + 50, EVENT), "told"),
    "only 100 Continue": (b"HTTP/1.1 100 Continue\r\n\r\n" * 5, _BAD),
    "101 Switching": (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\x81\x02hi", _BAD,
    ),
    "trailers": (OK + IN_CHUNKS + b"e\r\n" + JSON + b"\r\n0\r\nSet-Cookie: a=b\r\n\r\n", "whole"),
    "endless trailers": (
        OK + IN_CHUNKS + b"e\r\n" + JSON + b"\r\n0\r\n" + b"X-A: b\r\n" * 200_000, "whole, refused or cut",
    ),
    "no end of the chunks": (OK + IN_CHUNKS + b"e\r\n" + JSON + b"\r\n", _BAD),
    "encoding gzip, chunked": (
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\ne\r\n" + JSON + b"\r\n0\r\n\r\n", "anything",
    ),
    "encoding x": (OK + b"Transfer-Encoding: x\r\n\r\n" + JSON, "anything"),
    "no length": (OK + b"\r\n" + JSON, "whole"),
    "more than its length": (OK + FINE + b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nSMUGGLED", "whole"),
    "a second answer": (OK + FINE + OK + b"Set-Cookie: a=b\r\nContent-Length: 8\r\n\r\nSMUGGLED", "whole"),
    "a fold": (OK + b"X-A: b\r\n Set-Cookie: c\r\n" + FINE, "whole, refused or cut"),
    "a bare LF": (OK + b"X-A: b\nX-B: c\r\n" + FINE, "whole, refused or cut"),
    "a bare CR": (OK + b"X-A: b\rSet-Cookie: c\r\n" + FINE, _BAD),
    "NUL in a value": (OK + b"X-A: b\0c\r\n" + FINE, _BAD),
    "a space in a name": (OK + b"Set-Cookie : c\r\n" + FINE, "refused or cut"),
    "no colon": (OK + b"nonsense\r\n" + FINE, _BAD),
    "a line of 1 MiB": (OK + b"X-A: " + b"b" * MIB + b"\r\n" + FINE, _BAD),
    "10,000 lines": (OK + b"X-A: b\r\n" * 10_000 + FINE, "whole, refused or cut"),
    "1,000 times 102": (b"HTTP/1.1 102 Processing\r\n\r\n" * 1_000 + OK + FINE, "whole, refused or cut"),
    "early hints": (b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + OK + FINE, "whole"),
    "an unknown 1xx": (b"HTTP/1.1 199 What\r\n\r\n" + OK + FINE, "whole, refused or cut"),
    "no phrase": (b"HTTP/1.1 200\r\n" + FINE, "whole"),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\n" + FINE, "whole"),
    "escapes in the phrase": (b"HTTP/1.1 200 \x1b[31mOK\r\n" + FINE, "whole, refused or cut"),
    "NUL in the phrase": (b"HTTP/1.1 200 O\0K\r\n" + FINE, "whole, refused or cut"),
    "status 999": (b"HTTP/1.1 999 X\r\n" + FINE, "anything"),
    "a redirect": (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", "status 302"),
    "a 204 with a body": (b"HTTP/1.1 204 No Content\r\n" + FINE, "status 204 or refused"),
    "a 304 with a body": (b"HTTP/1.1 304 Not Modified\r\n" + FINE, "status 304 or refused"),
    "hop-by-hop headers": (OK + b"Connection: x-evil\r\nKeep-Alive: 9\r\nProxy-Authenticate: x\r\n" + FINE, "whole"),
    "gzip that is none": (OK + b"Content-Encoding: gzip\r\n" + FINE, "whole"),
    "a control character in a value": (OK + b"X-A: \x1b[31m\r\n" + FINE, "whole, refused or cut"),
}  # fmt: skip
for _table, _make in _ANSWERS.items():
    LIARS |= {f"{_table} {text!r}": (_make(text), kind) for text, kind in rows(_table)}
