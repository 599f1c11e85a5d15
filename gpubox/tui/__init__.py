"""The screen: draws values and passes on what the owner does. The only package that imports Textual.

run.py                 runs the screen in this terminal, from its start to what it prints when it closes
app.py                 creates the screens, passes them what the bridge posts, performs the actions of all screens
actions.py             every action once: keys, key bar, menus, palette and help are made from this table
palette.py             finds actions, profiles, terms and files by plain words; the menu of a pane or screen
appearance.py          the theme, and what the screen remembers
background.py          asks the terminal whether it is light or dark, and takes its answer out of what is typed
remembered.py          what the screen keeps for its next session: choices, and what it showed last
bridge.py              polls the services, keeps what is known, posts what changed as messages
messages.py            those messages, and the values they are about
services.py            what the screen asks of this machine
remote_services.py     what it asks of another box, through its gateway
replay_services.py     what it asks of a recording
web.py                 the screen in a browser, for who has a key
operations.py          start, switch, restart, stop: questions, download, the Supervisor's operation; closing meanwhile
operation_progress.py  an operation from its events to lines: its steps, its end, why it failed
advice.py              the screen of the advice
help_screen.py         keys, terms, marks and file locations
base_screen.py         the base of full screens, and the key bar, where messages stand, too
dialogs.py             a question, a prompt for a line, a table of fields
survival.py            the base of the app: goes on after an exception, keeps messages (`say`)
styled_lines.py        lines of styled text as tuples, short texts; the colour of each mark's role
theme.py               the colours and their meanings
compositor.py          asks widgets only for the rows that are seen, where Textual asks for all
widgets/               what screens are made of: header, lines, rows with a cursor, form
dashboard/             the first screen, one file a pane
chat/ bench/ workshop/ clients/   the other screens
"""
