//! The rights of a granted database's user that no plugin needs. The guard judges each statement, and the
//! server is the second line of defence: a user without rights on another schema can't be made to read it. So
//! excess rights are reported, with the statements that create a user with fewer rights. They are never
//! refused: an operator may have a reason.

/// The most tables and schemas that are named.
pub const NAMED: usize = 64;
/// The name of the restricted user in the statements.
pub const LESSER: &str = "kubewitness_plugins";
/// The rights of a database's user beyond those that plugins need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExcessRights {
    pub user: String,
    /// For people; each completes a sentence that begins with "the user".
    pub rights: Vec<String>,
    /// Statements that create a restricted user, for a user who may create users.
    pub remedy: Vec<String>,
}

impl ExcessRights {
    /// One text for a log or a line of a report; `None` if there are no excess rights.
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
