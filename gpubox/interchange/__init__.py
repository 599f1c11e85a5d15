"""Other programs' files, in and out: one file a format, with its ``Format`` and its line in ``importing.FORMATS``.

importing.py           text or file -> profiles; the list of formats; a GGUF file; a new profile, its default flags
format.py              what a format is, and what its reader returns
conversion.py          what a text holds -> profiles
profile_draft.py       the arguments of one llama-server -> a profile
given_options.py       arguments -> options and values; options of older builds
reference_options.py   the options of a reference build, from its --help
data/                  that --help; the options of LM Studio and KoboldCpp; a unit of systemd
import_notes.py        notes about what a profile cannot hold, without secrets
script.py              what the readers of scripts share
server_invocation.py   finds llama-server in a command
containers.py          docker run, and what compose and Quadlet share
yaml_text.py           YAML as plain texts
shell.py               POSIX shell scripts and command lines
batch.py               Windows batch files, and command lines of PowerShell
systemd.py             systemd and Quadlet units
compose.py             compose files
llama_swap.py          llama-swap's config.yaml
models_ini.py          llama.cpp's models.ini
modelfile.py           Ollama's Modelfile
lmstudio.py            LM Studio's JSON
koboldcpp.py           KoboldCpp's command lines and .kcpps
exporting.py           out: systemd unit, shell script, llama-swap entry
client_settings.py     out: the settings of clients
agent_launch.py        out: what starts a coding agent at the gateway
settings_file.py       writes them into the file that a client reads
jsonc.py               sets values in JSON with comments (pure)
"""
