//! Finds the known name that is nearest to a misspelled one.
//!
//! `strsim` computes the same distance, but over whole texts. Names here come from untrusted components, so
//! only their beginnings are compared. The crate would save one function.

/// How many characters of a name are compared.
const COMPARED: usize = 64;
/// How many names of a list are compared. A component may write any list.
const KNOWN: usize = 256;

/// The nearest known name, if it takes few changed, added, removed or exchanged characters.
pub fn nearest_name<'k>(name: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let name = name.to_lowercase();
    let known = known.into_iter().filter(|name| !name.is_empty());
    let near = known.map(|candidate| (edit_distance(&name, &candidate.to_lowercase()), candidate)).min()?;
    // In a short name, more than half must match: otherwise it would be near to everything.
    let length = name.chars().take(COMPARED).count();
    let most = 2.max(length / 3).min(length.saturating_sub(1) / 2);
    (near.0 <= most).then_some(near.1)
}

/// Adds the probably intended name to a message about an unknown one. The message comes from serde, or it is
/// ours or a component's and ends with `; there are A, B` or `; it has A, B`.
pub fn with_nearest(message: &str) -> String {
    of_serde(message).or_else(|| of_list(message)).unwrap_or_else(|| message.to_owned())
}

/// Reads a message such as ``unknown field `rotat`, expected `path` or `rotate` ``. The unknown name may have
/// any character; the known names are those of types.
fn of_serde(message: &str) -> Option<String> {
    let (wrong_name, known) = message.strip_prefix("unknown ")?.rsplit_once("`, expected ")?;
    let (_, name) = wrong_name.split_once('`')?;
    let near = nearest_name(name, known.split('`').skip(1).step_by(2))?;
    Some(format!("{message}: is `{near}` meant?"))
}

/// Reads a message such as `` `slak` is no channel; there are mail, slack ``. The braces of a placeholder are
/// not part of its name.
fn of_list(message: &str) -> Option<String> {
    let (head, known) = message.rsplit_once("; there are ").or_else(|| message.rsplit_once("; it has "))?;
    let (_, quoted) = head.split_once('`')?;
    let (quoted, _) = quoted.rsplit_once('`')?;
    let name = quoted.trim_matches(['{', '}']);
    let (known, _) = known.split_once(", and ").unwrap_or((known, ""));
    let near = nearest_name(name, known.split(", ").take(KNOWN))?;
    Some(format!("{head}: is `{}` meant?", quoted.replace(name, near)))
}

fn edit_distance(one: &str, other: &str) -> usize {
    let [one, other] = [one, other].map(|text| text.chars().take(COMPARED).collect::<Vec<_>>());
    let (mut before, mut last) = (Vec::new(), (0..=other.len()).collect::<Vec<_>>());
    for (place, from) in one.iter().enumerate() {
        let mut row = vec![place + 1];
        for (column, to) in other.iter().enumerate() {
            let changed = last[column] + usize::from(from != to);
            let mut least = changed.min(last[column + 1] + 1).min(row[column] + 1);
            if place > 0 && column > 0 && *from == other[column - 1] && one[place - 1] == *to {
                least = least.min(before[column - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_found_also_where_two_letters_stand_in_each_others_place() {
        let known = ["mute", "quiet", "routes"];
        assert_eq!(nearest_name("quite", known), Some("quiet"));
        assert_eq!(nearest_name("Routs", known), Some("routes"));
        assert_eq!(
            (nearest_name("evn", ["env", "file"]), nearest_name("x", ["kv"]), nearest_name("", ["kv"])),
            (Some("env"), None, None)
        );
        assert_eq!(nearest_name("zzzzzz", known), None);
        assert_eq!(nearest_name("quiet", []), None);
        assert_eq!(
            nearest_name(&"x".repeat(1000), ["quiet"]),
            None,
            "of a long name no more than the beginning is compared"
        );
    }

    #[test]
    fn a_refusal_of_an_unknown_name_says_which_one_is_meant() {
        let message = "unknown field `rotat`, expected one of `name`, `path`, `rotate`";
        assert_eq!(with_nearest(message), format!("{message}: is `rotate` meant?"));
        for other in ["unknown field `zzzzzz`, expected `path`", "missing field `path`", "`a` is no `b`"] {
            assert_eq!(with_nearest(other), other);
        }
    }

    #[test]
    fn a_list_of_what_there_is_becomes_the_name_that_is_meant() {
        for (message, expected) in [
            ("`slak` is no channel; there are slack, mail", "`slak` is no channel: is `slack` meant?"),
            (
                "the controller has no key `sael`; it has seal",
                "the controller has no key `sael`: is `seal` meant?",
            ),
            (
                "`{{nmae}}` is not known; there are name, kind, and JSON Pointers such as `{{/a}}`",
                "`{{nmae}}` is not known: is `{{name}}` meant?",
            ),
        ] {
            assert_eq!(with_nearest(message), expected);
        }
        for other in [
            "`Great` is no phase; there are Queued, Failed",
            "the controller has no source `pods`; it has jobs",
            "`` is no channel; there are ",
            "there are a, b",
            "the field ` is odd; it has ",
        ] {
            assert_eq!(with_nearest(other), other);
        }
    }

    #[test]
    fn a_name_with_a_backtick_is_no_list_of_known_names() {
        for name in ["rot`at", "`rotat`", "` or `", "a`, expected `b`, `"] {
            let message = format!("unknown field `{name}`, expected `path` or `rotate`");
            assert!(!with_nearest(&message).contains("is `` meant"), "{}", with_nearest(&message));
        }
        let message = "unknown field `rot`ate`, expected `path` or `rotate`";
        assert_eq!(with_nearest(message), format!("{message}: is `rotate` meant?"));
        assert_eq!(
            with_nearest("`sl`ack` is no channel; there are slack"),
            "`sl`ack` is no channel: is `slack` meant?"
        );
    }
}
