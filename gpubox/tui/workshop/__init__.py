"""The workshop: change a profile, try the change, compare two profiles, find a model.

profile_actions.py  what the keys of the dashboard do with the highlighted profile
profile_dialogs.py  what a new profile is made of; two profiles side by side
editor.py           the editor: every flag of the engine
editor_lines.py     what it draws: options, the command line, planned memory
edit_session.py     the changes of one profile, and undo (pure)
profile_files.py    what editor and trials ask of this machine
trial.py            one trial, and its screen
models_screen.py    the models here and on Hugging Face, what fits, the download of one
model_finder.py     finds, plans and downloads them
"""
