//! The rights of a MySQL or MariaDB user that no plugin needs.

use sqlx::{AssertSqlSafe, MySqlConnection};

use crate::sql::servers::rights::{ExcessRights, LESSER, NAMED};

const WHO: &str = "SELECT CAST(CURRENT_USER() AS CHAR), CAST(DATABASE() AS CHAR), CAST(VERSION() AS CHAR)";
const GRANTS: &str = "SHOW GRANTS FOR CURRENT_USER()";
/// Lists the databases of journals in which the user has rights.
const JOURNALS: &str = "SELECT DISTINCT CAST(table_schema AS CHAR) FROM information_schema.tables \
    WHERE table_name = 'kw_states' ORDER BY 1 LIMIT 64";
/// The most global rights that are named. Beyond that, their number is reported.
const GLOBAL: usize = 8;

/// One parsed line of `SHOW GRANTS`.
#[derive(Debug, PartialEq, Eq)]
enum GrantLine<'a> {
    /// Rights on an object: `*.*`, a database, or a table or routine of it.
    Rights {
        rights: Vec<&'a str>,
        object: &'a str,
        passes_on: bool,
    },
    /// A role, as the line writes it.
    Role(&'a str),
    Other,
}

/// The position of a keyword outside of quotes.
fn find_keyword(text: &str, word: &str) -> Option<usize> {
    let mut quote = None;
    text.char_indices().find_map(|(at, letter)| {
        match quote {
            Some(open) if letter == open => quote = None,
            Some(_) => {}
            None if matches!(letter, '`' | '\'' | '"') => quote = Some(letter),
            None if text[at..].starts_with(word) => return Some(at),
            None => {}
        }
        None
    })
}

impl<'a> GrantLine<'a> {
    fn parse(line: &'a str) -> Self {
        let Some(text) = line.strip_prefix("GRANT ") else { return Self::Other };
        let Some(to) = find_keyword(text, " TO ") else { return Self::Other };
        let passes_on = find_keyword(&text[to..], " WITH GRANT OPTION").is_some();
        let text = &text[..to];
        match find_keyword(text, " ON ") {
            None => Self::Role(text),
            Some(on) => {
                let object = text[on + 4..].trim();
                Self::Rights { rights: split_rights(&text[..on]), object, passes_on }
            }
        }
    }
}

/// The rights, without the columns that some of them name.
fn split_rights(text: &str) -> Vec<&str> {
    let mut depth = 0;
    let parts = text.split(move |letter| {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        letter == ',' && depth == 0
    });
    parts.map(|right| right.split('(').next().unwrap_or(right).trim()).collect()
}

/// The database of an object, if the object is one; `_` and `%` are escaped in patterns.
fn database_of(object: &str) -> String {
    let quoted = object.rsplit_once('.').map_or(object, |(database, _)| database);
    // A session with `ANSI_QUOTES` gets the other kind of quotes.
    let quote = if quoted.ends_with('"') { '"' } else { '`' };
    let name = quoted.split_once(quote).map_or(quoted, |(_, rest)| rest.strip_suffix(quote).unwrap_or(rest));
    let twice = String::from_iter([quote, quote]);
    name.replace(&twice, &String::from(quote)).replace("\\_", "_").replace("\\%", "%")
}

/// Lists the rights in these lines that go beyond one database, for people.
fn rights_beyond(lines: &[String], database: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in lines {
        let GrantLine::Rights { rights, object, passes_on } = GrantLine::parse(line) else { continue };
        let real: Vec<&str> = rights.into_iter().filter(|right| *right != "USAGE").collect();
        let sentence = match object {
            _ if real == ["PROXY"] => Some(format!("may act as {object}")),
            "*.*" if real.is_empty() => None,
            "*.*" if real.iter().any(|right| right.starts_with("ALL PRIVILEGES")) => {
                Some("may do everything in all databases".to_owned())
            }
            "*.*" => {
                let hidden = real.len().saturating_sub(GLOBAL);
                let named = real[..real.len() - hidden].join(", ");
                let hidden = if hidden > 0 { format!(" and {hidden} more rights") } else { String::new() };
                Some(format!("has {named}{hidden} on the whole server"))
            }
            _ if database_of(object) == database => None,
            _ => Some(format!("may use {object}")),
        };
        found.extend(sentence);
        if passes_on {
            found.push(format!("may pass its rights on {object} to others"));
        }
    }
    found
}

fn granted_roles(lines: &[String]) -> Vec<String> {
    let roles = lines.iter().filter_map(|line| match GrantLine::parse(line) {
        GrantLine::Role(roles) => Some(roles),
        _ => None,
    });
    roles.map(str::to_owned).collect()
}

