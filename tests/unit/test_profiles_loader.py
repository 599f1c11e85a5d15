"""Loading profiles: a broken file is reported and does not affect the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpubox.errors import UsageError
from gpubox.paths import Paths
from gpubox.profiles import loader
from gpubox.profiles.loader import load_catalog, load_profile

Write = Callable[[str, str], Path]


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of shipped profiles with one in it: demo."""
    folder = tmp_path / "shipped"
    folder.mkdir()
    (folder / "demo.toml").write_text('title = "shipped"\nmodel = "demo:x"\n')
    monkeypatch.setattr(loader, "shipped_profiles", lambda: folder)
    yield folder


def test_everything_is_read(write_profile: Write) -> None:
    path = write_profile(
        "whole",
        """
        title = "T"
        description = "two\\nlines\\n"
        source = "an article"
        engine = "fork"
        model = "hf:user/repo:Q4_K_M"
        host = "::1"
        port = 0
        companion = true
        aliases = ["gpt-4o", "w"]
        idle-seconds = 600
        pinned = true
        env = { CUDA_VISIBLE_DEVICES = "0" }
        [flags]
        ctx_size = 131072
        flash-attn = "on"
        no-mmap = true
        tensor-split = [3, 1.5]
        [sampling]
        temperature = 1
        top_k = 20
        [chat]
        system = "be brief"
        template-kwargs = { enable_thinking = false }
        [needs]
        vram-gib = 16
        [[reference]]
        what = "tg"
        value = 41.2
        """,
    )

    profile = load_profile(path)

    assert (profile.aliases, profile.idle_seconds, profile.pinned) == (("gpt-4o", "w"), 600.0, True)
    assert (profile.name, profile.port, profile.companion, profile.loopback) == ("whole", 0, True, True)
    assert profile.flags == {"ctx-size": 131072, "flash-attn": "on", "no-mmap": True, "tensor-split": (3, 1.5)}
    assert profile.sampling == {"temperature": 1.0, "top_k": 20.0}
    assert (profile.chat.system, profile.chat.template_kwargs) == ("be brief", {"enable_thinking": False})
    assert (profile.needs.vram_gib, profile.needs.ram_gib) == (16.0, None)
    assert [(r.what, r.value, r.unit) for r in profile.references] == [("tg", 41.2, "")]
    assert (profile.description, dict(profile.env)) == ("two\nlines", {"CUDA_VISIBLE_DEVICES": "0"})


