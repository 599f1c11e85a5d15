"""Opens, finds and downloads GGUF files.

gguf.py           checks a model file, its shards included
gguf_header.py    what a header holds (pure)
ggml_types.txt    the types of tensors, and the sizes of their blocks
header_cache.py   headers that were read before
find.py           the folders with models, and the models in them; Ollama's too
resolve.py        the file that a profile's model names
quants.py         which files of a repository form a model (pure)
hub_client.py     the only HTTP client of Hugging Face
hub_search.py     repositories, quants, projectors and drafts
hub_download.py   resumable, checked downloads into the shared cache; when a failed one is tried again
remote_header.py  the header of a model that is not here
fetch.py          downloads the model that a profile names
demo_model.py     the demo models, and their download with pip
"""

from collections.abc import Callable

DownloadProgress = Callable[[int, int | None, str], None]
"""Called with the bytes downloaded, the total (None: unknown), and a sentence while the other side makes it wait (else
empty). It may raise to cancel."""
