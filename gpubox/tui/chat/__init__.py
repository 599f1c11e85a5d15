"""The chat: the model's turns, and what the owner can do with them.

chat_screen.py    the screen: the transcript of one chat, the prompt box, the list beside it; what their keys do
chat_lines.py     the lines around the transcript: settings, progress of the turn, why nothing can answer
transcript.py     the turns as scrolling lines; only what changed is laid out again
turn.py           one turn: runs it, events in, parts and progress out; the code in it
turn_parts.py     the parts of a turn as lines: prompt, thinking, answer, tool calls, errors, where its time went
markdown.py       streamed Markdown, code and wrapped text as lines
composer.py       the prompt box
chat_list.py      the list of chats under its search line
approval.py       the question whether a tool may write, and the queue of such questions
chat_settings.py  the form with the settings of one chat
chats.py          what the screen asks of stored chats, sandbox and profiles
"""
