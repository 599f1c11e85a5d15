"""More broken and hostile HTTP, and servers that lie: the bytes, and the kind of answer that they may get.

Each text says for a request what a strict reader of RFC 9112 does: ``refused`` (an error, and nothing reaches the
server), ``served`` (200, and one plain request reaches it), ``either`` of both; never a hang, never a second request.
``bare``: an answer without a body. ``ends``: the client closes its side,
because a reader has to wait for more.
"""

from __future__ import annotations

import json

from tests.hostile.gateway_attacks import LENGTH, MIB, head

NAME = "far"
BODY = json.dumps({"model": NAME, "user": "case", "messages": [], "max_tokens": 1}).encode().ljust(77)
"""77 bytes, 4d: lengths below are other spellings of it."""
SIZE = f"Content-Length: {len(BODY)}"
TE = "Transfer-Encoding: "
ONE_CHUNK = b"%x\r\n%b\r\n" % (len(BODY), BODY)
WHOLE = ONE_CHUNK + b"0\r\n\r\n"
CHAT = b"/v1/chat/completions"
HIDDEN = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 45\r\n\r\n"
HIDDEN += b'{"model": "far", "user": "smuggled", "a": 12}'
assert HIDDEN.endswith(b"}") and len(HIDDEN.split(b"\r\n\r\n")[1]) == 45

Cases = dict[str, tuple[bytes, str]]


def sized(*lines: str | bytes, target: bytes = CHAT, method: bytes = b"POST") -> bytes:
    """A request with these headers and a body of known length."""
    return head(SIZE, *lines, method=method, target=target) + BODY


def chunks(data: bytes) -> bytes:
    """A request whose body is these bytes, in chunks."""
    return head(TE + "chunked") + data


def start(line: bytes) -> bytes:
    """A request with this first line."""
    return line + b"\r\nHost: 127.0.0.1\r\n" + SIZE.encode() + b"\r\n\r\n" + BODY


