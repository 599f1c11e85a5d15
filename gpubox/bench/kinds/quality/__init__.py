"""``quality``: how far the answers of quants and KV types are from those of a reference.

quality.py          the kind: what is compared, its items and how each is measured
quality_options.py  its options, its text, its items
program.py          runs llama-perplexity, reads what it prints
figures.py          chunks -> figures and their intervals
quality_report.py   results -> report
text.txt            the text that is predicted
"""

from __future__ import annotations

from dataclasses import replace

from gpubox.bench.kind import SET, BenchOption, Kind, KindArgument

_HELP = """\
Measure how far the answers of A, B, ... are from those of a reference: KL divergence and perplexity.

The reference is the first, or --reference. A target is a profile, or a profile with other flags
(A:cache-type-k=q8_0). All must have the same vocabulary, as the quants of one model have.

llama-perplexity beside the engine computes it. The chunk of text is the sampling unit of all intervals.

\b
gpubox bench quality mine-q8 mine-q4 mine-iq3
gpubox bench quality mine --set cache-type-k=q8_0 --set cache-type-v=q8_0
gpubox bench quality mine mine:cache-type-k=q8_0 mine:cache-type-k=q4_0
"""
KIND = Kind(
    "quality",
    "how far quants and KV types are from a reference",
    _HELP,
    "gpubox.bench.kinds.quality.quality:Quality",
    (
        BenchOption("reference", "Target to compare with", "text", "the first", "TARGET"),
        replace(SET, help="A with this flag as a target", in_form=True),
        BenchOption("chunks", "Chunks of the text", default="all", minimum=2, in_form=True),
        BenchOption("context", "Tokens of a chunk", default="512", minimum=128, in_form=True),
        BenchOption("text", "Another text, of your own", "text", metavar="FILE"),
    ),
    arguments=(
        KindArgument(
            "targets",
            "A [B]...",
            many=True,
            required=True,
            rows=(("A", "The reference"), ("B", "empty: A, changed as below")),
        ),
    ),
    explained=True,
)
