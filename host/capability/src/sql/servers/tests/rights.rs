//! Tests of the rights of an address's user on real servers, and of the user with fewer rights whom the
//! statements create.

use kubewitness_core::config::DatabaseSpec;

use super::*;
use crate::grants::excess_rights;
use crate::sql::servers::rights::{ExcessRights, LESSER};

impl ServerWorld {
    async fn excess(&self, url: &str) -> ExcessRights {
        self.point_to(url);
        let path = self.folder.path().join("url").to_string_lossy().into_owned();
        let spec = ServerSpec { url_from: SecretRef::File(path), connections: 1 };
        let name = "granted".to_owned();
        let spec = match self.server.service() {
            SqlService::Postgres => DatabaseSpec { name, sqlite: None, postgres: Some(spec), mysql: None },
            SqlService::MariaDb | SqlService::MySql => {
                DatabaseSpec { name, sqlite: None, postgres: None, mysql: Some(spec) }
            }
        };
        excess_rights(&spec).await.unwrap().unwrap()
    }

    /// Creates the user with fewer rights by the statements, under a name for this test. Returns the name and
    /// the address.
    fn make_lesser(&self, rights: &ExcessRights) -> (String, String) {
        let name = format!("lesser_{}", self.database());
        let name = name[name.len().saturating_sub(30)..].to_owned();
        for statement in &rights.remedy {
            let statement = statement.replace(LESSER, &name).replace("choose a password", PASSWORD);
            self.run(&statement);
        }
        let (scheme, rest) = self.url.split_once("://").unwrap();
        let (_, place) = rest.split_once('@').unwrap();
        (name.clone(), format!("{scheme}://{name}:{PASSWORD}@{place}"))
    }
}

/// Plugins work with this user, who may do nothing else.
async fn the_statements_make_a_user_who_may_do_what_plugins_need_and_no_more(
    service: SqlService,
    test: &str,
) -> Option<(ServerWorld, String, String)> {
    let world = ServerWorld::on_shared(service, test)?;
    let admin = world.excess(&world.url).await;
    let report = admin.text().expect("an administrator may do more");
    assert!(!report.contains(PASSWORD) && report.contains(LESSER), "{report}");
    let (name, url) = world.make_lesser(&admin);
    let lesser = world.excess(&url).await;
    assert_eq!((lesser.rights, lesser.remedy), (vec![], vec![]));
    let engine = world.engine(PATIENCE);
    assert_eq!(receipts(&engine).await, []);
    written(&engine, 1).await.commit_with_receipt(&receipt(1)).await.unwrap();
    assert_eq!(world.rows(), 1);
    Some((world, name, url))
}

#[tokio::test]
async fn postgres_tells_what_a_user_may_do_beyond_the_need() {
    let test = "rights::postgres_tells_what_a_user_may_do_beyond_the_need";
    let made =
        the_statements_make_a_user_who_may_do_what_plugins_need_and_no_more(SqlService::Postgres, test);
    let Some((world, name, url)) = made.await else { return };
    world.run("CREATE SCHEMA other; CREATE TABLE other.secrets (k int); CREATE SCHEMA journal");
    world.run("CREATE TABLE journal.kw_states (seq bigint)");
    assert_eq!(world.excess(&url).await.rights, [""; 0], "that they are there is no right");
    world.run(&format!(
        "ALTER ROLE {name} CREATEDB; GRANT pg_read_server_files TO {name}; GRANT USAGE ON SCHEMA other, journal TO {name}; \
         GRANT SELECT ON other.secrets TO {name}; GRANT DELETE ON journal.kw_states TO {name}; \
         GRANT CREATE ON DATABASE {} TO {name}",
        world.database()
    ));
    let found = world.excess(&url).await;
    assert_eq!(
        found.rights,
        [
            "may make databases",
            "has the role pg_read_server_files",
            "may make schemas",
            "may use tables of the schema journal",
            "may use tables of the schema other",
            "may use the journal of a controller in the schema journal",
        ]
    );
    assert_eq!(found.user, name);
    world.run(&format!("ALTER ROLE {name} SUPERUSER"));
    assert_eq!(world.excess(&url).await.rights[0], "is a superuser");
    // Roles belong to the whole server, which other tests share.
    world.run(&format!("ALTER ROLE {name} NOSUPERUSER NOLOGIN"));
}

async fn mysql_or_mariadb(service: SqlService, test: &str) {
    let made = the_statements_make_a_user_who_may_do_what_plugins_need_and_no_more(service, test);
    let Some((world, name, url)) = made.await else { return };
    let other = database_of(&world.server.create_database().unwrap()).to_owned();
    world.run(&format!("CREATE TABLE {other}.kw_states (seq BIGINT)"));
    let role = format!("{name}r");
    world.run(&format!("CREATE ROLE {role}"));
    world.run(&format!("GRANT CREATE USER ON *.* TO {role}"));
    for right in [format!("FILE ON *.* TO '{name}'@'%'"), format!("SELECT ON {other}.* TO '{name}'@'%'")] {
        world.run(&format!("GRANT {right}"));
    }
    world.run(&format!("GRANT {role} TO '{name}'@'%'"));
    let found = world.excess(&url).await;
    let has = |text: &str| found.rights.iter().any(|right| right.contains(text));
    assert!(has("FILE on the whole server"), "{found:?}");
    // MariaDB shows a user no grants of roles that the session has not activated.
    assert!(has("CREATE USER on the whole server") || has("whose rights it can't show"), "{found:?}");
    assert!(has(&format!("may use \"{other}\".*")), "{found:?}");
    assert!(has(&format!("may use the journal of a controller in the database {other}")), "{found:?}");
    assert_eq!(found.rights.len(), 4, "{found:?}");
    world.run(&format!("DROP USER '{name}'@'%'"));
}

#[tokio::test]
async fn mysql_tells_what_a_user_may_do_beyond_the_need() {
    mysql_or_mariadb(SqlService::MySql, "rights::mysql_tells_what_a_user_may_do_beyond_the_need").await;
}

#[tokio::test]
async fn mariadb_tells_what_a_user_may_do_beyond_the_need() {
    mysql_or_mariadb(SqlService::MariaDb, "rights::mariadb_tells_what_a_user_may_do_beyond_the_need").await;
}
