//! `kubewitness dashboard`: the address of the portal for a browser of this machine, and the way to it.

use crate::cli::ReachArgs;
use crate::commands::{End, Ended, print};

use super::{SHOW_A_TOKEN, controller};

pub async fn dashboard(args: ReachArgs) -> Ended {
    let reached = controller(&args).await?;
    print::text(&format!("{}\n", reached.url))?;
    eprintln!("Where the page asks for a token, `{SHOW_A_TOKEN}` prints one.");
    if !reached.is_forwarded {
        return Ok(End::Fine);
    }
    if reached.url.scheme() == "https" {
        eprintln!(
            "Your browser warns of the certificate: it names the portal's own host, and not 127.0.0.1."
        );
    }
    eprintln!("The page is there until Ctrl-C.");
    std::future::pending().await
}
