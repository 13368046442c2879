//! What the user of a granted database may do that no plugin needs. A guard judges each statement, and the server
//! is the second line: a user who may not read another schema can't be made to. So what is more than needed is told,
//! with the statements that make a lesser user. It is never refused: an operator may know why.

use std::time::Duration;

use kubewitness_core::address;
use kubewitness_core::config::{DatabaseKind, DatabaseSpec, ServerSpec};

use super::{PATIENCE, ServerLink};
use crate::secrets;
use crate::sql::mysql::MysqlLink;
use crate::sql::postgres::PostgresLink;

/// Tables and schemas that are named at most.
pub const NAMED: usize = 64;
/// The lesser user's name in the statements.
pub const LESSER: &str = "kubewitness_plugins";
/// Connecting, and a few small questions.
const WITHIN: Duration = PATIENCE.answer;

/// What a database's user may do beyond what plugins need.
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

/// Looks at the user of a granted database on a server. `None` for a file, whose rights are those of the process.
pub async fn excess_rights(spec: &DatabaseSpec) -> Result<Option<ExcessRights>, String> {
    let looked = async {
        match spec.kind() {
            Some(DatabaseKind::Postgres(server)) => look::<PostgresLink>(server).await.map(Some),
            Some(DatabaseKind::Mysql(server)) => look::<MysqlLink>(server).await.map(Some),
            Some(DatabaseKind::Sqlite(_)) | None => Ok(None),
        }
    };
    let silent = || format!("it has not answered for {} s", WITHIN.as_secs());
    tokio::time::timeout(WITHIN, looked).await.map_err(|_| silent())?
}

async fn look<L: ServerLink>(spec: &ServerSpec) -> Result<ExcessRights, String> {
    let url = secrets::resolve(&spec.url_from).await?;
    let options = L::options(url.expose())?;
    address::expect_files(url.expose()).await?;
    let mut link = L::connect(&options).await.map_err(|error| L::reason(&error))?;
    link.excess().await.map_err(|error| L::reason(&error))
}
