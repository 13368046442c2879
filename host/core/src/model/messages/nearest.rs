//! Which known name somebody probably means who wrote another one.

/// Characters of a name that are compared.
const COMPARED: usize = 64;

/// The known name that is nearest, if few characters are to be changed, added, removed or exchanged with their neighbour.
pub fn nearest<'k>(name: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let name = name.to_lowercase();
    let near = known.into_iter().map(|one| (distance(&name, &one.to_lowercase()), one)).min()?;
    // Of a short name, half has to be right: else it is near to everything.
    let most = 2.max(name.len() / 3).min(name.chars().count() / 2);
    (near.0 <= most).then_some(near.1)
}

/// Adds which name is probably meant to the message of serde about an unknown field or word.
pub fn with_nearest(message: &str) -> String {
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let near = match quoted.split_first() {
        Some((name, known)) if message.starts_with("unknown ") => nearest(name, known.iter().copied()),
        _ => None,
    };
    match near {
        Some(near) => format!("{message}: is `{near}` meant?"),
        None => message.to_owned(),
    }
}

fn distance(one: &str, other: &str) -> usize {
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
        assert_eq!(nearest("quite", known), Some("quiet"));
        assert_eq!(nearest("Routs", known), Some("routes"));
        assert_eq!(
            (nearest("evn", ["env", "file"]), nearest("x", ["kv"]), nearest("", ["kv"])),
            (Some("env"), None, None)
        );
        assert_eq!(nearest("zzzzzz", known), None);
        assert_eq!(nearest("quiet", []), None);
    }

    #[test]
    fn a_refusal_of_an_unknown_name_says_which_one_is_meant() {
        let told = "unknown field `rotat`, expected one of `name`, `path`, `rotate`";
        assert_eq!(with_nearest(told), format!("{told}: is `rotate` meant?"));
        for other in ["unknown field `zzzzzz`, expected `path`", "missing field `path`", "`a` is no `b`"] {
            assert_eq!(with_nearest(other), other);
        }
    }
}