HOSTILE = {
    "typo": ('model = "m"\nprot = 8080', "prot is not a known key.  Did you mean 'port'?"),
    "typo in chat": ('model = "m"\n[chat]\nsytem = "x"', "[chat] sytem is not a known key.  Did you mean 'system'?"),
    "typo in needs": ('model = "m"\n[needs]\nvram = 16', "[needs] vram is not a known key.  Did you mean 'vram-gib'?"),
    "typo in sampling": ('model = "m"\n[sampling]\ntemp = 1', "[sampling] temp is not a known key"),
    "typo in reference": ('model = "m"\n[[reference]]\nwhat="a"\nvalue=1\nunits="x"', "Did you mean 'unit'?"),
    "empty": ("", "model is missing"),
    "alias with a space": ('model = "m"\naliases = ["a b"]', "aliases cannot hold 'a b'"),
    "requests without a model": ('model = "m"\n[requests]\nremove = ["model"]', "[requests] model is the client's own"),
    "persona with a stream": ('model = "m"\n[personas.x]\nstream = true', "[personas.x] stream is the client's own"),
    "persona with a date": ('model = "m"\n[personas.x]\nseed = 2026-01-01', "[personas.x] seed must be a JSON value"),
    "persona and alias": ('model = "m"\naliases = ["x"]\n[personas.x]', "aliases holds 'x' twice"),
    "alias twice": ('model = "m"\naliases = ["a", "a"]', "aliases holds 'a' twice"),
    "negative idle time": ('model = "m"\nidle-seconds = -1', "idle-seconds must be 0 or more, not -1"),
    "upstream with a password": ('upstream = "http://me:pw@box"', "user name or a password"),
    "upstream that is no address": ('upstream = "ftp://box"', "is not the address of a server"),
    "upstream with a space": ('upstream = "http://box/a b"', "upstream cannot be used"),
    "model of another type": ("model = 3", "model must be a string"),
    "model as a table": ('[model]\npath = "x"', "model must be a string"),
    "empty model": ('model = ""', "model is missing"),
    "empty host": ('model = "m"\nhost = ""', "host is empty"),
    "port below": ('model = "m"\nport = -1', "port must be 0 to 65535, not -1"),
    "port above": ('model = "m"\nport = 65536', "port must be 0 to 65535"),
    "port as text": ('model = "m"\nport = "8080"', "port must be a whole number"),
    "port as bool": ('model = "m"\nport = true', "port must be a whole number, not True"),
    "port as float": ('model = "m"\nport = 8080.0', "port must be a whole number"),
    "flags as a list": ('model = "m"\nflags = ["--ctx-size"]', "flags must be a table"),
    "flags as tables": ('model = "m"\n[[flags]]\nctx-size = 1', "flags must be a table"),
    "flag with dashes": ('model = "m"\n[flags]\n"--ctx-size" = 1', "without leading dashes"),
    "flag as a table": ('model = "m"\n[flags.ctx-size]\nvalue = 1', "[flags] ctx-size must be a flag's value"),
    "flag as a date": ('model = "m"\n[flags]\nctx-size = 1979-05-27', "must be a flag's value"),
    "flag as an empty list": ('model = "m"\n[flags]\nlora = []', "must be a list of strings and numbers"),
    "flag as a deep list": ('model = "m"\n[flags]\nlora = [[1]]', "must be a list of strings and numbers"),
    "flag as a list of switches": ('model = "m"\n[flags]\nlora = [true]', "must be a list of strings and numbers"),
    "flag with NUL": ('model = "m"\n[flags]\nalias = "a\\u0000b"', "[flags] alias holds a NUL"),
    "flag list with NUL": ('model = "m"\n[flags]\nalias = ["a\\u0000b"]', "[flags] alias holds a NUL"),
    "flag twice": ('model = "m"\n[flags]\nctx-size = 1\nctx_size = 2', "ctx_size is given twice"),
    "flag that is model": ('model = "m"\n[flags]\nmodel = "x"', "belongs at the top of the file"),
    "flag that is port": ('model = "m"\n[flags]\nport = 1', "belongs at the top of the file: port"),
    "flag that is hf_repo": ('model = "m"\n[flags]\nhf_repo = "u/r"', 'belongs at the top of the file: model = "hf:'),
    "model with NUL": ('model = "a\\u0000b"', "model holds a NUL"),
    "host with NUL": ('model = "m"\nhost = "a\\u0000b"', "host holds a NUL"),
    "env of numbers": ('model = "m"\n[env]\nX = 1', "[env] X must be a string"),
    "env with a bad name": ('model = "m"\n[env]\n"A=B" = "1"', "cannot be the name of an environment variable"),
    "env that is a script": ('model = "m"\n[env]\n"X;id;Y" = "1"', "cannot be the name of an environment variable"),
    "env without a name": ('model = "m"\n[env]\n"" = "1"', "cannot be the name of an environment variable"),
    "env with NUL": ('model = "m"\n[env]\nX = "a\\u0000"', "[env] X holds a NUL"),
    "sampling nan": ('model = "m"\n[sampling]\ntemperature = nan', "[sampling] temperature must be a finite number"),
    "sampling inf": ('model = "m"\n[sampling]\ntop_p = -inf', "[sampling] top_p must be a finite number"),
    "sampling bool": ('model = "m"\n[sampling]\ntop_k = true', "[sampling] top_k must be a number"),
    "huge number": (f'model = "m"\n[needs]\nvram-gib = {"9" * 400}', "[needs] vram-gib must be a finite number"),
    "reference as a table": ('model = "m"\n[reference]\nwhat = "x"', "must be written as [[reference]]"),
    "reference without a value": ('model = "m"\n[[reference]]\nwhat = "x"', "value is missing"),
    "kwargs with a date": ('model = "m"\n[chat.template-kwargs]\nd = 1979-05-27', "must be a JSON value"),
    "kwargs with nan": ('model = "m"\n[chat.template-kwargs]\nd = nan', "must be a JSON value"),
    "deep lists": (f'model = "m"\n[flags]\na = {"[" * 5000}{"]" * 5000}', "nested too deeply"),
    "deep tables": (f'model = "m"\n[{".".join("a" * 3000)}]', "nested too deeply"),
    "endless digits": (f'model = "m"\nport = {"9" * 5000}', "too long"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_one_sentence_that_names_it(name: str, write_profile: Write) -> None:
    text, problem = HOSTILE[name]
    path = write_profile("p", text)

    with pytest.raises(UsageError) as caught:
        load_profile(path)

    assert str(path) in caught.value.message
    assert problem in str(caught.value)


@pytest.mark.parametrize("flag", ["api-key", "api_key", "hf-token", "hft"])
def test_a_secret_is_refused_without_being_shown(flag: str, write_profile: Write) -> None:
    path = write_profile("p", f'model = "m"\n[flags]\n{flag} = "sesame"')

    with pytest.raises(UsageError) as caught:
        load_profile(path)

    assert "would show a secret" in caught.value.message
    assert "sesame" not in str(caught.value)


def test_the_api_key_in_env_is_refused_without_being_shown(write_profile: Write) -> None:
    path = write_profile("p", 'model = "m"\n[env]\nLLAMA_API_KEY = "sesame"')

    with pytest.raises(UsageError, match="Put it into the api-key file") as caught:
        load_profile(path)

    assert "sesame" not in str(caught.value)


def test_a_broken_file_spoils_only_itself(shipped: Path, paths: Paths, write_profile: Write) -> None:
    for name, (text, _) in HOSTILE.items():
        write_profile(name.replace(" ", "-"), text)
    write_profile("good", 'model = "m"')
    (paths.profiles / "binary.toml").write_bytes(bytes(range(256)))
    (paths.profiles / "folder.toml").mkdir()
    (paths.profiles / "dangling.toml").symlink_to(paths.profiles / "gone")
    (paths.profiles / "a b.toml").write_text('model = "m"')

    catalog = load_catalog(paths)

    assert set(catalog.profiles) == {"demo", "good"}
    assert set(catalog.broken) == {n.replace(" ", "-") for n in HOSTILE} | {"binary", "folder", "dangling", "a b"}
    assert "it is a folder" in str(catalog.broken["folder"])
    assert "does not exist" in str(catalog.broken["dangling"])
    assert "not UTF-8 text" in str(catalog.broken["binary"])
    assert "file name holds letters" in str(catalog.broken["a b"])


def test_hidden_copies_of_editors_are_no_profiles(shipped: Path, paths: Paths, write_profile: Write) -> None:
    write_profile(".#good", "locked by somebody")
    write_profile("._good", "a mac was here")

    catalog = load_catalog(paths)

    assert set(catalog.profiles) == {"demo"}
    assert catalog.broken == {}


def test_the_owners_file_wins_by_name_and_comes_first(shipped: Path, paths: Paths, write_profile: Write) -> None:
    write_profile("demo", 'title = "mine"\nmodel = "m"')
    write_profile("zz", 'model = "m"')
    (shipped / "aa.toml").write_text('model = "m"')

    catalog = load_catalog(paths)

    assert (catalog.profiles["demo"].title, catalog.profiles["demo"].shipped) == ("mine", False)
    assert list(catalog.profiles) == ["demo", "zz", "aa"]


def test_the_owners_broken_file_hides_the_shipped_one_and_is_reported(
    shipped: Path, paths: Paths, write_profile: Write
) -> None:
    mine = write_profile("demo", "oops")

    catalog = load_catalog(paths)

    assert "demo" not in catalog.profiles
    with pytest.raises(UsageError) as caught:
        catalog.get("demo")
    assert str(mine) in caught.value.message


def test_the_owners_whole_file_mends_a_broken_shipped_one(shipped: Path, paths: Paths, write_profile: Write) -> None:
    (shipped / "demo.toml").write_text("oops")
    write_profile("demo", 'model = "m"')

    catalog = load_catalog(paths)

    assert (list(catalog.profiles), catalog.broken) == (["demo"], {})


def test_an_unknown_name_gets_the_nearest_also_of_broken_files(
    shipped: Path, paths: Paths, write_profile: Write
) -> None:
    write_profile("qwen-256k", "oops")
    catalog = load_catalog(paths)

    for wanted, hint in (
        ("dmeo", "Did you mean 'demo'?"),
        ("qwen-265k", "Did you mean 'qwen-256k'?"),
        ("zz", "`gpubox ls`"),
    ):
        with pytest.raises(UsageError) as caught:
            catalog.get(wanted)
        assert hint in caught.value.hint


def test_a_companion_cannot_take_the_active_servers_place(write_profile: Write) -> None:
    path = write_profile("main", 'model = "m"\ncompanion = true')

    with pytest.raises(UsageError, match="calls the active server 'main'"):
        load_profile(path)


def test_loopback_addresses(write_profile: Write) -> None:
    def loopback(host: str) -> bool:
        return load_profile(write_profile("p", f'model = "m"\nhost = "{host}"')).loopback

    assert all(map(loopback, ("127.0.0.1", "127.8.8.8", "::1", "localhost")))
    others = ("0.0.0.0", "::", "192.168.1.5", "box.lan", "localhost.evil.example", "0", "127.1")
    assert not any(map(loopback, others))


def test_an_upstream_profile_needs_no_model(write_profile: Write) -> None:
    own = load_profile(write_profile("own", 'upstream = "box2:11434/v1/"\nmodel = "qwen3:8b"\n'))
    bare = load_profile(write_profile("bare", 'upstream = "https://box2/llm"\n'))

    assert (own.upstream, own.model) == ("http://box2:11434", "qwen3:8b")
    assert (bare.upstream, bare.model) == ("https://box2/llm", "bare")
    assert own.elsewhere == "own runs elsewhere, at http://box2:11434; gpubox does not start it."


def test_an_alias_belongs_to_one_profile(write_profile: Write, paths: Paths, shipped: Path) -> None:
    write_profile("a", 'model = "m"\naliases = ["shared", "only-a", "b", "demo"]\n')
    write_profile("b", 'model = "m"\naliases = ["shared"]\n')

    catalog = load_catalog(paths)

    assert (catalog.get("a").aliases, catalog.get("b").aliases) == (("only-a",), ())
    assert catalog.aliases == {"only-a": "a"}
    assert sorted(catalog.clashes) == [
        "The alias 'b' of a is the name of a profile.",
        "The alias 'demo' of a is the name of a profile.",
        "a and b have the same alias 'shared': it means neither of them.",
    ]