_ENCODINGS = {
    "Chunked": "served", "CHUNKED": "served", "chunked ": "either", "\tchunked\t": "either", "chunked;q=1": "refused",
    '"chunked"': "refused", "chunked,": "either", ", chunked": "either", "gzip, chunked": "refused",
    "gzip": "refused", "deflate": "refused", "chunked, identity": "refused", "identity": "refused", "": "refused",
    "chunked\0": "refused", "chunked\x0c": "refused", "\xa0chunked": "refused", "chun\xe2\x84\xaaed": "refused",
    "chunked\x7f": "refused", "chun ked": "refused", "chunked chunked": "refused", "xchunked": "refused",
    "chunkedx": "refused", "cow, chunked": "refused", "chunked\x85": "refused",
}  # fmt: skip
_LENGTHS = {
    "{n}": "served", "{n} ": "either", "\t{n}": "either", "0{n}": "either", "{n}, {n}": "either", "5, {n}": "refused",
    "{n},": "refused", "{n}.0": "refused", "{n}e0": "refused", "7_7": "refused", "{n};": "refused", "-0": "refused",
    "+0": "refused", "{n}\0": "refused", "'{n}'": "refused", "0o115": "refused", "\xb2": "refused",
    "{n}\x0b": "refused",
    "\xd9\xa7\xd9\xa7": "refused", "\xef\xbc\x97\xef\xbc\x97": "refused", "18446744073709551693": "refused",
    "9223372036854775885": "refused", "4294967373": "refused", "-{n}": "refused", "{n} 5": "refused", "NaN": "refused",
    "{n}\x85": "refused", "\xa0{n}": "refused", "0b1001101": "refused", "1" * 5000: "refused",
}  # fmt: skip
FRAMING: Cases = {
    **{f"encoding {text!r}": (head(TE + text) + WHOLE, kind) for text, kind in _ENCODINGS.items()},
    **{
        f"length {text[:20]!r}": (head("Content-Length: " + text.format(n=len(BODY))) + BODY, kind)
        for text, kind in _LENGTHS.items()
    },
    "small letters": (head("transfer-encoding: chunked") + WHOLE, "served"),
    "the same length twice": (sized(SIZE), "either"),
    "a length, then chunks": (head("Content-Length: 4", TE + "chunked") + WHOLE + HIDDEN, "refused"),
    "chunks, then a length of 0": (head(TE + "chunked", "Content-Length: 0") + WHOLE + HIDDEN, "refused"),
    "an empty encoding beside a length": (sized(TE), "either"),
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

_SIZES = {
    b"+4d": "refused", b" 4d": "either", b"4d ": "either", b"4d\t": "either", b"4_d": "refused", b"0x4d": "refused",
    b"": "refused", b";a=b": "refused", b"4d,4d": "refused", b"\xef\xbc\x94d": "refused", b"4d\0": "refused",
    b"4D": "served", b"000000000000000000000000004d": "either", b"-4d": "refused", b"4d g": "refused",
    b"FFFFFFFFFFFFFFFF": "refused, ends", b"8000000000000000": "refused, ends", b"10000000000000004d": "refused, ends",
    b"4d;": "either", b"4d;a": "either", b'4d;a="b;c"': "either", b"4d;a=\rb": "either", b"4d\r": "refused",
    b"4d;a=b\n0": "either", b"4d\x0b": "refused", b"4dh": "refused", b"4d;a=\0": "either", b"1e1": "refused, ends",
}  # fmt: skip
CHUNKED: Cases = {
    **{f"size {text!r}": (chunks(text + b"\r\n" + BODY + b"\r\n0\r\n\r\n"), kind) for text, kind in _SIZES.items()},
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
    "a trailer with NUL": (chunks(ONE_CHUNK + b"0\r\nX-A: \0\r\n\r\n"), "either"),
    "a trailer with a bare CR": (chunks(ONE_CHUNK + b"0\r\nX-A: b\rc\r\n\r\n"), "either"),
}  # fmt: skip

_LINES = {
    "X(A): b": "refused", "X/A: b": "refused", 'X"A: b': "refused", "X\xe9: b": "refused", "X\x7f: b": "refused",
    "X-A : b": "refused", "X-A\t: b": "refused", "\tX-A: b": "either", "X-A: \x7f": "either", "X-A: \x1b[31m": "either",
    "X-A: \xff": "either", "X-A: b\x0bc": "either", "X-A": "refused", ":": "refused", "X[A]: b": "refused",
    "X@A: b": "refused", "X-A;b: c": "refused", "X{A}: b": "refused", "X-A: b\r": "either", "X-A:b\0": "refused",
    "X-A:": "served", "X-A: " + "b" * 16_000: "served", "Accept-Encoding: gzip, br, zstd": "served",
    "X-HTTP-Method-Override: DELETE": "served", "X-Forwarded-Host: evil.example": "served",
    "X-Forwarded-For: 127.0.0.1": "served", "Forwarded: host=evil.example": "served",
    "X-Original-URL: /slots/0": "served",
    "X-Rewrite-URL: /gpubox/stop": "served", "Proxy-Connection: keep-alive": "served", "Connection: upgrade": "either",
    "Connection: keep-alive, close": "served", "Connection: Authorization, X-Api-Key": "served",
    "Upgrade: TLS/1.0": "either",
    "Connection: ,,,": "served", "TE: trailers, deflate;q=0.5": "served", "Range: bytes=0-1": "served",
    "If-None-Match: *": "served", "Max-Forwards: 0": "served", "Cookie: " + "a=b; " * 3000: "served",
    "Content-Encoding: gzip": "either", "Expect: 100-CONTINUE": "served", "Host : 127.0.0.1": "refused",
    "host: evil.example": "refused", "Content-Type: text/plain": "either",
    "Content-Type: application/json; charset=x": "served",
    "Content-Type: multipart/form-data; boundary=" + "a" * 4000: "either", "HTTP2-Settings: AAMAAABk": "served",
}  # fmt: skip
_HOSTS = {
    "": "either", "127.0.0.1, evil.example": "refused", "evil.example@127.0.0.1": "refused",
    "127.0.0.1@evil.example": "refused", "127.0.0.1/evil": "refused", "127.0.0.1:99999999": "either",
    "127.0.0.1:80:80": "refused", "[::1": "refused", "[::1].evil.example": "refused", "localhost.": "either",
    "LOCALHOST": "served", "127.0.0.1\tevil.example": "refused", "127.0.0.1 evil.example": "refused",
    "localhost.evil.example": "refused", "evil.example:80": "refused", "127.0.0.1#evil.example": "refused",
    "127.0.0.1\\evil.example": "refused", "xlocalhost": "refused", "\xe2\x93\x9bocalhost": "refused", "*": "refused",
    "127.0.0.1.": "either", "%6cocalhost": "refused", "127.0.0.1:x": "refused", "..": "either",
}  # fmt: skip
_PAGES = (
    "null", "http://127.0.0.1.evil.example", "http://evil.example#localhost", "http://evil.example/localhost",
    "http://localhost:80@evil.example", "http://[::1].evil.example", "https://evil.example, http://localhost",
    "javascript:alert(1)", "chrome-extension://abcdef", "http://localhost\\.evil.example", "localhost.evil.example",
    "http://evil.example?localhost", "http://localhost%2eevil.example", "data:text/html,x", "http://",
)  # fmt: skip
HEADS: Cases = {
    **{f"line {line[:30]!r}": (sized(line), kind) for line, kind in _LINES.items()},
    **{
        f"host {host!r}": (sized().replace(b"127.0.0.1", host.encode("latin-1"), 1), kind)
        for host, kind in _HOSTS.items()
    },
    **{f"page {page}": (sized(f"Origin: {page}"), "refused") for page in _PAGES},
    "two pages": (sized("Origin: http://localhost", "Origin: https://evil.example"), "either"),
    "two sites": (sized("Sec-Fetch-Site: none", "Sec-Fetch-Site: cross-site"), "either"),
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
        b"POST http://127.0.0.1/v1/chat/completions HTTP/1.1\r\n" + LENGTH.encode() + b"\r\n\r\n" + BODY, "refused",
    ),
    "Expect with HTTP/1.0": (sized("Expect: 100-continue").replace(b"HTTP/1.1", b"HTTP/1.0", 1), "served"),
    "Expect, and the body at once": (sized("Expect: 100-continue"), "served"),
    "Expect, and a body that is too long": (head("Content-Length: 99999999", "Expect: 100-continue"), "refused"),
}  # fmt: skip

