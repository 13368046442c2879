//! One text for both kinds of servers: the tokens in it, and what each kind reads in their place.
//!
//! | in a text | PostgreSQL | MySQL and MariaDB |
//! |---|---|---|
//! | `?` | `$1`, `$2`, … | `?` |
//! | `@numbers` | an array, as the relation `q (v)` | a JSON table, the same |
//! | `@pairs` | two arrays, as the relation `q (n, b)` | a JSON table `q (n, h)` with digits for bytes |
//! | `@b` | `q.b` | `UNHEX(q.h)` |
//! | `@JOIN` | `JOIN` | `STRAIGHT_JOIN`: in the order of the text |
//! | `@BIGINT` | `bigint` | `SIGNED` |
//! | `@TEXT` | `bytea` | `BINARY` |

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerDialect {
    Postgres,
    Mysql,
}

impl ServerDialect {
    pub fn text(self, shared: &str) -> String {
        let mut text = String::with_capacity(shared.len() + 64);
        let (mut rest, mut binds) = (shared, 0);
        while let Some(at) = rest.find(['?', '@']) {
            text.push_str(&rest[..at]);
            rest = &rest[at..];
            let known = ["?", "@numbers", "@pairs", "@b", "@JOIN", "@BIGINT", "@TEXT"];
            let token = known.into_iter().find(|token| rest.starts_with(token)).unwrap_or("@");
            binds += match token {
                "?" | "@numbers" => 1,
                "@pairs" => 2,
                _ => 0,
            };
            match (self, token) {
                (Self::Postgres, "?") => text.push_str(&format!("${binds}")),
                (Self::Postgres, "@numbers") => {
                    text.push_str(&format!("unnest(${binds}::bigint[]) AS q (v)"));
                }
                (Self::Postgres, "@pairs") => {
                    let first = binds - 1;
                    text.push_str(&format!("unnest(${first}::bigint[], ${binds}::bytea[]) AS q (n, b)"));
                }
                (Self::Postgres, "@b") => text.push_str("q.b"),
                (Self::Mysql, "@pairs") => text.push_str(
                    "JSON_TABLE(?, '$[*]' COLUMNS (n BIGINT PATH '$[0]', h VARCHAR(4300) PATH '$[1]')) AS q",
                ),
                (Self::Mysql, "@b") => text.push_str("UNHEX(q.h)"),
                (Self::Postgres, "@JOIN") => text.push_str("JOIN"),
                (Self::Postgres, "@BIGINT") => text.push_str("bigint"),
                (Self::Postgres, "@TEXT") => text.push_str("bytea"),
                (Self::Mysql, "@numbers") => {
                    text.push_str("JSON_TABLE(?, '$[*]' COLUMNS (v BIGINT PATH '$')) AS q");
                }
                // The optimizer does not know how long a JSON table is.
                (Self::Mysql, "@JOIN") => text.push_str("STRAIGHT_JOIN"),
                (Self::Mysql, "@BIGINT") => text.push_str("SIGNED"),
                (Self::Mysql, "@TEXT") => text.push_str("BINARY"),
                (_, token) => text.push_str(token),
            }
            rest = &rest[token.len()..];
        }
        text.push_str(rest);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_text_serves_both() {
        let shared = "SELECT CAST(a AS @BIGINT) FROM @numbers @JOIN t ON t.a = q.v WHERE b = ? AND c = ?";
        assert_eq!(
            ServerDialect::Postgres.text(shared),
            "SELECT CAST(a AS bigint) FROM unnest($1::bigint[]) AS q (v) JOIN t ON t.a = q.v WHERE b = $2 AND c = $3"
        );
        assert_eq!(
            ServerDialect::Mysql.text(shared),
            "SELECT CAST(a AS SIGNED) FROM JSON_TABLE(?, '$[*]' COLUMNS (v BIGINT PATH '$')) AS q \
             STRAIGHT_JOIN t ON t.a = q.v WHERE b = ? AND c = ?"
        );
    }
}
