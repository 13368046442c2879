//! `kubewitness dashboard`: opens the portal in a browser of this machine, signed in as the owner of the
//! token.
//!
//! Other users of the machine see a browser's command line, so the sign-in code may not be part of the
//! address. The browser opens a file that they can't read, and the file contains the code.

use std::ffi::{OsStr, OsString};
use std::fs::{OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use kubewitness_core::views::LoginView;
use reqwest::Url;
use serde_json::json;
use tempfile::TempDir;
use tokio::process::Command;
use tokio::time::timeout;

use super::super::client::{ApiClient, RefusedRequest};
use crate::cli::DashboardArgs;
use crate::commands::print::{self, note};
use crate::commands::reach::SHOW_A_TOKEN;
use crate::commands::{CommandEnd, CommandResult};
use crate::process::signals;

/// A program that can't open a browser fails within this time. One that keeps running is the browser itself.
const STARTS: Duration = Duration::from_secs(3);
/// A browser that had to start has read the file by then.
const READS: Duration = Duration::from_secs(20);

pub async fn run_dashboard(args: DashboardArgs) -> CommandResult {
    let client = ApiClient::reach_controller(&args.reach).await?;
    let (portal, has_token, is_forwarded) =
        client.with_reached(|reached| (reached.url.clone(), reached.token.is_some(), reached.is_forwarded));
    let withheld = args.reach.token.is_some() && !has_token;
    // The code is empty if nobody signs in there.
    let login = match has_token {
        true => Some(one_time_login(&client).await?).filter(|login| !login.code.is_empty()),
        // An address that does not answer is not opened.
        false => match client.fetch_bytes("login").await {
            Err(error) if !error.is::<RefusedRequest>() => return Err(error),
            _ => None,
        },
    };
    let url = match &login {
        Some(login) => login_once_address(&portal, Some(&login.code))?,
        None => portal.clone(),
    };
    print::text(&format!("{url}\n"))?;
    match &login {
        Some(login) => {
            note!("This address signs you in once, within {} s.", login.good_for_seconds);
        }
        None if has_token => {}
        None if withheld => note!("{}", client.with_reached(|reached| reached.to_sign_in.clone())),
        None => note!("Where the page asks for a token, `{SHOW_A_TOKEN}` prints one."),
    }
    if is_forwarded && url.scheme() == "https" {
        note!("Your browser warns of the certificate: it names the portal's own host, and not 127.0.0.1.");
    }
    if is_forwarded {
        note!("The page is there until Ctrl-C.");
    }
    let shown = async {
        if let Some(opener) = browser_opener(|name| std::env::var_os(name)).filter(|_| !args.no_open) {
            match &login {
                Some(login) => open_signed_in(&opener, &portal, &login.code).await?,
                None => {
                    open(&opener, &portal).await;
                }
            }
        }
        if is_forwarded {
            std::future::pending::<()>().await;
        }
        anyhow::Ok(())
    };
    // However this command ends, the file with the code is removed.
    tokio::select! {
        shown = shown => shown?,
        ended = signals::asked_to_end() => ended?,
    }
    Ok(CommandEnd::Fine)
}

async fn one_time_login(client: &ApiClient) -> Result<LoginView> {
    client.post_json("api/v1/login", &json!({})).await
}

fn login_once_address(portal: &Url, code: Option<&str>) -> Result<Url> {
    let mut url = portal.join("login/once").with_context(|| format!("making an address of {portal}"))?;
    if let Some(code) = code {
        url.query_pairs_mut().append_pair("code", code);
    }
    Ok(url)
}

/// The file stays until the browser has had time to read it.
async fn open_signed_in(opener: &OsStr, portal: &Url, code: &str) -> Result<()> {
    let folder = private_folder().context("making a private folder for the page that signs you in")?;
    let file = folder.path().join("sign-in.html");
    write_private(&file, &login_page(&login_once_address(portal, None)?, code))
        .with_context(|| format!("writing {}", file.display()))?;
    let Ok(address) = Url::from_file_path(&file) else {
        anyhow::bail!("{} is no absolute path: set TMPDIR to one, or give --no-open", file.display());
    };
    if open(opener, &address).await {
        tokio::time::sleep(READS).await;
    }
    let path = folder.path().to_owned();
    folder.close().with_context(|| format!("removing {}", path.display()))
}

fn private_folder() -> io::Result<TempDir> {
    tempfile::Builder::new().prefix("kubewitness-").permissions(Permissions::from_mode(0o700)).tempdir()
}

fn write_private(file: &Path, text: &str) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?.write_all(text.as_bytes())
}

