# Names of sandboxes and snapshots, asked for when they are needed.
complete -c forkpoint -n "not __fish_forkpoint_needs_command" -a "(forkpoint __complete -- (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)"
