# Names of sandboxes and snapshots, asked for when they are needed.
_forkpoint_with_names() {
    local word="${COMP_WORDS[COMP_CWORD]}" names=() kept=() reply
    local words=("${COMP_WORDS[@]:1:COMP_CWORD}") line="${COMP_LINE:0:${COMP_POINT:-0}}" joined= cut=
    local typed="${line##*[[:space:]]}"
    if [[ "$typed" == *:* && "$COMP_WORDBREAKS" == *:* ]]; then
        # A colon ends a word for bash: it gives three, and puts an answer in the place of the last.
        while (( ${#words[@]} )) && [[ "$joined" != "$typed" ]]; do
            joined="${words[-1]}$joined"
            unset 'words[-1]'
        done
        words+=("$typed")
        cut="${typed%"${typed##*:}"}"
    fi
    if [[ "$word" != -* ]]; then
        while IFS= read -r reply; do
            names+=("${reply#"$cut"}")
        done < <("${COMP_WORDS[0]}" __complete -- "${words[@]}" 2>/dev/null)
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
