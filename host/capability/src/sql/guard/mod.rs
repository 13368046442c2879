//! Reads the SQL that a plugin sends, as SQLite would split it, and refuses what reaches beyond
//! the granted tables or beyond the transaction of the call. The database parses it afterwards;
//! here only words, quotes and placeholders matter.

use kubewitness_core::ports::GrantError;

/// Statements are short; rows come as parameters.
const STATEMENT_BYTES: usize = 64 * 1024;

/// Words that end or leave the call's transaction, or reach other files and the engine's settings.
/// As names of columns they have to be quoted.
const REFUSED: [&str; 13] = [
    "ATTACH",
    "DETACH",
    "PRAGMA",
    "VACUUM",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "SAVEPOINT",
    "RELEASE",
    "TRIGGER",
    "VIRTUAL",
    "TEMP",
    "TEMPORARY",
];
/// Functions that read files, load code or make values of any size.
const FUNCTIONS: [&str; 9] = [
    "LOAD_EXTENSION",
    "READFILE",
    "WRITEFILE",
    "EDIT",
    "FTS3_TOKENIZER",
    "ZEROBLOB",
    "RANDOMBLOB",
    "PRINTF",
    "FORMAT",
];
const EXECUTED: [&str; 9] =
    ["INSERT", "REPLACE", "UPDATE", "DELETE", "WITH", "CREATE", "DROP", "ALTER", "REINDEX"];
const QUERIED: [&str; 3] = ["SELECT", "WITH", "VALUES"];
/// Tables whose names begin so are the host's own.
pub const OWN_PREFIX: &str = "kubewitness_";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Execute,
    Query,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Word,
    /// An identifier in quotes, or a string: SQLite takes either for the other where it can.
    Quoted,
    Number,
    /// `?`, or `?7`.
    Parameter(Option<usize>),
    Symbol(u8),
}

#[derive(Clone, Copy, Debug)]
struct Token<'a> {
    kind: Kind,
    text: &'a str,
    at: usize,
}

impl Token<'_> {
    fn is(&self, word: &str) -> bool {
        self.kind == Kind::Word && self.text.eq_ignore_ascii_case(word)
    }

    fn is_symbol(&self, symbol: u8) -> bool {
        self.kind == Kind::Symbol(symbol)
    }
}

/// One statement that may be run.
#[derive(Debug)]
pub struct Statement<'a> {
    /// Without a closing semicolon.
    pub text: &'a str,
    /// How many parameters it takes.
    pub arity: usize,
    tokens: Vec<Token<'a>>,
    /// Where `text` begins in what was sent; the tokens' positions count from there.
    lead: usize,
}

/// `INSERT … VALUES (?, ?) …`, split so that the tuple can be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowInsert<'a> {
    pub head: &'a str,
    pub tuple: &'a str,
    pub tail: &'a str,
}

fn invalid<T>(message: impl Into<String>) -> Result<T, GrantError> {
    Err(GrantError::Invalid(message.into()))
}

pub fn check(statement: &str, purpose: Purpose) -> Result<Statement<'_>, GrantError> {
    if statement.len() > STATEMENT_BYTES {
        return Err(GrantError::TooLarge(format!("a statement has at most {STATEMENT_BYTES} bytes")));
    }
    // SQLite stops at a NUL and skips a byte-order mark; both would make it read something else
    // than what was checked.
    if statement.contains(['\0', '\u{feff}']) {
        return invalid("a statement has no NUL and no byte-order mark");
    }
    if statement.to_ascii_lowercase().contains(OWN_PREFIX) {
        return invalid(format!("names that begin with {OWN_PREFIX} are the host's own"));
    }
    let mut tokens = tokenize(statement)?;
    let mut end = statement.len();
    while let Some(last) = tokens.last().filter(|last| last.is_symbol(b';')) {
        end = last.at;
        tokens.pop();
    }
    if tokens.iter().any(|token| token.is_symbol(b';')) {
        return invalid("send one statement at a time");
    }
    check_words(&tokens, purpose)?;
    let arity = arity(&tokens)?;
    let lead = statement.len() - statement.trim_start().len();
    Ok(Statement { text: statement[..end].trim(), arity, tokens, lead })
}

