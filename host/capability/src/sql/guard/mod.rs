//! Refuses a statement of a plugin that reaches beyond the granted tables or beyond the transaction of the
//! call.
//!
//! Checking the plugin's own text was rejected: the guard and a server may read the same bytes differently.
//! So [`RenderedStatements`] parses what the plugin wrote and renders it again, and only the rendered text is
//! used. Then [`check`] examines its words, quotes and placeholders. The database then parses it as one
//! prepared statement, in a read-only transaction if only reading was granted. The guard is the second fence:
//! the first is the rights of the user that the operator granted. It runs nothing.

mod cast_types;
#[cfg(test)]
pub mod differential;
mod functions;
mod index_prefixes;
mod names;
mod rendered;
mod rules;
mod tokens;

use kubewitness_core::config::SqlAccess;
use kubewitness_core::ports::{GrantError, SqlDialect};

pub use self::functions::is_allowed as allows_function;
pub use self::rendered::RenderedStatements;
use self::rules::GuardRules;
use self::tokens::{SqlToken, TokenKind, tokenize_statement};

/// The most bytes of a statement. Values are parameters, so statements are short.
const STATEMENT_BYTES: usize = 64 * 1024;
/// The most parameters that SQLite accepts in one statement; PostgreSQL and MySQL accept twice as many.
pub const MAX_BINDS: usize = 32_766;
/// The prefix of the controller's own tables.
pub const OWN_PREFIX: &str = "kubewitness_";
/// The prefix of the journal's tables on a server. The journal may be in the schema that was granted. Columns
/// and aliases may not have it either: the tree does not tell all names of tables from others, such as those
/// after `REFERENCES` and `RENAME TO`.
const JOURNAL_PREFIX: &str = "kw_";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatementPurpose {
    Execute,
    Query,
}

/// One statement that may be run.
#[derive(Debug)]
pub struct GuardedStatement<'a> {
    /// Without a closing semicolon.
    pub text: &'a str,
    /// The number of its parameters.
    pub arity: usize,
    tokens: Vec<SqlToken<'a>>,
    /// The offset of `text` in the statement that was sent; the positions of tokens count from there.
    lead: usize,
}

/// `INSERT … VALUES (?, ?) …`, split so that the tuple can be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowInsert<'a> {
    pub head: &'a str,
    pub tuple: &'a str,
    pub tail: &'a str,
}

pub fn invalid_statement<T>(message: impl Into<String>) -> Result<T, GrantError> {
    Err(GrantError::Invalid(message.into()))
}

/// Refuses a statement that is too long, or has characters at which a database stops reading.
fn check_text(statement: &str) -> Result<(), GrantError> {
    if statement.len() > STATEMENT_BYTES {
        return Err(GrantError::TooLarge(format!("a statement has at most {STATEMENT_BYTES} bytes")));
    }
    // SQLite stops at a NUL and skips a byte-order mark, so it would read another text than the one that was
    // checked.
    if statement.contains(['\0', '\u{feff}']) {
        return invalid_statement("a statement has no NUL and no byte-order mark");
    }
    Ok(())
}

/// Checks a rendered statement. It has no comments.
pub fn check(
    statement: &str,
    purpose: StatementPurpose,
    dialect: SqlDialect,
) -> Result<GuardedStatement<'_>, GrantError> {
    check_text(statement)?;
    if statement.to_ascii_lowercase().contains(OWN_PREFIX) {
        return invalid_statement(format!("names that begin with {OWN_PREFIX} are the controller's own"));
    }
    let mut tokens = tokenize_statement(statement, dialect)?;
    let mut end = statement.len();
    while let Some(last) = tokens.last().filter(|last| last.is_symbol(b';')) {
        end = last.at;
        tokens.pop();
    }
    if tokens.iter().any(|token| token.is_symbol(b';')) {
        return invalid_statement("send one statement at a time");
    }
    let rules = rules::rules_of(dialect);
    check_beginning(&tokens, purpose, rules)?;
    for (index, token) in tokens.iter().enumerate() {
        check_word(token, tokens.get(index + 1), rules)?;
    }
    if dialect != SqlDialect::Sqlite {
        names::check(&tokens)?;
    }
    let arity = count_parameters(&tokens)?;
    let lead = statement.len() - statement.trim_start().len();
    Ok(GuardedStatement { text: statement[..end].trim(), arity, tokens, lead })
}

