//! Splits a command line into the programs that it starts and their words. It knows only the part of
//! the shell that the documentation uses.

/// The words of each program that the line starts, without variables before it and redirections.
pub fn simple_commands(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut letters = line.chars().peekable();
    let mut word: Option<String> = None;
    let mut is_target = false;
    while let Some(letter) = letters.next() {
        match letter {
            '\'' | '"' => {
                let quoted: String = letters.by_ref().take_while(|inner| *inner != letter).collect();
                word.get_or_insert_default().push_str(&quoted);
            }
            '\\' if letters.peek() == Some(&'\n') => {
                letters.next();
            }
            '#' if word.is_none() => {
                letters.by_ref().take_while(|inner| *inner != '\n').for_each(drop);
            }
            '|' | '&' | ';' | '>' | '\n' | ' ' => {
                if let Some(word) = word.take()
                    && !std::mem::take(&mut is_target)
                {
                    commands.last_mut().expect("there is one").push(word);
                }
                match letter {
                    ' ' => {}
                    '>' => is_target = true,
                    _ => commands.push(Vec::new()),
                }
            }
            _ => word.get_or_insert_default().push(letter),
        }
    }
    if let Some(word) = word
        && !is_target
    {
        commands.last_mut().expect("there is one").push(word);
    }
    commands.iter_mut().for_each(without_settings);
    commands.retain(|words| !words.is_empty());
    commands
}

/// `NAME=value` before a program, `export` and `alias` start nothing.
fn without_settings(words: &mut Vec<String>) {
    let is_setting = |word: &String| {
        let name = word.split('=').next().unwrap_or_default();
        word.contains('=') && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
    };
    let program = words.iter().position(|word| !is_setting(word)).unwrap_or(words.len());
    words.drain(..program);
    if words.first().is_some_and(|word| word == "export" || word == "alias") {
        words.clear();
    }
}

#[test]
fn programs_are_told_from_what_stands_around_them() {
    let words =
        |line: &str| -> Vec<String> { simple_commands(line).iter().map(|words| words.join(" ")).collect() };
    assert_eq!(words("export A='b c'"), [""; 0]);
    assert_eq!(words("A=1 b 'c | d' --e \"f\" > out.txt  # g"), ["b c | d --e f"]);
    assert_eq!(words("a | b && c --d=e &"), ["a", "b", "c --d=e"]);
    assert_eq!(words("a \\\n    --b"), ["a --b"]);
}
