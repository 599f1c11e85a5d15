"""Profiles: the frozen description of one llama-server launch, and its argv.

profile.py            the Profile and its parts
loader.py             profiles from TOML files, the shipped ones and the owner's
edit.py               changes the owner's files; comments and other lines stay
writer.py             a Profile as TOML text
argv.py               a Profile as the arguments of llama-server
flag_values.py        flags that take several values, or hold file paths
comparison.py         what two profiles have different
"""
