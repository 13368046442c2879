//! What the address of a server tells without a connection to it.

/// Whether a password ended at its own `@` or `/`: what is then taken for the database is a part of it,
/// and must not be told to anybody.
pub fn is_cut(database: &str) -> bool {
    database.contains(['@', ':', '/'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_password_was_cut_into_is_told_from_the_name_of_a_database() {
        // Of `postgres://ann:p@s/h@db/journal` and `postgres://ann:p/s:h@db/journal`.
        for part in ["h@db/journal", "s:h@db/journal"] {
            assert!(is_cut(part), "{part}");
        }
        for name in ["journal", "", "kube-witness_2", "p%40s"] {
            assert!(!is_cut(name), "{name}");
        }
    }
}