/// A page that posts the code. The code comes from the server, and the page is opened as a file of this
/// machine: neither the code nor the address may inject HTML.
fn login_page(once: &Url, code: &str) -> String {
    let (action, code) = (escaped_html(once.as_str()), escaped_html(code));
    format!(
        "<!doctype html>\n<meta charset=\"utf-8\">\n<meta name=\"referrer\" content=\"no-referrer\">\n\
         <title>Kubewitness</title>\n<form method=\"post\" action=\"{action}\">\n\
         <input type=\"hidden\" name=\"code\" value=\"{code}\">\n\
         <button>Open Kubewitness</button>\n</form>\n<script>document.forms[0].submit()</script>\n"
    )
}

fn escaped_html(text: &str) -> String {
    let with = [('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&quot;"), ('\'', "&#39;")];
    with.iter().fold(text.to_owned(), |text, (sign, escape)| text.replace(*sign, escape))
}

/// Whether a browser was started. If not, the printed address is all that a person needs.
async fn open(opener: &OsStr, address: &Url) -> bool {
    let why = match start(opener, address).await {
        Ok(None) => return true,
        Ok(Some(status)) if status.success() => return true,
        Ok(Some(status)) => format!("it ended with {status}"),
        Err(error) => error.to_string(),
    };
    note!("{} opens no browser ({why}): open the printed address yourself.", opener.to_string_lossy());
    false
}

/// The program that opens a browser: the one in `BROWSER`, or the usual one of a machine with a screen.
fn browser_opener(variable: impl Fn(&str) -> Option<OsString>) -> Option<OsString> {
    let is_set = |name: &str| variable(name).is_some_and(|value| !value.is_empty());
    if is_set("BROWSER") {
        return variable("BROWSER");
    }
    if cfg!(target_os = "macos") {
        return Some("open".into());
    }
    (is_set("WAYLAND_DISPLAY") || is_set("DISPLAY")).then(|| "xdg-open".into())
}

/// `None` if it keeps running.
async fn start(opener: &OsStr, address: &Url) -> io::Result<Option<ExitStatus>> {
    let mut command = Command::new(opener);
    // The token is for this command alone.
    command.arg(address.as_str()).env_remove("KUBEWITNESS_TOKEN");
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
            browser_opener(move |name| {
                set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
            })
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
            assert_eq!(login_once_address(&portal.parse().unwrap(), Some("a-b_c")).unwrap().as_str(), login);
        }
    }

    #[test]
    fn the_page_that_signs_in_is_for_its_owner_alone_and_its_address_has_no_code() {
        let folder = private_folder().unwrap();
        let file = folder.path().join("page.html");
        let address = login_once_address(&"http://127.0.0.1:1/a&b/".parse().unwrap(), None).unwrap();
        write_private(&file, &login_page(&address, "the-code")).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(folder.path()), mode(&file)), (0o700, 0o600));
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains(r#"action="http://127.0.0.1:1/a&amp;b/login/once""#), "{text}");
        assert!(text.contains(r#"name="code" value="the-code""#), "{text}");
        assert!(write_private(&file, "").is_err(), "no file that is there is taken");
    }

    #[test]
    fn a_code_that_a_server_made_up_brings_no_html() {
        let address = login_once_address(&"http://127.0.0.1:1/".parse().unwrap(), None).unwrap();
        let text = login_page(&address, "\"><script src='//x'></script>&");
        assert!(
            text.contains("value=\"&quot;&gt;&lt;script src=&#39;//x&#39;&gt;&lt;/script&gt;&amp;\">"),
            "{text}"
        );
    }
}
