//! `kubewitness dashboard`: opens the portal in a browser of this machine, signed in as whoever has the token.

use std::ffi::OsString;
use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use kubewitness_core::views::LoginView;
use reqwest::Url;
use serde_json::json;
use tokio::process::Command;
use tokio::time::timeout;

use super::client::Client;
use crate::cli::DashboardArgs;
use crate::commands::reach::SHOW_A_TOKEN;
use crate::commands::{End, Ended, print};

/// What starts a browser says within this time that it can't; one that goes on is the browser itself.
const STARTS: Duration = Duration::from_secs(3);

pub async fn dashboard(args: DashboardArgs) -> Ended {
    let client = Client::reach(&args.reach).await?;
    let reached = client.reached();
    let login = match &reached.token {
        Some(_) => Some(login(&client).await?),
        None => None,
    };
    let url = match &login {
        Some(login) if !login.code.is_empty() => once(&reached.url, &login.code)?,
        _ => reached.url.clone(),
    };
    print::text(&format!("{url}\n"))?;
    match &login {
        Some(login) if !login.code.is_empty() => {
            eprintln!("This address signs you in once, within {} s.", login.good_for_seconds);
        }
        Some(_) => {}
        None => eprintln!("Where the page asks for a token, `{SHOW_A_TOKEN}` prints one."),
    }
    if reached.is_forwarded && url.scheme() == "https" {
        eprintln!(
            "Your browser warns of the certificate: it names the portal's own host, and not 127.0.0.1."
        );
    }
    if !args.no_open {
        open(&url).await;
    }
    if !reached.is_forwarded {
        return Ok(End::Fine);
    }
    eprintln!("The page is there until Ctrl-C.");
    std::future::pending().await
}

async fn login(client: &Client) -> Result<LoginView> {
    client.post("api/v1/login", &json!({})).await
}

fn once(portal: &Url, code: &str) -> Result<Url> {
    let mut url = portal.join("login/once").with_context(|| format!("making an address of {portal}"))?;
    url.query_pairs_mut().append_pair("code", code);
    Ok(url)
}

/// Without a browser, the address that was printed is all that a person needs.
async fn open(url: &Url) {
    let Some(opener) = opener(|name| std::env::var_os(name)) else { return };
    match start(&opener, url).await {
        Ok(None) => {}
        Ok(Some(status)) if status.success() => {}
        Ok(Some(status)) => {
            eprintln!("{} ended with {status}: open the address yourself.", opener.to_string_lossy());
        }
        Err(error) => eprintln!("{}: {error}: open the address yourself.", opener.to_string_lossy()),
    }
}

/// What opens a browser: the program that `BROWSER` names, or the usual one of a machine with a screen.
fn opener(variable: impl Fn(&str) -> Option<OsString>) -> Option<OsString> {
    let is_set = |name: &str| variable(name).is_some_and(|value| !value.is_empty());
    if is_set("BROWSER") {
        return variable("BROWSER");
    }
    if cfg!(target_os = "macos") {
        return Some("open".into());
    }
    (is_set("WAYLAND_DISPLAY") || is_set("DISPLAY")).then(|| "xdg-open".into())
}

/// `None`: it goes on.
async fn start(opener: &OsString, url: &Url) -> io::Result<Option<ExitStatus>> {
    let mut command = Command::new(opener);
    // The token is for this command alone.
    command.arg(url.as_str()).env_remove("KUBEWITNESS_TOKEN");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut browser = command.spawn()?;
    match timeout(STARTS, browser.wait()).await {
        Ok(ended) => ended.map(Some),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_browser_is_opened_where_there_is_one() {
        let of = |set: &'static [(&str, &str)]| {
            let set = set.to_vec();
            opener(move |name| set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()))
        };
        assert_eq!(of(&[("BROWSER", "firefox"), ("DISPLAY", ":0")]), Some("firefox".into()));
        if cfg!(target_os = "linux") {
            assert_eq!(of(&[("BROWSER", ""), ("DISPLAY", ":0")]), Some("xdg-open".into()));
            assert_eq!(of(&[("WAYLAND_DISPLAY", "wayland-0")]), Some("xdg-open".into()));
            assert_eq!(of(&[("DISPLAY", "")]), None);
        }
    }

    #[test]
    fn the_address_of_a_login_has_the_code_and_keeps_the_path_of_the_portal() {
        for (portal, login) in [
            ("http://127.0.0.1:8787/", "http://127.0.0.1:8787/login/once?code=a-b_c"),
            ("https://kw.example.com/kw/", "https://kw.example.com/kw/login/once?code=a-b_c"),
        ] {
            assert_eq!(once(&portal.parse().unwrap(), "a-b_c").unwrap().as_str(), login);
        }
    }
}
