//! Reads the words before the one that is completed, and tells flags from arguments.

use clap::{Arg, Command};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CommandWords {
    /// The command and those below it, such as `deadletters list`.
    pub commands: Vec<String>,
    pub arguments: Vec<String>,
    flags: Vec<(String, String)>,
}

impl CommandWords {
    /// `words` begin after the name of the program.
    pub fn read(mut command: &Command, words: &[String]) -> Self {
        let mut read = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if let Some((flag, value)) = word.split_once('=').filter(|_| word.starts_with("--")) {
                read.flags.push((flag.to_owned(), value.to_owned()));
            } else if word.starts_with('-') {
                if command.get_arguments().any(|arg| is_flag(arg, word) && takes_a_word(arg))
                    && let Some(value) = words.next()
                {
                    read.flags.push((word.clone(), value.clone()));
                } else {
                    read.flags.push((word.clone(), String::new()));
                }
            } else if let Some(below) = command.find_subcommand(word).filter(|_| read.arguments.is_empty()) {
                command = below;
                read.commands.push(word.clone());
            } else {
                read.arguments.push(word.clone());
            }
        }
        read
    }

    /// Every value of a flag.
    pub fn all_values<'a>(&'a self, names: &'a [&str]) -> impl Iterator<Item = &'a str> {
        self.flags.iter().filter(|(name, _)| names.contains(&name.as_str())).map(|(_, value)| value.as_str())
    }

    /// The value of a flag; empty if it is not given.
    pub fn flag_value(&self, names: &[&str]) -> Option<String> {
        let mut given = self.flags.iter().filter(|(name, _)| names.contains(&name.as_str()));
        given.next_back().map(|(_, value)| value.clone())
    }
}

fn is_flag(arg: &Arg, word: &str) -> bool {
    let long = arg.get_long().is_some_and(|long| word.strip_prefix("--") == Some(long));
    long || arg
        .get_short()
        .is_some_and(|short| word.strip_prefix('-') == Some(short.encode_utf8(&mut [0; 4])))
}

fn takes_a_word(arg: &Arg) -> bool {
    arg.get_action().takes_values() && !arg.is_require_equals_set()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> CommandWords {
        let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
        let mut command = crate::cli::command();
        command.build();
        CommandWords::read(&command, &words)
    }

    #[test]
    fn flags_and_their_values_are_no_arguments() {
        let words = read("get -n team-a job --server=http://x --watch --gone train");
        assert_eq!(
            (words.commands, words.arguments),
            (vec!["get".into()], vec!["job".into(), "train".into()])
        );
        let words = read("deadletters list -n a --plugin x -n b");
        assert_eq!(words.commands, ["deadletters", "list"]);
        assert_eq!(words.flag_value(&["-n", "--namespace"]).as_deref(), Some("b"));
        assert_eq!(words.flag_value(&["--server"]), None);
        assert_eq!(read("get job --gone").flag_value(&["--gone"]).as_deref(), Some(""));
        assert_eq!(read("get get").arguments, ["get"], "a kind may be called as a command is");
    }
}
