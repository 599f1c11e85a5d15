"""``python -m gpubox`` is the same program as ``gpubox``."""

from gpubox.cli.entry import main

if __name__ == "__main__":
    main()