fn check_words(tokens: &[Token<'_>], purpose: Purpose) -> Result<(), GrantError> {
    let allowed: &[&str] = if purpose == Purpose::Execute { &EXECUTED } else { &QUERIED };
    let Some(first) = tokens.first() else { return invalid("the statement is empty") };
    if !allowed.iter().any(|word| first.is(word)) {
        return invalid(format!("a statement here begins with one of {}", allowed.join(", ")));
    }
    for (index, token) in tokens.iter().enumerate() {
        if let Some(word) = REFUSED.iter().find(|word| token.is(word)) {
            return invalid(format!(
                "{word} is refused: the host keeps the transaction and the engine's settings"
            ));
        }
        let called = tokens.get(index + 1).is_some_and(|next| next.is_symbol(b'('));
        let name = unquoted(token);
        if called && FUNCTIONS.iter().any(|function| name.eq_ignore_ascii_case(function)) {
            return invalid(format!("the function {name} is refused"));
        }
        if name.get(..7).is_some_and(|start| start.eq_ignore_ascii_case("pragma_")) {
            return invalid("names that begin with pragma_ are refused");
        }
        let schema = tokens.get(index + 1).is_some_and(|next| next.is_symbol(b'.'));
        if schema && name.eq_ignore_ascii_case("temp") {
            return invalid("the temp schema outlives the call and is refused");
        }
    }
    Ok(())
}

fn unquoted<'a>(token: &Token<'a>) -> &'a str {
    match token.kind {
        Kind::Quoted => &token.text[1..token.text.len() - 1],
        Kind::Word => token.text,
        Kind::Number | Kind::Parameter(_) | Kind::Symbol(_) => "",
    }
}

/// The database would take a missing parameter for NULL, so they are counted here.
fn arity(tokens: &[Token<'_>]) -> Result<usize, GrantError> {
    let mut plain = 0;
    let mut highest = 0;
    for token in tokens {
        match token.kind {
            Kind::Parameter(None) => plain += 1,
            Kind::Parameter(Some(number)) => highest = highest.max(number),
            Kind::Word | Kind::Quoted | Kind::Number | Kind::Symbol(_) => {}
        }
    }
    if plain > 0 && highest > 0 {
        return invalid("use either `?` or numbered parameters, not both");
    }
    let arity = plain.max(highest);
    if arity > super::write::MAX_BINDS {
        return invalid(format!("a statement takes at most {} parameters", super::write::MAX_BINDS));
    }
    Ok(arity)
}

impl<'a> Statement<'a> {
    /// A `WITH` is not looked into: it may write.
    pub fn reads_only(&self) -> bool {
        self.tokens.first().is_some_and(|first| first.is("SELECT") || first.is("VALUES"))
    }

    /// The parts of an insert whose only parameters are one tuple of `?`: many rows of it can go
    /// in one statement, and mean the same. `None` for anything that is not plainly that.
    pub fn as_row_insert(&self) -> Option<RowInsert<'a>> {
        let tokens = &self.tokens;
        if self.arity == 0
            || !tokens.first()?.is("INSERT")
            || tokens.iter().any(|t| t.is("SELECT") || t.is("RETURNING"))
        {
            return None;
        }
        let values = tokens.iter().position(|token| token.is("VALUES"))?;
        let inside = &tokens[values + 1..];
        let width = 2 * self.arity + 1;
        let tuple = inside.get(..width)?;
        let shaped = tuple.iter().enumerate().all(|(index, token)| match index {
            0 => token.is_symbol(b'('),
            last if last == width - 1 => token.is_symbol(b')'),
            odd if odd % 2 == 1 => token.kind == Kind::Parameter(None),
            _ => token.is_symbol(b','),
        });
        let next = inside.get(width);
        if !shaped || next.is_some_and(|token| !token.is("ON")) {
            return None;
        }
        let (start, end) = (tuple[0].at, tuple[width - 1].at + 1);
        let (head, rest) = self.text.split_at_checked(start.checked_sub(self.lead)?)?;
        let (tuple, tail) = rest.split_at_checked(end - start)?;
        Some(RowInsert { head, tuple, tail })
    }
}

