# gpubox completion fish > ~/.config/fish/completions/gpubox.fish
function _gpubox_completion
    set -l words (commandline -cp | string collect)
    for line in (env _GPUBOX_COMPLETE=fish_complete COMP_WORDS=$words COMP_CWORD=(commandline -ct | string collect) \
            gpubox 2>/dev/null)
        set -l parts (string split -m 2 \t -- $line)
        switch $parts[1]
            case dir
                __fish_complete_directories (commandline -ct)
            case file
                __fish_complete_path (commandline -ct)
            case '*'
                printf '%s\t%s\n' $parts[2] $parts[3]
        end
    end
end
complete --no-files --command gpubox --arguments '(_gpubox_completion)'
