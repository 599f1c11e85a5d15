#compdef gpubox
# eval "$(gpubox completion zsh)" in ~/.zshrc, after compinit
_gpubox_completion() {
    local type value help
    local -a whole begun
    while IFS=$'\t' read -r type value help; do
        case $type in
            dir) _files -/ ;;
            file) _files ;;
            *) value="${value//:/\\:}${help:+:$help}"
               if [[ $type == begun ]]; then begun+=("$value"); else whole+=("$value"); fi ;;
        esac
    done < <(env _GPUBOX_COMPLETE=zsh_complete COMP_WORDS="${(j: :)words[1,CURRENT-1]} $PREFIX" COMP_CWORD="$PREFIX" \
        gpubox 2>/dev/null)
    (( $#whole )) && _describe -V gpubox whole
    (( $#begun )) && _describe -V gpubox begun -S ''
    return 0
}
# in a folder of $fpath this file is the function itself
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _gpubox_completion "$@"; else compdef _gpubox_completion gpubox; fi
