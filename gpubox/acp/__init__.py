"""Other programs' coding agents, hosted here, and gpubox's own agent in other programs: the Agent Client Protocol.

serving.py         gpubox's own agent for an editor: the methods of the protocol
editor_session.py  one session: a chat, its prompts, and what its owner decides
profile_choice.py  the profile that a session wants, and the switch to it
shown.py           events of a chat -> what an editor shows
editor.py          what an editor is asked: permissions, words, its files
"""
