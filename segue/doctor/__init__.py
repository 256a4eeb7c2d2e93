"""What `segue doctor` looks at, each check a function that gives one line.

Knows nothing of ours but names of commands and files. Invariant: a check changes nothing on the
machine, and never raises: what it could not find out is a finding, too.
"""