fn tokenize(text: &str) -> Result<Vec<Token<'_>>, GrantError> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let (kind, end) = match byte {
            b' ' | b'\t' | b'\n' | b'\r' | 0x0c => {
                at += 1;
                continue;
            }
            b'-' if bytes.get(at + 1) == Some(&b'-') => {
                at = bytes[at..].iter().position(|b| *b == b'\n').map_or(bytes.len(), |found| at + found);
                continue;
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                let Some(found) = text[at + 2..].find("*/") else { return invalid("a comment does not end") };
                at += found + 4;
                continue;
            }
            b'\'' | b'"' | b'`' => (Kind::Quoted, quoted(bytes, at)?),
            b'[' => {
                let Some(found) = text[at..].find(']') else { return invalid("a quoted name does not end") };
                (Kind::Quoted, at + found + 1)
            }
            b'?' => {
                let end = run(bytes, at + 1, |b| b.is_ascii_digit());
                (parameter(&text[at + 1..end])?, end)
            }
            b':' | b'@' | b'$' | b'#' => return invalid("parameters are written `?`"),
            b'0'..=b'9' => {
                (Kind::Number, run(bytes, at, |b| b.is_ascii_alphanumeric() || b == b'_' || b == b'.'))
            }
            _ if is_word(byte) => {
                (Kind::Word, run(bytes, at, |b| is_word(b) || b.is_ascii_digit() || b == b'$'))
            }
            symbol => (Kind::Symbol(symbol), at + 1),
        };
        tokens.push(Token { kind, text: &text[at..end], at });
        at = end;
    }
    Ok(tokens)
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || byte >= 0x80
}

fn run(bytes: &[u8], from: usize, belongs: impl Fn(u8) -> bool) -> usize {
    bytes[from..].iter().position(|b| !belongs(*b)).map_or(bytes.len(), |found| from + found)
}

/// Past the closing quote; a doubled quote stands for itself.
fn quoted(bytes: &[u8], start: usize) -> Result<usize, GrantError> {
    let quote = bytes[start];
    let mut at = start + 1;
    while at < bytes.len() {
        match (bytes[at] == quote, bytes.get(at + 1) == Some(&quote)) {
            (true, true) => at += 2,
            (true, false) => return Ok(at + 1),
            (false, _) => at += 1,
        }
    }
    invalid("a quote does not end")
}

