"""What screens are made of. A widget draws what it is given; it never fetches.

header.py       the first row of every screen: what runs
lines.py        widgets that draw styled lines: a line, phrases, lines that scroll, lines of a snapshot
cursor_rows.py  long lists with a cursor
form.py         the line that filters a view, rows of a form
"""
