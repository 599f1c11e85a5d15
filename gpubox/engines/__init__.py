"""What one llama-server binary, or the embedded engine, is and accepts; and how one is built.

find.py             the engines of this machine
query.py            runs one for a short answer
capabilities.py     its --help as options, and which flags of a profile it refuses
option_values.py    flags as the owner writes and changes them (pure)
replaced_flags.py   flags that were removed, or that only forks have
build.py            makes llama-server from source
build_recipe.py     backend, arguments and missing tools of a build
build_output.py     progress and failures in what a build prints (pure)
built.py            the folders of built engines; sets the default engine
embedded_server.py  the embedded engine: llama.cpp's server from the xllamacpp wheel
embedded_flags.py   llama-server's flags -> its parameters, and how their texts are read
embedded_plain.txt  the flags among them that set one attribute
embedded_help.txt   the --help of llama.cpp's server that the embedded engine takes its flags from
"""
