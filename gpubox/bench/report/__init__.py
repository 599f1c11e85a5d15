"""What stored runs say, as values: reports, comparisons, leaderboards, the frontier, posts. `gpubox.views` words them.

chart.py           the charts of a report: their contents and axes
formatting.py      numbers, intervals and flags as text
frontier.py        quality against speed against VRAM
leaderboard.py     profiles ranked by their last run
load.py            reads stored runs for all of these, redacted
markdown.py        text that nobody vouches for, as Markdown
model.py           Report, Metric, Estimate's place in them, RunSummary
past_figures.py    which launches are the same, and what each run of them measured
plot.py            charts as rows of text
post.py            what a forum may read of a run
post_card.py       a post as a picture
post_flags.py      the flags of a launch that differ from the defaults
post_model.py      name, quant and parameters of a model
post_text.py       a post as Markdown
privacy.py         the wall before all that leaves this box
prompt_metrics.py  metrics with the prompt as the sampling unit
run_comparison.py  two runs, row by row
run_progress.py    how far a run is
run_summaries.py   a run in a list, cached in its folder
"""
