"""``gpubox edit PROFILE``: changes, copies, renames or deletes the owner's profile file."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import click

from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.cli.options import json_option
from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import MAIN_INSTANCE, shipped_profiles
from gpubox.profiles import edit as files
from gpubox.profiles.profile import Profile
from gpubox.server.instance import check_not_running, observe
from gpubox.toml_edit import KeyPath


@click.command("edit")
@click.argument("profile")
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="Set a flag or another key; repeatable.")
@click.option("--unset", multiple=True, metavar="NAME", help="Remove a flag or another key; repeatable.")
@click.option("--editor", is_flag=True, help="Open the file in $EDITOR.")
@click.option("--copy", "copy", metavar="NEW", help="Leave PROFILE as it is; write the changes into a copy, NEW.")
@click.option("--rename", metavar="NEW", help="Give the profile another name.")
@click.option("--delete", is_flag=True, help="Delete the profile; the model stays on disk.")
@click.option("--undo", is_flag=True, help="Take back the last edit, kept trial or deletion.")
@click.option("--print", "only_print", is_flag=True, help="Print the changed lines and write nothing.")
@click.option("--force", is_flag=True, help="Write flags that the engine refuses.")
@json_option
@click.pass_obj
def command(
    context: Context, profile: str, sets: tuple[str, ...], unset: tuple[str, ...], editor: bool, copy: str | None,
    rename: str | None, delete: bool, undo: bool, only_print: bool, force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Change PROFILE's file. Comments and all other lines stay.

    NAME is a flag of llama-server (ctx-size), a key of the profile (port) or of one of its tables (chat.system).
    A shipped profile is copied into your folder first.
    """
    changes = bool(sets or unset or editor)
    if (copy is not None) + (rename is not None) + delete + undo > 1 or (changes and (delete or undo)):
        raise UsageError("--copy, --rename, --delete and --undo cannot be combined.", "Leave one of them out.")
    if delete or undo:
        _delete(context, profile, undo, as_json)
        return
    edited = context.profile(profile) if copy else context.catalog.get_file(profile, context.paths.profiles)
    if not (changes or copy or rename):
        raise UsageError("Nothing to change.", f"Write: gpubox edit {profile} --set ctx-size=65536, or --editor.")
    path, diff = edited.path, list[str]()
    if changes or copy:
        edit = _changed(context, edited, sets, unset, copy)
        if editor and (earlier := files.typed_earlier(edit.name, context.paths)):
            diagnostics.note(f"  ! {earlier}")
        with files.edit_in_editor(edit, edited, context.paths) if editor else nullcontext(edit) as edit:
            if not force:
                check_edit(edit, context)
            path, diff = edit.path, list(edit.diff)
            if not only_print and diff:
                path = files.save_edit(edit, context.paths)
    if rename and not only_print:
        path = _rename(profile, rename, context)
    name = copy or rename or profile
    if as_json:
        output.emit_json({"name": name, "path": str(path), "changed": diff, "written": not only_print})
        return
    if copy and not only_print:
        output.emit(f"{copy}  {path}")
        return
    for line in diff or ["Nothing changed."] * (not rename):
        output.emit(line)
    if diff and edited.shipped and not only_print:
        diagnostics.note(f"  The shipped profile stays as it is; yours is {path}.")
    if rename and not only_print:
        output.emit(f"{profile} is called {rename} now.")
    if diff and not only_print:
        _note_running(profile, context)


def _changed(
    context: Context, edited: Profile, sets: tuple[str, ...], unset: tuple[str, ...], copy: str | None
) -> files.ProfileEdit:
    changes = parse_changes(sets, unset, edited, context) if sets or unset else {}
    if copy:
        return files.new_edit(copy, files.change_text(files.copied_text(edited), changes), context.paths)
    return files.edit_profile(edited, changes, context.paths) if changes else files.unchanged(edited, context.paths)


def _delete(context: Context, name: str, undo: bool, as_json: bool) -> None:
    """Deletes the profile, or with ``undo`` takes its last change back."""
    if undo:
        former, path = files.undo(context.paths, name)
        message = f"{name} is {'back' if former.kind == 'deletion' else 'what it was before'}: {path}"
    else:
        profile = context.catalog.get_file(name, context.paths.profiles)
        check_not_running(name, context.paths, "is not deleted")
        path = files.delete_profile(profile, context.paths)
        shipped = (shipped_profiles() / f"{name}.toml").exists()
        note = " The shipped profile of that name is visible again." if shipped else ""
        message = f"{name} is deleted.{note} `gpubox edit {name} --undo` brings it back."
    output.emit_result(message, {"name": name, "path": str(path), "deleted": not undo}, as_json=as_json)


def parse_changes(
    sets: tuple[str, ...], unset: tuple[str, ...], profile: Profile, context: Context
) -> dict[KeyPath, files.KeyValue]:
    """The changes that ``--set`` and ``--unset`` describe, under the names that the profile uses. Raises UsageError."""
    from gpubox.engines.option_values import parse_flag_change

    changes: dict[KeyPath, files.KeyValue] = {}
    for text in (*sets, *(f"{name}=" for name in unset)):
        name, value = parse_flag_change(text)
        where = files.key_path(name)
        if where[0] == "flags":
            where = ("flags", _flag_key(where[1], profile, context))
        elif where == ("aliases",) and isinstance(value, str) and value:
            value = files.alias_names(value)
        changes[where] = None if value == "" else value
    return changes


def _flag_key(name: str, profile: Profile, context: Context) -> str:
    from gpubox.engines.find import choose_engine
    from gpubox.engines.option_values import flag_key
    from gpubox.engines.query import read_capabilities

    try:
        capabilities = read_capabilities(choose_engine(context.config, profile.engine), context.paths)
    except GpuboxError:
        return name  # without an engine the name stays as written
    return flag_key(name, profile, capabilities)


def check_edit(edit: files.ProfileEdit, context: Context, hint: str = "Nothing is written; --force writes it.") -> None:
    """Raises UsageError if the profile's engine refuses a flag of the changed profile. Starts nothing."""
    from gpubox.server.launch import preview_launch

    preview = preview_launch(edit.profile, context.paths, context.config)
    if preview.engine and preview.refusal:
        advice = preview.refusal.hint.rstrip(".")
        raise UsageError(preview.refusal.message, f"{advice}. {hint}".strip() if advice else hint)


def _rename(old: str, new: str, context: Context) -> Path:
    from gpubox.profiles.loader import load_catalog

    check_not_running(old, context.paths, "keeps its name")
    return files.rename_profile(load_catalog(context.paths).get(old), new, context.paths)


def _note_running(profile: str, context: Context) -> None:
    running = observe(context.paths, MAIN_INSTANCE).running
    if running and running.launch.profile == profile:
        diagnostics.note("  ! The running server keeps its old flags: `gpubox restart` uses the new ones.")
