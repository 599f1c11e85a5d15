"""Runs a model's program so that it cannot harm the box: the kernel confines it.

``await Sandbox(config).run(code, Policy(workspace=folder))`` returns an Outcome.

runner.py           Sandbox; which confinement works here, and what the owner can do if none does
policy.py           what a program may use, how it is confined, how its run ended
confined_run.py     one run, from its start to the death of its last process
spawn.py            starts the confined process
boot.py             runs inside, before the program: limits, user, locks
monitor.py          runs inside, beside the program: memory of the kernel
inner_relay.py      runs inside, beside a program that stays: its ports lead to sockets outside
bubblewrap.py       the wall of namespaces: bwrap and its arguments
landlock.py         the wall without namespaces
seccomp.py          the system calls that are forbidden
syscalls.txt        their numbers
cgroup.py           a bound of all memory, where gpubox may make one
resident.py         a program that stays: a whole agent, in a private copy
workspace_run.py    a run over a workspace: by an overlay mount, else in a private copy
layers.py           what programs change, over a workspace that stays as it is
changes.py          what the layers change, by file and hunk
steps.py            turns, takes and drops: undo and redo
step_book.py        their record on disk
take_plan.py        what a take puts into the workspace
taking.py           exchanges files of the workspace, so that a kill loses nothing
states.py           what a path is, to know it again
runs_by_itself.py   names that the owner's tools run by themselves
owners_git.py       what his git ignores, and where its hooks are
private_copy.py     the copy where no overlay can be mounted
folders.py          which folder may be a workspace, and whose a layer is
disk_monitor.py     how much a program has written
idmapped_mount.py   lets the user of root's programs see a workspace as his
toolchains.py       the owner's compilers and interpreters, read-only inside
interpreter.py      which Python runs the program
"""