fn check_beginning(
    tokens: &[SqlToken<'_>],
    purpose: StatementPurpose,
    rules: &GuardRules,
) -> Result<(), GrantError> {
    let allowed = if purpose == StatementPurpose::Execute { rules.executed } else { rules.queried };
    let Some(first) = tokens.first() else { return invalid_statement("the statement is empty") };
    if !first.is_any(allowed) {
        return invalid_statement(format!("a statement here begins with one of {}", allowed.join(", ")));
    }
    if rules.made.is_empty() || !first.is_any(&["CREATE", "DROP", "ALTER"]) {
        return Ok(());
    }
    let makes = |kind: &&str| {
        let mut words = kind.split(' ').zip(&tokens[1..]);
        tokens.len() > kind.split(' ').count() && words.all(|(word, token)| token.is_word(word))
    };
    if !rules.made.iter().any(makes) {
        return invalid_statement(format!(
            "{} is for one of {}",
            first.text.to_uppercase(),
            rules.made.join(", ")
        ));
    }
    Ok(())
}

fn check_word(
    token: &SqlToken<'_>,
    next: Option<&SqlToken<'_>>,
    rules: &GuardRules,
) -> Result<(), GrantError> {
    // Other tokens name nothing, and a statement may have a thousand of them.
    if !matches!(token.kind, TokenKind::Word | TokenKind::Quoted) {
        return Ok(());
    }
    if let Some(word) = rules.words.iter().find(|word| token.is_word(word)) {
        return invalid_statement(format!(
            "{word} is refused: the controller keeps the transaction and the engine's settings"
        ));
    }
    let name = token.name();
    let begins =
        |prefix: &&&str| name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
    let names = rules.strings_name || !token.text.starts_with('\'');
    if let Some(prefix) = rules.prefixes.iter().find(begins).filter(|_| names) {
        if *prefix == JOURNAL_PREFIX {
            return refuse_journal_name(name);
        }
        return invalid_statement(format!("names that begin with {prefix} are refused"));
    }
    if names && rules.looks_up(name) {
        return invalid_statement(format!(
            "{name} is refused: its values name tables, functions or roles of any schema"
        ));
    }
    let schema = next.is_some_and(|next| next.is_symbol(b'.'));
    if let Some(own) = rules.schemas.iter().find(|own| schema && name.eq_ignore_ascii_case(own)) {
        return invalid_statement(format!("the schema {own} is not part of what was granted"));
    }
    Ok(())
}

fn refuse_journal_name(name: &str) -> Result<(), GrantError> {
    invalid_statement(format!(
        "`{name}`: names that begin with {JOURNAL_PREFIX} are the journal's own on a server: choose another name"
    ))
}

/// Refuses a name of the journal. Journals in SQLite have a file of their own, so there the prefix is free.
pub fn check_journal_name(name: &str, dialect: SqlDialect) -> Result<(), GrantError> {
    let start = name.get(..JOURNAL_PREFIX.len());
    match dialect {
        SqlDialect::Postgres | SqlDialect::Mysql
            if start.is_some_and(|start| start.eq_ignore_ascii_case(JOURNAL_PREFIX)) =>
        {
            refuse_journal_name(name)
        }
        _ => Ok(()),
    }
}

/// Counts the parameters. A database would read a missing parameter as NULL.
fn count_parameters(tokens: &[SqlToken<'_>]) -> Result<usize, GrantError> {
    let mut plain = 0;
    let mut highest = 0;
    for token in tokens {
        match token.kind {
            TokenKind::Parameter(None) => plain += 1,
            TokenKind::Parameter(Some(number)) => highest = highest.max(number),
            TokenKind::Word | TokenKind::Quoted | TokenKind::Number | TokenKind::Symbol(_) => {}
        }
    }
    if plain > 0 && highest > 0 {
        return invalid_statement("use either `?` or numbered parameters, not both");
    }
    let arity = plain.max(highest);
    if arity > MAX_BINDS {
        return invalid_statement(format!("a statement takes at most {} parameters", MAX_BINDS));
    }
    Ok(arity)
}

impl<'a> GuardedStatement<'a> {
    /// Whether it is plainly a query. A `WITH` is not examined: it may write.
    pub fn reads_only(&self) -> bool {
        self.tokens.first().is_some_and(|first| first.is_word("SELECT") || first.is_word("VALUES"))
    }

    /// The least access that it needs. A word that writes counts anywhere, also below a `WITH` and as an
    /// unquoted name.
    pub fn least_access(&self) -> SqlAccess {
        if self.changes_schema() {
            return SqlAccess::Schema;
        }
        let called = |at: usize| self.tokens.get(at + 1).is_some_and(|next| next.is_symbol(b'('));
        let writes = |(at, token): (usize, &SqlToken<'_>)| {
            // A function's name may also be in quotes.
            token.is_any(&["INSERT", "UPDATE", "DELETE", "MERGE"])
                || token.is_word("REPLACE") && !called(at)
                || token.is_word("FOR") && self.tokens.get(at + 1).is_some_and(|next| next.is_word("SHARE"))
                || token.is_word("NEXT") && self.tokens.get(at + 1).is_some_and(|next| next.is_word("VALUE"))
        };
        if self.tokens.iter().enumerate().any(writes) { SqlAccess::Write } else { SqlAccess::Read }
    }

    /// Whether it plainly only adds rows or columns, or creates a table or a view, so that it removes no row.
    pub fn only_adds(&self) -> bool {
        let begins = |words: &[&str]| {
            self.tokens.len() >= words.len()
                && words.iter().zip(&self.tokens).all(|(word, token)| token.is_word(word))
        };
        // A view has no rows of its own.
        let views = [["CREATE", "VIEW"].as_slice(), &["CREATE", "OR", "REPLACE", "VIEW"], &["DROP", "VIEW"]];
        if views.into_iter().any(begins) {
            return true;
        }
        let takes = ["REPLACE", "UPDATE", "DELETE", "TRIGGER"];
        let adds = [["INSERT", "INTO"], ["CREATE", "TABLE"], ["CREATE", "INDEX"]];
        if adds.iter().any(|words| begins(words)) {
            return !self.tokens.iter().any(|token| token.is_any(&takes));
        }
        let adds_column = |pair: &[SqlToken<'_>]| pair[0].is_word("ADD") && pair[1].is_word("COLUMN");
        // One statement may have several changes, and MySQL may move all rows to another engine.
        let does_more = |token: &SqlToken<'_>| token.is_symbol(b',') || token.is_any(&["DROP", "ENGINE"]);
        begins(&["ALTER", "TABLE"])
            && self.tokens.windows(2).any(adds_column)
            && !self.tokens.iter().any(does_more)
    }

    /// Whether it creates, changes or removes tables, indexes or views.
    pub fn changes_schema(&self) -> bool {
        self.tokens.first().is_some_and(|first| first.is_any(&["CREATE", "DROP", "ALTER"]))
    }

    /// Splits an insert whose only parameters are one tuple of `?`. Many rows can then be inserted with one
    /// statement of the same meaning. `None` for any other statement.
    pub fn as_row_insert(&self) -> Option<RowInsert<'a>> {
        let tokens = &self.tokens;
        if self.arity == 0
            || !tokens.first()?.is_word("INSERT")
            || tokens.iter().any(|t| t.is_word("SELECT") || t.is_word("RETURNING"))
        {
            return None;
        }
        let values = tokens.iter().position(|token| token.is_word("VALUES"))?;
        let inside = &tokens[values + 1..];
        let width = 2 * self.arity + 1;
        let tuple = inside.get(..width)?;
        let shaped = tuple.iter().enumerate().all(|(index, token)| match index {
            0 => token.is_symbol(b'('),
            last if last == width - 1 => token.is_symbol(b')'),
            odd if odd % 2 == 1 => token.kind == TokenKind::Parameter(None),
            _ => token.is_symbol(b','),
        });
        let next = inside.get(width);
        if !shaped || next.is_some_and(|token| !token.is_word("ON")) {
            return None;
        }
        let (start, end) = (tuple[0].at, tuple[width - 1].at + 1);
        let (head, rest) = self.text.split_at_checked(start.checked_sub(self.lead)?)?;
        let (tuple, tail) = rest.split_at_checked(end - start)?;
        Some(RowInsert { head, tuple, tail })
    }
}

/// A checked statement with its parameters as PostgreSQL writes them: `?` becomes `$1`, `$2` and
/// so on, and `?7` becomes `$7`.
pub fn with_dollars(text: &str) -> Result<String, GrantError> {
    let mut out = String::with_capacity(text.len() + 64);
    let (mut from, mut plain) = (0, 0);
    for token in tokenize_statement(text, SqlDialect::Postgres)? {
        let TokenKind::Parameter(number) = token.kind else { continue };
        plain += 1;
        out.push_str(&text[from..token.at]);
        out.push('$');
        out.push_str(&number.unwrap_or(plain).to_string());
        from = token.at + token.text.len();
    }
    out.push_str(&text[from..]);
    Ok(out)
}

#[cfg(test)]
mod tests;
