"""The Clients screen: who sends requests to the gateway, and how a client is connected.

clients_screen.py   the screen: the gateway, its clients, the last requests
client_lines.py     its lines (pure)
connect_screen.py   the settings of one client, with the address, a model and a key
gateway_actions.py  what keys do to the gateway: start, stop, hold, connect
gateway_calls.py    the calls of the screen into the gateway's code
"""
