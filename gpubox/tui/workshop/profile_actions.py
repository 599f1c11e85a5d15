"""What the owner does with profiles on the dashboard: edit, try, duplicate, make, rename, delete and compare them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from gpubox.concurrency import run_in_thread
from gpubox.errors import GpuboxError
from gpubox.profiles import edit as files
from gpubox.profiles.loader import free_profile_name
from gpubox.profiles.profile import Profile
from gpubox.sanitize import sanitize_line
from gpubox.server.instance import check_not_running
from gpubox.tui.dialogs import ask, ask_name, confirm

if TYPE_CHECKING:
    from gpubox.profiles.edit import ProfileEdit
    from gpubox.tui.bridge import ServiceBridge
    from gpubox.tui.dashboard.profiles import ProfilePane
    from gpubox.tui.messages import ProfileEntry
    from gpubox.tui.operations import OperationController
    from gpubox.tui.workshop.edit_session import EditSession
    from gpubox.tui.workshop.editor import EditorScreen
    from gpubox.tui.workshop.profile_files import WorkshopService
    from gpubox.tui.workshop.trial import TrialController

SHIPPED = "is shipped with gpubox: e makes your own copy, x has Duplicate."


class WorkshopController:
    """Each method runs in a worker of the app, because it waits for answers. All raise GpuboxError."""

    def __init__(self, bridge: ServiceBridge, operations: OperationController, profiles: ProfilePane) -> None:
        """``profiles``: the list whose highlighted row the actions are about."""
        self.bridge, self.app, self.operations, self.profiles = bridge, bridge.app, operations, profiles
        self.trial: TrialController | None = None
        """The trial that is under way in this gpubox, or was the last."""
        self._marked = ""
        """The first of two profiles to compare."""
        self._last: tuple[EditSession, ProfileEdit] | None = None
        """What was tried last, unless it was kept."""

    @property
    def service(self) -> WorkshopService:
        return self.bridge.services.workshop_service()

    async def act(self, action: str) -> None:
        """Performs one of WORKSHOP_ACTIONS on the highlighted row."""
        entry = self.profiles.entry
        if action not in ("compare", "trial") and self.bridge.refuses():
            return
        methods: dict[str, Any] = {
            "edit": self._edit, "external_editor": self._edit_externally, "duplicate": self._duplicate,
            "rename": self._rename, "delete": self._delete, "compare": self._compare,
        }  # fmt: skip
        if action == "trial":
            await self._show_or_repeat_trial()
        elif action == "new_profile":
            await self._new(entry)
        elif action == "undo":
            await self._undo()
        elif entry is None:
            self.app.say("No profile is highlighted.")
        else:
            await methods[action](entry)

    # -- editing --------------------------------------------------------------------------------------

    async def _edit(self, entry: ProfileEntry) -> None:
        if entry.kind in ("model", "choice"):
            await self._new(entry)
            return
        if entry.profile is None:
            self.app.say(f"{entry.name} has an error in its file: x has your $EDITOR for it.")
            return
        self.open_editor(await run_in_thread(self.service.open_profile, entry.profile))

    def open_editor(self, session: EditSession) -> None:
        """Shows the editor with a session."""
        from gpubox.tui.workshop.editor import EditorScreen

        screen = EditorScreen(session, self, note=self.bridge.services.note)
        snapshot = self.bridge.poller.newest
        screen.memory = snapshot.memory if snapshot else ()
        self.app.push_screen(screen)

    def saved(self, name: str, path: str = "") -> None:
        """Tells that a profile is on disk, and shows it."""
        self.app.say(f"{name} is saved{f': {path}' if path else ''}.{self._how_to_use(name)}")
        self._show(name)

    def _how_to_use(self, name: str) -> str:
        overview = self.bridge.overview
        return " r restarts the server with it." if overview is not None and name in overview.running else ""

    def _show(self, name: str) -> None:
        self.bridge.run(partial(self.bridge.show_profile, name), "entries", exclusive=True)

    async def _edit_externally(self, entry: ProfileEntry) -> None:
        profile = entry.profile
        if profile is None and entry.kind == "broken":
            profile = self._file_profile(entry)
        if profile is None:
            self.app.say("This row has no file: Enter makes a profile of it.")
            return
        from gpubox.profiles.edit import edit_in_editor, typed_earlier

        paths = self.service.paths
        earlier = typed_earlier(profile.name, paths)
        with ExitStack() as draft:
            try:
                with self.app.suspend():
                    edit = draft.enter_context(edit_in_editor(files.unchanged(profile, paths), profile, paths))
            finally:
                self.app.refresh(layout=True)
                if earlier:  # a notification does not outlast the editor
                    self.app.say(earlier)
            if edit.after == edit.before:
                self.app.say("Nothing has changed.")
                return
            if refusal := await run_in_thread(self.service.check, edit):
                answers = (("s", "save it as it is", "yes"), ("n", "discard the changes", "no"))
                answer = await ask(self.app, "The engine refuses this", sanitize_line(refusal), *answers)
                if answer is None:
                    raise GpuboxError("Nothing is written.")
                if answer == "no":
                    return
            self.saved(edit.name, str(await run_in_thread(self.service.save, edit)))

    # -- files ----------------------------------------------------------------------------------------

    async def _new(self, entry: ProfileEntry | None) -> None:
        from gpubox.interchange.importing import draft_profile
        from gpubox.tui.workshop.profile_dialogs import SourceScreen

        proposal = str(entry.model) if entry and entry.model else ""
        problem = ""
        while source := await self.app.push_screen_wait(SourceScreen(proposal, problem)):
            try:
                draft = await run_in_thread(draft_profile, source, self.bridge.services.config)
            except GpuboxError as error:
                proposal, problem = source, str(error)
                continue
            if name := await self.ask_new_name("New profile", draft.name, draft.text):
                self.saved(name)
            return

    async def _duplicate(self, entry: ProfileEntry) -> None:
        if entry.profile is None:
            self.app.say("Only a profile whose file is valid can be duplicated.")
            return
        title, text = f"Duplicate {sanitize_line(entry.name)}", await run_in_thread(files.copied_text, entry.profile)
        if name := await self.ask_new_name(title, entry.profile.name, text):
            self.saved(name)

    async def ask_new_name(self, title: str, proposal: str, text: str) -> str | None:
        """Asks for a name until a profile with ``text`` is written under it. ``None``: the owner gave up."""
        paths = self.service.paths
        free = await run_in_thread(free_profile_name, proposal, paths)

        async def create(name: str) -> None:
            await run_in_thread(lambda: files.save_edit(files.new_edit(name, text, paths), paths))

        return await ask_name(self.app, title, free, "Name of the new profile:", create)

    async def _rename(self, entry: ProfileEntry) -> None:
        if (profile := self._own_profile(entry)) is None:
            return

        paths, title = self.service.paths, f"Rename {sanitize_line(profile.name)}"

        async def rename(name: str) -> None:
            if name != profile.name:
                await run_in_thread(check_not_running, profile.name, paths, "keeps its name")
                await run_in_thread(files.rename_profile, profile, name, paths)

        name = await ask_name(self.app, title, profile.name, "Its new name:", rename)
        if name and name != profile.name:
            self.app.say(f"{profile.name} is called {name} now.")
            self._show(name)

    async def _delete(self, entry: ProfileEntry) -> None:
        if (profile := self._own_profile(entry)) is None:
            return
        name = sanitize_line(profile.name)
        body = "The model stays on disk, and u brings the profile back."
        if await confirm(self.app, f"Delete {name}?", body, f"delete {name}", no="keep it"):
            await run_in_thread(check_not_running, profile.name, self.service.paths, "is not deleted")
            await run_in_thread(files.delete_profile, profile, self.service.paths)
            self.app.say(f"{profile.name} is deleted. u brings it back.")
            self.bridge.run(self.bridge.read_entries, "entries", exclusive=True)

    async def _undo(self) -> None:
        """Takes back the last switch, or the last change of a file; asks which if both are possible."""
        steps = await run_in_thread(self.service.undo_steps)
        if not steps:
            self.app.say("There is nothing to undo.")
            return
        if len(steps) > 1:
            answers = [(str(number), step.text, str(number - 1)) for number, step in enumerate(steps, 1)]
            answer = await ask(self.app, "Undo", "The last comes first; esc leaves all as it is.", *answers)
            if answer is None:
                return
            steps = [steps[int(answer)]]
        step = steps[0]
        if not step.runs:
            former, path = await run_in_thread(files.undo, self.service.paths, step.profile)
            now = "back" if former.kind == "deletion" else "what it was before"
            self.app.say(f"{step.profile} is {now}.{self._how_to_use(step.profile)}")
            self._show(path.stem)
        elif entry := self.bridge.profile_entry(step.profile):
            await self.operations.choose(entry)
        else:
            self.app.say(f"The profile {step.profile} is no longer in the list.", bad=True)

    def _file_profile(self, entry: ProfileEntry) -> Profile:
        """The profile of a file that does not load: its name and its path."""
        return Profile(entry.name, "", path=self.service.paths.profiles / f"{entry.name}.toml")

    def _own_profile(self, entry: ProfileEntry) -> Profile | None:
        """The owner's profile of a row; tells why there is none."""
        if entry.kind == "broken":
            return self._file_profile(entry)
        if entry.profile is None:
            self.app.say("This row is a model, not a profile.")
        elif entry.profile.shipped:
            self.app.say(f"{entry.name} {SHIPPED}")
        else:
            return entry.profile
        return None

    # -- comparing ------------------------------------------------------------------------------------

    async def _compare(self, entry: ProfileEntry) -> None:
        if entry.profile is None:
            self.app.say("Only profiles whose files are valid can be compared.")
            return
        marked = self.bridge.profile_entry(self._marked)
        first = marked.profile if marked else None
        if first is None or first.name == entry.name:
            self._mark("" if first else entry.name)
            return
        self._mark("")
        comparison = await run_in_thread(self.service.compare, first, entry.profile)
        from gpubox.tui.workshop.profile_dialogs import ComparisonScreen

        self.app.push_screen(ComparisonScreen(comparison))

    def _mark(self, name: str) -> None:
        self._marked = name
        self.profiles.mark(name)
        self.app.say(f"Compare (x) on another profile shows it beside {name}." if name else "Nothing is marked.")

    # -- trying ---------------------------------------------------------------------------------------

    async def change(self, profile: Profile, changes: Mapping[str, Any]) -> tuple[EditSession, ProfileEdit, str]:
        """A session with changes of flags by their names, the changed profile, and why its engine refuses it."""
        from gpubox.engines.option_values import flag_key
        from gpubox.profiles.edit import key_path

        session = await run_in_thread(self.service.open_profile, profile)
        rows = {row.path: row for row in session.rows}
        for name, value in changes.items():
            path = key_path(name)
            if path[0] == "flags":
                path = ("flags", flag_key(name, profile, session.capabilities))
            if path in rows:
                session.set(rows[path], value)
            else:
                session.changes[path] = value
        edit = await run_in_thread(self.service.edit, session.base, session.changes)
        return session, edit, await run_in_thread(self.service.check, edit)

    def try_once(self, session: EditSession, edit: ProfileEdit) -> None:
        """Starts the trial of a changed profile."""
        self.bridge.run(partial(self._try, session, edit), "trial")

    async def _try(self, session: EditSession, edit: ProfileEdit) -> None:
        app, operations, profile = self.app, self.operations, edit.profile
        if operations.is_refused():
            return
        if await run_in_thread(self.bridge.services.needs_download, profile):
            app.say("The model is not on this machine yet: Enter on the profile downloads it.", bad=True)
            return
        if (allow_exposed := await operations.ask_exposed(profile)) is None:
            return
        if (anyway := await operations.ask_memory(profile)) is None:
            return
        if (answer := await operations.ask_busy(f"try {profile.name}")) is None:
            return
        if operations.is_refused():
            return  # something else was started while the questions were asked
        from gpubox.tui.workshop.trial import TrialController

        if self._editors and app.screen is self._editors[-1]:
            app.pop_screen()  # the session keeps the changes
        trial = self.trial = TrialController(self.bridge, operations, self.service, session, edit)
        self._last = session, edit
        if app.current_mode == "dashboard":
            self.show_trial_screen()
        else:  # its keys would take what the owner types there
            app.say(f"The trial of {profile.name} has begun: t on the dashboard shows it.")
        if await trial.run(stop_now=answer == "now", allow_exposed=allow_exposed, anyway=anyway):
            self._last = None
            session.changes.clear()
            app.say(trial.progress.outcome)
            self._show(profile.name)

    def show_trial_screen(self) -> None:
        """Shows the trial."""
        from gpubox.tui.workshop.trial import TrialScreen

        if self.trial:
            self.app.push_screen(TrialScreen(self.trial, note=self.bridge.services.note))

    async def _show_or_repeat_trial(self) -> None:
        if self.trial and self.trial.under_way:
            self.show_trial_screen()
        elif self.bridge.refuses():
            return
        elif name := await run_in_thread(self.bridge.services.trial_profile):
            self.app.say(f"{name} is being tried in another gpubox: keep or revert it there.")
        elif self._last:
            self.open_editor(self._last[0])
        elif entry := self.profiles.entry:
            await self._edit(entry)
        else:
            self.app.say("No profile is highlighted.")

    @property
    def _editors(self) -> list[EditorScreen]:
        from gpubox.tui.workshop.editor import EditorScreen

        return [screen for screen in self.app.screen_stack if isinstance(screen, EditorScreen)]

    @property
    def must_ask(self) -> bool:
        """Whether closing gpubox would lose something."""
        trial = self.trial
        return bool(trial and trial.under_way) or any(editor.session.unsaved for editor in self._editors)

    async def may_quit(self) -> bool:
        """Whether gpubox may be closed: nothing is lost, or the owner agrees."""
        for editor in self._editors:
            if not await editor.may_leave():
                return False
        trial = self.trial
        if trial is None or not trial.under_way:
            return True
        answers = [("n", "stay", "no"), ("r", "revert it, then quit", "revert")]
        if trial.can_keep:
            answers.append(("w", "keep it, then quit", "keep"))
        title, body = f"A trial of {sanitize_line(trial.profile)} is under way", "Nothing of it is written yet."
        answer = await ask(self.app, title, body, *answers)
        if answer == "revert":
            trial.revert()
        elif answer != "keep" or not trial.keep():
            return not trial.under_way
        await trial.over.wait()
        return not trial.progress.problem