_TARGETS = {
    b"http://127.0.0.1" + CHAT: "served", b"HTTP://127.0.0.1" + CHAT: "either", b"https://127.0.0.1" + CHAT: "either",
    b"ftp://127.0.0.1" + CHAT: "refused", b"http://" + CHAT: "either", b"http://127.0.0.1": "either",
    b"http:": "refused",
    b"//evil.example" + CHAT: "either", b"127.0.0.1:80": "refused", b"v1/chat/completions": "refused", b"": "refused",
    b"?model=far": "refused", b"#": "refused", CHAT + b"#fragment": "either", b"file:///etc/passwd": "refused",
    CHAT + b"%0d%0aX-Evil:%201": "refused", CHAT + b"%00": "refused", b"/%0a": "refused", b"/v1/\x7f": "refused",
    b"/v1/..%2fgpubox/stop": "refused", b"/v1/%2E%2E%2Fgpubox/stop": "refused", b"/v1/%252e%252e/gpubox/stop": "either",
    b"/v1/%c0%ae%c0%ae/gpubox/stop": "either", b"/v1/%c0%af..%c0%afgpubox/stop": "either",
    b"/..;/gpubox/stop": "either",
    b"/./gpubox/stop": "refused", b"/gpubox%2fstop": "refused", b"/gpubox/%73top": "refused",
    b"/%67pubox/stop": "refused",
    b"/gpubox//stop": "refused", b"/gpubox/stop/": "refused", b"/gpubox/stop?x": "refused", b"/gpubox": "refused",
    b"/gpubox;a=b/stop": "either", b"/\\gpubox\\stop": "refused", b"/gpubox%5cstop": "refused",
    b"///gpubox///stop": "refused",
    b"/slots/0?action=save": "refused", b"/slots%2f0?action=erase": "refused", b"/%73lots/0?action=erase": "refused",
    b"//slots//0?action=erase": "refused", b"/v1/../slots/0?action=erase": "refused",
    b"/slots/0;x?action=save": "refused",
    b"http://127.0.0.1/slots/0?action=erase": "refused", b"/slots/%30?action=erase": "refused",
    b"/./slots/0": "refused",
    b"/slots/0%3faction=erase": "refused", b"/slots/-1?action=erase": "refused", b"http://x//slots/0": "refused",
    b"/%ef%bc%8e%ef%bc%8e/gpubox/stop": "either", b"/%u002e%u002e/gpubox/stop": "either", b"/v1/%zz": "either",
    b"/v1/%": "either", b"/v1/\tmodels": "refused", b'/v1/"<>|{}^`': "either", CHAT + b"?" + b"a" * 16_000: "served",
    CHAT + b"?model=%0d%0aevil": "either", b"/" * 10_000: "either", b"/" + b"%2e" * 10_000: "either",
    b"/v1/chat/completions/../../../slots/0": "refused", b"*": "either", b"/v1/chat/completions\\..\\..": "refused",
    b"/v1//chat//completions": "either", b"/v1/chat/completions/": "either", b"/v1/chat/completions?a=%ff%fe": "either",
    b"/%2573lots/0?action=erase": "either", b"/v1/chat/completions?a=b?c=d": "served",
    b"/v1/chat/completions;x=y": "either",
}  # fmt: skip
_FIRST_LINES = {
    b"POST /v1/chat/completions HTTP/1.0": "served", b"POST /v1/chat/completions HTTP/1.2": "either",
    b"POST /v1/chat/completions HTTP/2.0": "refused", b"POST /v1/chat/completions HTTP/1.1.1": "refused",
    b"POST /v1/chat/completions http/1.1": "refused", b"POST /v1/chat/completions HTTP/1.10": "refused",
    b"POST /v1/chat/completions HTTP/1.": "refused", b"POST /v1/chat/completions HTTP/01.1": "refused",
    b"POST /v1/chat/completions HTTPS/1.1": "refused", b"POST /v1/chat/completions ICY": "refused",
    b"POST /v1/chat/completions": "refused", b"POST  /v1/chat/completions HTTP/1.1": "either",
    b"POST /v1/chat/completions  HTTP/1.1": "either", b"POST\t/v1/chat/completions\tHTTP/1.1": "refused",
    b"POST /v1/chat/completions HTTP/1.1 ": "refused", b" POST /v1/chat/completions HTTP/1.1": "refused",
    b"POST /v1/chat/completions HTTP/ 1.1": "refused", b"POST /v1/chat/completions HTTP/1.1\0": "refused",
    b"POST\0 /v1/chat/completions HTTP/1.1": "refused", b"P@ST /v1/chat/completions HTTP/1.1": "refused",
    b"post /v1/chat/completions HTTP/1.1": "refused", b"GET": "refused", b"POST HTTP/1.1": "refused",
    b"POST /v1/chat/completions HTTP/1.1 HTTP/1.1": "refused", b"PROPFIND / HTTP/1.1": "refused",
    b"CONNECT / HTTP/1.1": "refused", b"CONNECT 127.0.0.1:22 HTTP/1.1": "refused", b"TRACK / HTTP/1.1": "refused",
    b"CONNECT /v1/chat/completions HTTP/1.1": "refused", b"DEBUG /v1/chat/completions HTTP/1.1": "refused",
    b"PURGE /v1/chat/completions HTTP/1.1": "refused", b"M-SEARCH * HTTP/1.1": "refused", b"": "either",
    b"POST /v1/chat/completions HTTP/1,1": "refused", b"PRI * HTTP/2.0": "refused", b"EHLO box": "refused",
    b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2": "refused", b"SSH-2.0-OpenSSH_9.2": "refused", b"*1\r\n$4\r\nPING": "refused",
    b"QUERY /v1/chat/completions HTTP/1.1": "refused", b"HTTP/1.1 200 OK": "refused", b"\n": "either",
    b"\xef\xbb\xbfPOST /v1/chat/completions HTTP/1.1": "refused", b"POST \xa0/v1/chat/completions HTTP/1.1": "refused",
    b"POST /v1/chat/completions HTTP/1.1\r": "either", b"POST /v1/chat/completions\x0bHTTP/1.1": "refused",
    b"POST /v1/chat/completions HTTP/\xd9\xa1.\xd9\xa1": "refused",
}  # fmt: skip
TARGETS: Cases = {
    **{f"target {text[:48]!r}": (sized(target=text), kind) for text, kind in _TARGETS.items()},
    **{f"first line {text!r}": (start(text), kind) for text, kind in _FIRST_LINES.items()},
    "OPTIONS of all": (head(method=b"OPTIONS", target=b"*"), "either"),
}

