"""Other programs' coding agents, hosted here, and gpubox's own agent in other programs: the Agent Client Protocol.

host.py            hosts an agent for a chat: in walls, at the gateway
registry.py        which agents there are, where one is installed, what starts it
in_terminal.py     an agent in the owner's terminal, in the same walls
hosted.py          one agent of one chat: process, session, turns
hosted_turn.py     one running turn of it
protocol.py        what is read of an agent's messages (pure)
updates.py         from what it reports to the events of a chat (pure)
client_files.py    the files that it reads and writes through gpubox
rounds.py          its requests in the gateway's ledger, as the rounds of a turn
relay.py           its only ways out
serving.py         gpubox's own agent for an editor: the methods of the protocol
editor_session.py  one session: a chat, its prompts, and what its owner decides
profile_choice.py  the profile that a session wants, and the switch to it
shown.py           events of a chat -> what an editor shows
editor.py          what an editor is asked: permissions, words, its files
"""
