//! Finds rights of a granted database's user that no plugin needs, by asking the database's server.

use std::time::Duration;

use kubewitness_core::address;
use kubewitness_core::config::{DatabaseKind, DatabaseSpec, ServerSpec};

use crate::secrets;
use crate::sql::mysql::MysqlLink;
use crate::sql::postgres::PostgresLink;
use crate::sql::servers::reasons::ServerFailure;
use crate::sql::servers::rights::ExcessRights;
use crate::sql::servers::{PATIENCE, ServerLink};

/// The time limit for connecting and a few small queries.
const WITHIN: Duration = PATIENCE.answer;

/// The excess rights of the user of a granted database. `None` for a file, whose rights are those of the
/// process.
pub async fn excess_rights(spec: &DatabaseSpec) -> Result<Option<ExcessRights>, ServerFailure> {
    let looked = async {
        match spec.only_kind() {
            Some(DatabaseKind::Postgres(server)) => {
                find_excess_rights::<PostgresLink>(server).await.map(Some)
            }
            Some(DatabaseKind::Mysql(server)) => find_excess_rights::<MysqlLink>(server).await.map(Some),
            Some(DatabaseKind::Sqlite(_)) | None => Ok(None),
        }
    };
    tokio::time::timeout(WITHIN, looked).await.map_err(|_| ServerFailure::Silent(WITHIN))?
}

async fn find_excess_rights<L: ServerLink>(spec: &ServerSpec) -> Result<ExcessRights, ServerFailure> {
    let url = secrets::resolve_secret(&spec.url_from).await?;
    let options = L::parse_options(url.expose_secret())?;
    address::expect_files(url.expose_secret()).await?;
    let mut link = L::connect_link(&options).await.map_err(|error| L::classify_connect_error(&error))?;
    link.excess_rights().await.map_err(|error| L::classify_connect_error(&error))
}