pub async fn excess_rights(connection: &mut MySqlConnection) -> Result<ExcessRights, sqlx::Error> {
    let (user, database, version): (String, String, String) =
        sqlx::query_as(WHO).fetch_one(&mut *connection).await?;
    let own: Vec<String> = sqlx::query_scalar(GRANTS).fetch_all(&mut *connection).await?;
    let mut found = rights_beyond(&own, &database);
    for role in granted_roles(&own) {
        // The names come from the server, which has quoted them.
        let asked = match version.contains("MariaDB") {
            true => format!("SHOW GRANTS FOR {role}"),
            false => format!("SHOW GRANTS FOR CURRENT_USER() USING {role}"),
        };
        let lines: Result<Vec<String>, _> =
            sqlx::query_scalar(AssertSqlSafe(asked)).fetch_all(&mut *connection).await;
        match lines {
            Ok(lines) => found.extend(rights_beyond(&lines, &database)),
            Err(error) if error.as_database_error().is_some() => {
                found.push(format!("has the role {role}, whose rights it can't show"));
            }
            Err(error) => return Err(error),
        }
    }
    let journals: Vec<String> = sqlx::query_scalar(JOURNALS).fetch_all(&mut *connection).await?;
    let shares_journal = journals.contains(&database);
    found.extend(
        journals.into_iter().map(|of| format!("may use the journal of a controller in the database {of}")),
    );
    found.sort_unstable();
    found.dedup();
    found.truncate(NAMED);
    let remedy = if found.is_empty() { Vec::new() } else { remedy_statements(&database, shares_journal) };
    Ok(ExcessRights { user, rights: found, remedy })
}

fn remedy_statements(database: &str, shares_journal: bool) -> Vec<String> {
    let pattern = database.replace('`', "``").replace('_', "\\_").replace('%', "\\%");
    let mut remedy = vec![
        format!("CREATE USER '{LESSER}'@'%' IDENTIFIED BY 'choose a password';"),
        format!(
            "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, INDEX, REFERENCES, CREATE VIEW, SHOW VIEW \
             ON `{pattern}`.* TO '{LESSER}'@'%';"
        ),
    ];
    if shares_journal {
        remedy.push("-- The journal lies in the same database: give the plugins another one.".to_owned());
    }
    remedy
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rights_of(lines: &[&str]) -> Vec<String> {
        rights_beyond(&lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>(), "my_app")
    }

    #[test]
    fn rights_on_the_own_database_are_no_more_than_needed() {
        let own = [
            "GRANT USAGE ON *.* TO `ann`@`%` IDENTIFIED BY PASSWORD '*94BDCEBE19083CE2A1F959FD02F964C7AF4CFC29'",
            "GRANT ALL PRIVILEGES ON `my\\_app`.* TO `ann`@`%`",
            "GRANT SELECT (a, b), INSERT ON `my_app`.`t` TO `ann`@`%`",
            "GRANT EXECUTE ON PROCEDURE `my_app`.`p` TO `ann`@`%`",
            "GRANT SELECT ON \"my\\_app\".* TO \"ann\"@\"%\"",
        ];
        assert_eq!(rights_of(&own), [""; 0]);
    }

    #[test]
    fn rights_on_the_server_and_on_other_databases_are_told_and_no_password_is() {
        let root =
            "GRANT ALL PRIVILEGES ON *.* TO `root`@`localhost` IDENTIFIED VIA unix_socket WITH GRANT OPTION";
        assert_eq!(
            rights_of(&[root]),
            ["may do everything in all databases", "may pass its rights on *.* to others"]
        );
        let some =
            "GRANT SELECT, RELOAD, FILE, SUPER ON *.* TO `ann`@`%` IDENTIFIED BY PASSWORD '*94 ON `x`.* TO '";
        assert_eq!(rights_of(&[some]), ["has SELECT, RELOAD, FILE, SUPER on the whole server"]);
        let many = "GRANT A, B, C, D, E, F, G, H, I, J ON *.* TO `ann`@`%`";
        assert_eq!(rights_of(&[many]), ["has A, B, C, D, E, F, G, H and 2 more rights on the whole server"]);
        let others = [
            "GRANT SELECT ON `other TO `.* TO `ann`@`%`",
            "GRANT SELECT ON `my\\_app2`.`t` TO `ann`@`%`",
            "GRANT PROXY ON ``@`` TO `root`@`localhost` WITH GRANT OPTION",
        ];
        assert_eq!(
            rights_of(&others),
            [
                "may use `other TO `.*",
                "may use `my\\_app2`.`t`",
                "may act as ``@``",
                "may pass its rights on ``@`` to others"
            ]
        );
    }

    #[test]
    fn roles_are_found_as_both_servers_write_them() {
        let lines = [
            "GRANT `reader`@`%`,`writer`@`%` TO `ann`@`%`",
            "GRANT `reader` TO `ann`@`%`",
            "SET DEFAULT ROLE `r`",
        ];
        let lines: Vec<_> = lines.iter().map(|line| (*line).to_owned()).collect();
        assert_eq!(granted_roles(&lines), ["`reader`@`%`,`writer`@`%`", "`reader`"]);
    }
}