fn parameter(digits: &str) -> Result<Kind, GrantError> {
    if digits.is_empty() {
        return Ok(Kind::Parameter(None));
    }
    match digits.parse() {
        Ok(number) if number > 0 && number <= super::write::MAX_BINDS => Ok(Kind::Parameter(Some(number))),
        _ => invalid(format!("`?{digits}` is not a parameter")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn execute(statement: &str) -> Result<usize, String> {
        check(statement, Purpose::Execute).map(|s| s.arity).map_err(|e| e.to_string())
    }

    #[test]
    fn placeholders_are_counted_outside_strings_names_and_comments() {
        let text = r#"INSERT INTO t ("a?", [b?], `c?`) -- ? one
            VALUES (?, '?''?', /* ? */ ?);"#;
        assert_eq!(execute(text), Ok(2));
        assert_eq!(execute("UPDATE t SET a = ?2 WHERE b = ?1"), Ok(2));
        for bad in [
            "UPDATE t SET a = ? WHERE b = ?1",
            "UPDATE t SET a = :a",
            "UPDATE t SET a = ?0",
            "UPDATE t SET a = $1",
        ] {
            assert!(execute(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn more_than_one_statement_is_refused_however_it_is_hidden() {
        for bad in [
            "DELETE FROM t; DELETE FROM u",
            "DELETE FROM t;/**/DELETE FROM u",
            "DELETE FROM t;--\nDROP TABLE u",
        ] {
            assert!(execute(bad).is_err(), "{bad}");
        }
        assert!(execute("DELETE FROM t WHERE a = ';' ; ;").is_ok());
    }

    #[test]
    fn what_leaves_the_transaction_or_the_file_is_refused() {
        for bad in [
            "ATTACH 'x' AS y",
            "attach 'x' as y",
            "/* a */ Attach 'x' AS y",
            "DETACH y",
            "PRAGMA journal_mode = DELETE",
            "VACUUM INTO '/tmp/x'",
            "BEGIN",
            "COMMIT",
            "END",
            "ROLLBACK",
            "SAVEPOINT a",
            "RELEASE a",
            "INSERT OR ROLLBACK INTO t VALUES (1)",
            "CREATE TABLE t (a UNIQUE ON CONFLICT ROLLBACK)",
            "CREATE TRIGGER x AFTER INSERT ON t BEGIN SELECT 1; END",
            "CREATE VIRTUAL TABLE x USING fts5(a)",
            "CREATE TEMP TABLE x (a)",
            "CREATE TABLE \"temp\".x (a)",
            "EXPLAIN DELETE FROM t",
            "",
            ";",
            "-- nothing",
            "DELETE FROM t WHERE a = 'x",
            "DELETE FROM t /* x",
            "DELETE FROM t\0; ATTACH 'x' AS y",
            "DELETE FROM t WHERE \u{feff}ROLLBACK",
        ] {
            assert!(execute(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_hosts_own_tables_cannot_be_named() {
        for bad in [
            "DELETE FROM kubewitness_receipts",
            "DELETE FROM \"Kubewitness_Receipts\"",
            "DELETE FROM 'kubewitness_receipts'",
            "DELETE FROM [kubewitness_receipts]",
            "ALTER TABLE t RENAME TO kubewitness_x",
        ] {
            assert!(execute(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn queries_only_read_and_call_nothing_dangerous() {
        let query = |text| check(text, Purpose::Query).map(|s| s.arity).map_err(|e| e.to_string());
        assert_eq!(query("SELECT replace(a, ?, ?) FROM t"), Ok(2));
        for bad in [
            "DELETE FROM t RETURNING a",
            "SELECT load_extension('x')",
            "SELECT \"load_extension\" ('x')",
            "SELECT zeroblob(1000000000)",
            "SELECT * FROM pragma_database_list",
            "SELECT * FROM 'PRAGMA_database_list'",
        ] {
            assert!(query(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_plain_insert_splits_into_head_tuple_and_tail() {
        let text = " \n INSERT INTO t (a, b) VALUES ( ?, ? ) ON CONFLICT (a) DO NOTHING;";
        let split = check(text, Purpose::Execute).unwrap().as_row_insert().unwrap();
        assert_eq!(split.head, "INSERT INTO t (a, b) VALUES ");
        assert_eq!(split.tuple, "( ?, ? )");
        assert_eq!(split.tail, " ON CONFLICT (a) DO NOTHING");
    }

    #[test]
    fn an_insert_that_is_not_plain_stays_row_by_row() {
        for text in [
            "INSERT INTO t VALUES (?, 1)",
            "INSERT INTO t VALUES (?), (?)",
            "INSERT INTO t VALUES (?) RETURNING a",
            "INSERT INTO t SELECT ?",
            "INSERT INTO t VALUES (?) ON CONFLICT DO UPDATE SET a = ?",
            "INSERT INTO t VALUES (?1)",
            "INSERT INTO t VALUES (upper(?))",
            "UPDATE t SET a = ?",
        ] {
            assert_eq!(check(text, Purpose::Execute).unwrap().as_row_insert(), None, "{text}");
        }
    }
}
