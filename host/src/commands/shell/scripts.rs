//! The scripts that shells read, as clap writes them, and what `NAME=VALUE` needs in them: bash takes such a word for
//! three, and zsh puts a space behind the `=`.

/// In bash, one word again of what bash took apart at `=` and `:`, and only the rest of it to fill in.
const BASH: [(&str, &str); 2] = [
    (
        r#"    local words=("${COMP_WORDS[@]}")
    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
        words[COMP_CWORD]="$2"
    fi
"#,
        r#"    local words=() joined="" part="" last="" index
    for (( index = 0; index <= COMP_CWORD; index++ )); do
        part="${COMP_WORDS[index]}"
        if (( index == COMP_CWORD )) && [[ "$part" != [=:] ]]; then
            part="$2"
        fi
        if (( index > 1 )) && [[ "${COMP_WORDS[index]}" == [=:] || "$last" == [=:] ]]; then
            joined="${words[${#words[@]} - 1]}"
            words[${#words[@]} - 1]="$joined$part"
            [[ "$part" != [=:] ]] || joined="$joined$part"
        else
            words+=("$part")
            joined=""
        fi
        last="${COMP_WORDS[index]}"
    done
    _CLAP_COMPLETE_INDEX=$(( ${#words[@]} - 1 ))
"#,
    ),
    (
        r#"    if [[ $? != 0 ]]; then
        unset COMPREPLY
"#,
        r#"    if [[ $? != 0 ]]; then
        unset COMPREPLY
    elif [[ -n "$joined" ]] && (( ${#COMPREPLY[@]} > 0 )); then
        COMPREPLY=("${COMPREPLY[@]#"$joined"}")
"#,
    ),
];

const ZSH: [(&str, &str); 3] = [
    ("        local -a other=()\n", "        local -a other=()\n        local -a names=()\n"),
    (
        "            else\n                other+=(\"$completion\")\n",
        "            elif [[ \"$value\" == *= ]]; then\n                names+=(\"$completion\")\n            else\n                \
         other+=(\"$completion\")\n",
    ),
    (
        "        [[ -n $other ]] && _describe -V 'values' other\n",
        "        [[ -n $other ]] && _describe -V 'values' other\n        if [[ -n $names ]]; then\n            _describe -V 'values' names -S ''\n        fi\n",
    ),
];

/// The script for this shell; `None` where clap writes another one than these changes are made for.
pub(super) fn changed(shell: &str, script: &str) -> Option<String> {
    let changes: &[(&str, &str)] = match shell {
        "bash" => &BASH,
        "zsh" => &ZSH,
        _ => &[],
    };
    changes.iter().try_fold(script.to_owned(), |script, (from, to)| {
        script.contains(from).then(|| script.replacen(from, to, 1))
    })
}

#[cfg(test)]
mod tests {
    use clap_complete::env::Shells;

    use super::*;

    #[test]
    fn the_script_of_each_shell_is_the_one_that_is_changed() {
        for name in ["bash", "zsh", "fish"] {
            let mut script = Vec::new();
            let shells = Shells::builtins();
            let shell = shells.completer(name).unwrap();
            shell.write_registration("VAR", "x", "x", "x", &mut script).unwrap();
            let script = String::from_utf8(script).unwrap();
            assert_eq!(changed(name, &script).unwrap() != script, name != "fish", "{name}");
            assert_eq!(changed(name, "").is_some(), name == "fish");
        }
    }
}