RAW_CASES: Cases = {**FRAMING, **CHUNKED, **HEADS, **TARGETS}

# -- servers: their whole answer, and what the client of a request that is not streamed may get -----------------------
# whole: 200 with the body given. cut: a broken answer, seen as broken. refused: 502. "refused or cut", and so on.

OK = b"HTTP/1.1 200 OK\r\n"
JSON = b'{"choices":[]}'
FINE = b"Content-Length: %d\r\n\r\n%b" % (len(JSON), JSON)
IN_CHUNKS = b"Transfer-Encoding: chunked\r\n\r\n"


def lengths(text: bytes) -> bytes:
    """An answer with this as its length."""
    return OK + b"Content-Length: " + text + b"\r\n\r\n" + JSON


def sizes(text: bytes) -> bytes:
    """An answer of one chunk with this as its size."""
    return OK + IN_CHUNKS + text + b"\r\n" + JSON + b"\r\n0\r\n\r\n"


_BAD = "refused or cut"
LIARS: Cases = {
    **{f"length {text!r}": (lengths(text), _BAD) for text in (
        b"+14", b"-14", b"14, 15", b"0x0e", b"1_4", b"14.0", b"\xd9\xa1\xd9\xa4", b"1e1", b"14 14",
        b"999999999999999999999",
    )},
    "length 14, 14": (lengths(b"14, 14"), "whole, refused or cut"),
    **{f"size {text!r}": (sizes(text), _BAD) for text in (
        b"+e", b"0xe", b"-e", b"0_e", b"", b"g", b"e,e", b"FFFFFFFFFFFFFFFFF", b"\xd9\xa1", b"ee", b"d", b"e\0",
    )},
    "size E;a=b": (sizes(b"E;a=b"), "whole"),
    "a mebibyte of extension": (sizes(b"e;" + b"a" * MIB), "whole, refused or cut"),
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
    **{f"first line {text!r}": (text + b"\r\n" + FINE, _BAD) for text in (
        b"ICY 200 OK", b"HTTP/1.1 2 OK", b"HTTP/1.1 -200 OK", b"HTTP/1.1 200OK", b"HTTP/1.1 2000 OK", b"HTTP/2 200",
        b"HTTP/1.1", b"HTTP/1.1 abc OK", b"\x16\x03\x01", b"{}", b"HTTP/1.1 \xd9\xa2\xd9\xa0\xd9\xa0 OK",
    )},
    "status 999": (b"HTTP/1.1 999 X\r\n" + FINE, "anything"),
    "a redirect": (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", "status 302"),
    "a 204 with a body": (b"HTTP/1.1 204 No Content\r\n" + FINE, "status 204 or refused"),
    "a 304 with a body": (b"HTTP/1.1 304 Not Modified\r\n" + FINE, "status 304 or refused"),
    "hop-by-hop headers": (OK + b"Connection: x-evil\r\nKeep-Alive: 9\r\nProxy-Authenticate: x\r\n" + FINE, "whole"),
    "gzip that is none": (OK + b"Content-Encoding: gzip\r\n" + FINE, "whole"),
    "a control character in a value": (OK + b"X-A: \x1b[31m\r\n" + FINE, "whole, refused or cut"),
}  # fmt: skip
