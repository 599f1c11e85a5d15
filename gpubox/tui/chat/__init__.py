"""The chat: the model's turns, and what the owner can do with them.

chat_screen.py    the screen: the transcript of one chat, the prompt box, the list beside it; what their keys do
chat_lines.py     the lines around the transcript: settings, progress of the turn, why nothing can answer
transcript.py     the turns as scrolling lines; only what changed is laid out again
turn.py           one turn: runs it, events in, parts and progress out
turn_parts.py     the parts of a turn as lines: prompt, thinking, answer, tool calls, changes, where its time went
diff_lines.py     changes as lines: one for each file, and diffs
markdown.py       streamed Markdown, code and wrapped text as lines
composer.py       the prompt box
suggestions.py    the list above it that completes commands and files
question.py       what only the owner can decide, and the queue of such questions
commands.py       what the commands do: diff, undo, tests, commit, plan, share, the workspace
diff_screen.py    files and hunks to mark, and what becomes of them
commit.py         the message of a commit
snippets.py       the code of a turn: copied, saved
chat_list.py      the list of chats under its search line, and what is done with a stored one
chat_settings.py  the form with the settings of one chat
chats.py          what the screen asks of stored chats, sandbox, workspace and profiles
"""
