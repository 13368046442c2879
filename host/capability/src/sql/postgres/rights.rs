//! The rights of a PostgreSQL user that no plugin needs.

use sqlx::{PgConnection, Row};

use crate::sql::servers::rights::{ExcessRights, LESSER, NAMED};

/// The query for a user's excess rights. For a superuser it reports only that everything is allowed.
const EXCESS: &str = "WITH me AS (SELECT * FROM pg_roles WHERE rolname = current_user), \
    other AS (SELECT n.oid, quote_ident(n.nspname) AS name FROM pg_namespace n \
        WHERE n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema' \
        AND n.nspname IS DISTINCT FROM current_schema()), \
    tables AS (SELECT c.relname, c.relnamespace FROM pg_class c WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') \
        AND has_schema_privilege(c.relnamespace, 'USAGE') \
        AND has_table_privilege(c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE')), \
    found AS ( \
        SELECT 1 AS place, 'is a superuser' AS told FROM me WHERE rolsuper \
        UNION ALL SELECT 2, 'may make databases' FROM me WHERE rolcreatedb AND NOT rolsuper \
        UNION ALL SELECT 3, 'may make roles' FROM me WHERE rolcreaterole AND NOT rolsuper \
        UNION ALL SELECT 4, 'may copy the whole server' FROM me WHERE rolreplication AND NOT rolsuper \
        UNION ALL SELECT 5, 'passes the security of rows' FROM me WHERE rolbypassrls AND NOT rolsuper \
        UNION ALL SELECT 6, 'has the role ' || quote_ident(r.rolname) FROM me, pg_roles r \
            WHERE NOT me.rolsuper AND r.oid <> me.oid AND pg_has_role(me.oid, r.oid, 'MEMBER') \
            AND (r.rolsuper OR r.rolcreatedb OR r.rolcreaterole OR r.rolreplication OR r.rolbypassrls \
                OR r.rolname LIKE 'pg\\_%' AND r.rolname <> 'pg_database_owner') \
        UNION ALL SELECT 7, 'owns the database ' || quote_ident(d.datname) FROM me, pg_database d \
            WHERE NOT me.rolsuper AND d.datname = current_database() AND d.datdba = me.oid \
        UNION ALL SELECT 8, 'may make schemas' FROM me, pg_database d \
            WHERE NOT me.rolsuper AND d.datname = current_database() AND d.datdba <> me.oid \
            AND has_database_privilege(d.oid, 'CREATE') \
        UNION ALL SELECT 9, 'may make tables in the schema ' || other.name FROM me, other \
            WHERE NOT me.rolsuper AND has_schema_privilege(other.oid, 'CREATE') \
        UNION ALL SELECT 10, 'may use tables of the schema ' || other.name FROM me, other \
            WHERE NOT me.rolsuper AND EXISTS (SELECT FROM tables t WHERE t.relnamespace = other.oid) \
        UNION ALL SELECT 11, 'may use the journal of a controller in the schema ' || quote_ident(n.nspname) \
            FROM tables t JOIN pg_namespace n ON n.oid = t.relnamespace WHERE t.relname = 'kw_states' \
    ) SELECT current_user::text, quote_ident(current_database()), quote_ident(coalesce(current_schema(), 'public')), \
        ARRAY(SELECT told FROM found ORDER BY place, told LIMIT $1)";
/// The journal's own tables keep their owner.
const TABLES: &str = "SELECT quote_ident(c.relname) FROM pg_class c \
    WHERE c.relnamespace = to_regnamespace($1) AND c.relkind IN ('r', 'p', 'v', 'm') \
    AND c.relname NOT LIKE 'kw\\_%' AND pg_get_userbyid(c.relowner) = current_user ORDER BY c.relname LIMIT $2";

pub async fn excess_rights(connection: &mut PgConnection) -> Result<ExcessRights, sqlx::Error> {
    let row = sqlx::query(EXCESS).bind(NAMED as i64).fetch_one(&mut *connection).await?;
    let (user, database, schema): (String, String, String) =
        (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    let rights: Vec<String> = row.try_get(3)?;
    if rights.is_empty() {
        return Ok(ExcessRights { user, ..ExcessRights::default() });
    }
    let tables: Vec<String> =
        sqlx::query_scalar(TABLES).bind(&schema).bind(NAMED as i64).fetch_all(connection).await?;
    let mut remedy = vec![
        format!("CREATE ROLE {LESSER} LOGIN PASSWORD 'choose a password';"),
        format!("GRANT CONNECT ON DATABASE {database} TO {LESSER};"),
        format!("GRANT USAGE, CREATE ON SCHEMA {schema} TO {LESSER};"),
    ];
    remedy.extend(tables.iter().map(|table| format!("ALTER TABLE {schema}.{table} OWNER TO {LESSER};")));
    Ok(ExcessRights { user, rights, remedy })
}
