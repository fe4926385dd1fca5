# Bash breaks words at colons, and names of locks have colons: the words are read from the line instead.
_leasehold() {
    local line=${COMP_LINE:0:COMP_POINT} at
    local -a words
    IFS=$' \t\n' read -ra words <<< "$line"
    [[ -z $line || $line == *[[:space:]] ]] && words+=("")
    local last=$((${#words[@]} - 1))
    local word=${words[last]}

    # After -- comes a command with completions of its own.
    for ((at = 1; at < COMP_CWORD; at++)); do
        [[ ${COMP_WORDS[at]} == -- ]] || continue
        if declare -F _command_offset > /dev/null; then
            _command_offset $((at + 1))
        elif ((at + 1 == COMP_CWORD)); then
            mapfile -t COMPREPLY < <(compgen -c -- "$word")
        else
            mapfile -t COMPREPLY < <(compgen -f -- "$word")
        fi
        return
    done

    local IFS=$'\013' space=true
    compopt +o nospace 2> /dev/null && space=false
    COMPREPLY=($(_CLAP_IFS="$IFS" _CLAP_COMPLETE_INDEX="$last" _CLAP_COMPLETE_COMP_TYPE="$COMP_TYPE" \
        _CLAP_COMPLETE_SPACE="$space" LEASEHOLD_COMPLETE=bash leasehold -- "${words[@]}"))
    if [[ $? != 0 ]]; then
        unset COMPREPLY
        return
    fi
    if [[ $space == false && ${COMPREPLY-} =~ [=/:]$ ]]; then
        compopt -o nospace
    fi
    # Bash puts the answer in the place of what follows the last colon.
    if [[ $word == *:* && $COMP_WORDBREAKS == *:* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*:}"}"}")
    fi
}
complete -o nospace -o bashdefault -F _leasehold leasehold
