//! The rights of a granted database's user that no plugin needs. A guard judges each statement, and the
//! server is the second line: a user who may not read another schema can't be made to. So what is more than
//! needed is told, with the statements that make a lesser user. It is never refused: an operator may know
//! why.

/// Tables and schemas that are named at most.
pub const NAMED: usize = 64;
/// The lesser user's name in the statements.
pub const LESSER: &str = "kubewitness_plugins";
/// The rights of a database's user beyond those that plugins need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExcessRights {
    pub user: String,
    /// For people, each as it follows "the user".
    pub rights: Vec<String>,
    /// Statements that make a lesser user, for a user who may make users.
    pub remedy: Vec<String>,
}

impl ExcessRights {
    /// One text for a log or a line of a report; none where the user may do no more than needed.
    pub fn text(&self) -> Option<String> {
        if self.rights.is_empty() {
            return None;
        }
        let rights = self.rights.join(", ");
        Some(format!(
            "the user `{}` {rights}. Plugins need none of it. Make a lesser user, and put that one into the address: {}",
            self.user,
            self.remedy.join(" ")
        ))
    }
}
