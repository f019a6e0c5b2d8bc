# Names of sandboxes and snapshots, asked for when they are needed.
(( $+functions[_forkpoint_names] )) ||
_forkpoint_names() {
    local -a names
    names=(${(f)"$(forkpoint __complete -- "${(@)words[1,CURRENT]}" 2>/dev/null)"})
    compadd -a names || _default
}
