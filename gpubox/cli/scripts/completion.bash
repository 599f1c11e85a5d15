# eval "$(gpubox completion bash)" in ~/.bashrc
_gpubox_completion() {
    local type value help
    COMPREPLY=()
    while IFS=$'\t' read -r type value help; do
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            *) [[ ${COMP_WORDS[COMP_CWORD]} == [\"\']* ]] || printf -v value %q "$value"
               COMPREPLY+=("$value") ;;
        esac
    done < <(env _GPUBOX_COMPLETE=bash_complete COMP_WORDS="${COMP_LINE:0:COMP_POINT}" \
        COMP_CWORD="${COMP_WORDS[COMP_CWORD]}" gpubox 2>/dev/null)
    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace
    return 0
}
complete -o nosort -F _gpubox_completion gpubox
