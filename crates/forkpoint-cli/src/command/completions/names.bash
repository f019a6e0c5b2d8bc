# Names of sandboxes and snapshots, asked for when they are needed.
_forkpoint_with_names() {
    local word="${COMP_WORDS[COMP_CWORD]}" names=() kept=() reply
    if [[ "$word" != -* ]]; then
        while IFS= read -r reply; do
            names+=("$reply")
        done < <("${COMP_WORDS[0]}" __complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    fi
    COMPREPLY=("${names[@]}")
    (( ${#names[@]} )) && return 0
    _forkpoint "$@"
    for reply in "${COMPREPLY[@]}"; do
        case "$reply" in
            '<'* | '['*) ;;
            *) kept+=("$reply") ;;
        esac
    done
    COMPREPLY=("${kept[@]}")
}

complete -F _forkpoint_with_names -o bashdefault -o default forkpoint
