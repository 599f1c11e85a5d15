"""What stored runs say, as values: reports, comparisons and leaderboards with their verdicts, posts.

chart.py           the charts of a report: their contents and axes; as rows of text
formatting.py      numbers, intervals and flags as text; untrusted text as Markdown
leaderboard.py     profiles ranked by their last run
load.py            reads stored runs for all of these, redacted
model.py           Report, Metric, Estimate's place in them, RunSummary
post.py            what a forum may read of a run
post_launch.py     name, quant and parameters of a model; the flags that differ from the defaults
post_flags.txt     the flags that a post may show
post_forms.py      a post as Markdown, and as a picture
privacy.py         the wall before all that leaves this box
prompt_metrics.py  metrics with the prompt as the sampling unit
run_comparison.py  two runs, row by row, and which is better
run_summaries.py   a run in a list, cached in its folder; how far a run is
"""
