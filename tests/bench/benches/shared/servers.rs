//! PostgreSQL, MariaDB and MySQL at settings that are durable against a loss of power, each in a temporary
//! folder of its own.

use anyhow::Result;
use kubewitness_harness::{DatabaseServer, Service};

/// As the servers are by default; the tests' servers are faster than that.
fn durable(service: Service) -> &'static [&'static str] {
    match service {
        Service::Postgres => &["-c", "fsync=on", "-c", "shared_buffers=128MB"],
        Service::MariaDb => &[
            "--innodb-flush-log-at-trx-commit=1",
            "--innodb-flush-method=O_DIRECT",
            "--innodb-buffer-pool-size=128M",
            "--innodb-log-file-size=96M",
        ],
        // Without the binary log, as MariaDB is by default.
        Service::MySql => &[
            "--innodb-flush-log-at-trx-commit=1",
            "--innodb-flush-method=O_DIRECT",
            "--innodb-buffer-pool-size=128M",
            "--innodb-redo-log-capacity=100M",
        ],
    }
}

/// `None` where it is not installed, which is said.
pub fn start(service: Service) -> Result<Option<DatabaseServer>> {
    let server = DatabaseServer::start(service, durable(service))?;
    if server.is_none() {
        println!("  {service} skipped: it is not installed");
    }
    Ok(server)
}
