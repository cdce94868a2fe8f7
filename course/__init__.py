"""Course material from the exercises of the book: assignments, and grading.

`exercises.read` returns what the site has written of the exercises. `assignments` and `notebooks`
make of them what students get and what a teacher keeps, `grading` marks what is handed in.
``python -m attnbook course`` and ``python -m attnbook grade`` are the commands.
"""
