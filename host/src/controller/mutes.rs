//! Keeps what people have muted, and shows it to plugins. A journal on a server keeps the list, so that it is the same on
//! every replica; beside a journal in a file it is a file of the data folder.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kubewitness_capability::Told;
use kubewitness_core::files;
use kubewitness_core::mutes::{self, MuteView};
use kubewitness_journal::Journal;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// Of the text that replicas share, and of the file.
const NAME: &str = "mutes";
/// As many as there may be, with room for the longest texts.
const BYTES: u64 = 4 << 20;
/// A mute holds on every replica after so long, and the time to ask the database.
const EVERY: Duration = Duration::from_secs(2);
/// Each fails only where another replica was quicker.
const ATTEMPTS: usize = 8;

pub struct Mutes {
    journal: Journal,
    file: PathBuf,
    told: Told,
    /// Who holds it writes the file.
    writing: tokio::sync::Mutex<()>,
}

impl Mutes {
    pub fn new(journal: Journal, data: &std::path::Path, told: Told) -> Self {
        Self { journal, file: data.join(NAME), told, writing: tokio::sync::Mutex::default() }
    }

    /// The list, oldest first.
    pub async fn all(&self) -> Result<Vec<MuteView>> {
        parse(&self.text().await?)
    }

    /// Durable once this returns. False where it was so already.
    pub async fn change(&self, mute: &MuteView, is_muted: bool) -> Result<bool> {
        let _turn = self.writing.lock().await;
        for _ in 0..ATTEMPTS {
            let before = self.text().await?;
            let Some(all) = mutes::changed(parse(&before)?, mute, is_muted) else { return Ok(false) };
            let text = serde_json::to_string(&all).context("writing the mutes")?;
            if self.write(&before, &text).await? {
                self.told.set(text.into_bytes());
                let MuteView { object, namespace, to, who, .. } = mute;
                let what = if is_muted { "muted" } else { "unmuted" };
                info!(object, namespace, to, who, "a person {what} messages");
                return Ok(true);
            }
        }
        bail!("other replicas change the mutes all the time: try again")
    }

    /// Shows plugins what there is, and what other replicas add.
    pub async fn follow(&self, stop: CancellationToken) -> Result<()> {
        let mut is_told = false;
        loop {
            match self.tell().await {
                Ok(()) => is_told = false,
                Err(error) if !is_told => {
                    is_told = true;
                    warn!("what people have muted can't be read, and what was read before holds: {error:#}");
                }
                Err(_) => {}
            }
            // Nobody else writes the file.
            let is_over = !self.journal.is_on_a_server() && !is_told;
            if is_over || stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_none() {
                return Ok(());
            }
        }
    }

    async fn tell(&self) -> Result<()> {
        let _turn = self.writing.lock().await;
        let text = self.text().await?;
        parse(&text)?;
        self.told.set(text.into_bytes());
        Ok(())
    }

    async fn text(&self) -> Result<String> {
        if self.journal.is_on_a_server() {
            return Ok(self.journal.shared_text(NAME).await?);
        }
        let path = self.file.clone();
        let read = files::within(&self.file, files::ANSWER, move || match files::look(&path)? {
            Some(_) => files::text(&path, BYTES),
            None => Ok(String::new()),
        });
        read.await.with_context(|| format!("reading {}", self.file.display()))
    }

    async fn write(&self, before: &str, text: &str) -> Result<bool> {
        if self.journal.is_on_a_server() {
            return Ok(self.journal.change_shared_text(NAME, before, text).await?);
        }
        let (path, text) = (self.file.clone(), text.to_owned());
        let write = move || files::replace(&path, text.as_bytes(), 0o600);
        let written = files::within(&self.file, files::ANSWER, write).await;
        written.with_context(|| format!("writing {}", self.file.display()))?;
        Ok(true)
    }
}

fn parse(text: &str) -> Result<Vec<MuteView>> {
    match text {
        "" => Ok(Vec::new()),
        text => serde_json::from_str(text)
            .context("the mutes are no list: remove the file `mutes` of the data folder"),
    }
}

#[cfg(test)]
mod tests {
    use kubewitness_journal::JournalOptions;

    use super::*;

    #[tokio::test]
    async fn a_mute_is_read_by_plugins_at_once_and_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let journal =
            Journal::open(&folder.path().join("journal.db"), JournalOptions::default()).await.unwrap();
        let told = Told::default();
        let mutes = Mutes::new(journal.clone(), folder.path(), told.clone());
        let mute = MuteView { namespace: "vision".into(), who: "ada".into(), ..MuteView::default() };
        assert!(mutes.change(&mute, true).await.unwrap());
        assert!(!mutes.change(&mute, true).await.unwrap());
        let text = told.get().unwrap();
        assert!(String::from_utf8_lossy(&text).contains("vision"));
        let told = Told::default();
        let again = Mutes::new(journal, folder.path(), told.clone());
        let stopped = CancellationToken::new();
        stopped.cancel();
        again.follow(stopped).await.unwrap();
        assert_eq!(told.get(), Some(text));
        assert_eq!(again.all().await.unwrap(), std::slice::from_ref(&mute));
        assert!(again.change(&mute, false).await.unwrap());
        assert_eq!(again.all().await.unwrap(), []);
        std::fs::write(folder.path().join(NAME), "garbage").unwrap();
        let told = again.change(&mute, true).await.unwrap_err().to_string();
        assert!(told.contains("remove the file"), "{told}");
    }
}
