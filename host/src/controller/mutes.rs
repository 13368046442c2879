//! Stores people's mutes, and shows them to plugins. A journal on a server stores the list, so that all
//! replicas share it; with a journal in a file, the list is a file of the data folder.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kubewitness_capability::SharedValue;
use kubewitness_core::files;
use kubewitness_core::mutes::{self, MuteView};
use kubewitness_core::ports::{AccessReviewer, LiveNamespace};
use kubewitness_journal::Journal;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

/// The name of the text that replicas share, and of the file.
const NAME: &str = "mutes";
/// The size of the most mutes with the longest texts.
const BYTES: u64 = 4 << 20;
/// How often namespaces are checked. A recreated namespace loses its mutes after this time, and the time
/// until [`StoryMutes::follow_changes`] runs again.
const NAMESPACE: Duration = Duration::from_secs(10);
/// An attempt fails only if another replica was faster.
const ATTEMPTS: usize = 8;

pub struct StoryMutes {
    journal: Journal,
    file: PathBuf,
    shared_mutes: SharedValue,
    /// Looks up the namespaces of mutes. `None`: a name stands for any namespace with that name.
    reviewer: Option<Arc<dyn AccessReviewer>>,
    /// The holder of this lock writes the file.
    writing: tokio::sync::Mutex<NamespaceLook>,
}

/// The API server's answers about namespaces, and when each arrived.
type NamespaceLook = BTreeMap<String, (Option<LiveNamespace>, Instant)>;

impl StoryMutes {
    pub fn new(journal: Journal, data: &std::path::Path, shared_mutes: SharedValue) -> Self {
        let writing = tokio::sync::Mutex::default();
        Self { journal, file: data.join(NAME), shared_mutes, reviewer: None, writing }
    }

    /// Plugins don't get mutes of a namespace that is gone, or was created again.
    pub fn of_live_namespaces(self, reviewer: Arc<dyn AccessReviewer>) -> Self {
        Self { reviewer: Some(reviewer), ..self }
    }

    /// The list, oldest first.
    pub async fn all_mutes(&self) -> Result<Vec<MuteView>> {
        parse(&self.text().await?)
    }

    /// Durable once this returns. Returns `false` if nothing had to change.
    pub async fn change_mute(&self, mute: &MuteView, is_muted: bool) -> Result<bool> {
        let mut looked = self.writing.lock().await;
        for _ in 0..ATTEMPTS {
            let before = self.text().await?;
            let Some(all) = mutes::with_change(parse(&before)?, mute, is_muted) else { return Ok(false) };
            let text = serde_json::to_string(&all).context("writing the mutes")?;
            if self.write(&before, &text).await? {
                // The namespace may have been created a moment ago.
                looked.remove(&mute.namespace);
                self.show_to_plugins(all, &mut looked).await?;
                let MuteView { object, namespace, to, who, .. } = mute;
                let what = if is_muted { "muted" } else { "unmuted" };
                info!(object, namespace, to, who, "a person {what} messages");
                return Ok(true);
            }
        }
        bail!("other replicas change the mutes all the time: try again")
    }

    /// Shows the present mutes to plugins, including those of other replicas, which it checks for this often.
    pub async fn follow_changes(&self, every: Duration, stop: CancellationToken) -> Result<()> {
        let mut is_told = false;
        loop {
            match self.tell_plugins().await {
                Ok(()) => is_told = false,
                Err(error) if !is_told => {
                    is_told = true;
                    warn!("what people have muted can't be read, and what was read before holds: {error:#}");
                }
                Err(_) => {}
            }
            // No other process writes the file.
            let is_over = !self.journal.is_on_a_server() && self.reviewer.is_none() && !is_told;
            if is_over || stop.run_until_cancelled(tokio::time::sleep(every)).await.is_none() {
                return Ok(());
            }
        }
    }

    async fn tell_plugins(&self) -> Result<()> {
        let mut looked = self.writing.lock().await;
        let all = self.all_mutes().await?;
        self.show_to_plugins(all, &mut looked).await
    }

    async fn show_to_plugins(&self, mut all: Vec<MuteView>, looked: &mut NamespaceLook) -> Result<()> {
        if let Some(reviewer) = &self.reviewer {
            look_up_namespaces(&all, &**reviewer, looked).await;
            all.retain(|mute| is_in_force(mute, looked));
        }
        let text = if all.is_empty() { String::new() } else { serde_json::to_string(&all)? };
        self.shared_mutes.set_value(text.into_bytes());
        Ok(())
    }

    async fn text(&self) -> Result<String> {
        if self.journal.is_on_a_server() {
            return Ok(self.journal.shared_text(NAME).await?);
        }
        let path = self.file.clone();
        let read = files::run_within_limit(&self.file, files::ANSWER, move || match files::look(&path)? {
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
        let write = move || files::replace_file_atomically(&path, text.as_bytes(), 0o600);
        let written = files::run_within_limit(&self.file, files::ANSWER, write).await;
        written.with_context(|| format!("writing {}", self.file.display()))?;
        Ok(true)
    }
}

/// A mute whose namespace is unknown is in force.
fn is_in_force(mute: &MuteView, looked: &NamespaceLook) -> bool {
    let Some((live, _)) = looked.get(&mute.namespace) else { return true };
    live.as_ref().is_some_and(|live| mute.is_of(&live.uid, live.created_ms))
}

/// Looks up the namespaces that are muted entirely. If a lookup fails, the former answer stays.
async fn look_up_namespaces(all: &[MuteView], reviewer: &dyn AccessReviewer, looked: &mut NamespaceLook) {
    let is_whole = |mute: &&MuteView| mute.uid.is_empty() && !mute.namespace.is_empty();
    looked.retain(|name, _| all.iter().filter(is_whole).any(|mute| mute.namespace == *name));
    for MuteView { namespace, .. } in all.iter().filter(is_whole) {
        if looked.get(namespace).is_some_and(|(_, at)| at.elapsed() < NAMESPACE) {
            continue;
        }
        let at = Instant::now();
        match reviewer.find_namespace(namespace).await {
            Ok(live) => drop(looked.insert(namespace.clone(), (live, at))),
            Err(error) => {
                debug!(namespace, %error, "a muted namespace can't be looked at");
                break;
            }
        }
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
    use std::sync::Mutex;

    use async_trait::async_trait;
    use kubewitness_core::ports::{AccessAttempt, Person, ReviewError};
    use kubewitness_journal::JournalOptions;

    use super::*;

    /// One namespace, by its uid; `None`: the API server is away.
    struct NamespaceCluster(Mutex<Option<&'static str>>);

    #[async_trait]
    impl AccessReviewer for NamespaceCluster {
        async fn authenticate_token(&self, _: &str) -> Result<Option<Person>, ReviewError> {
            Ok(None)
        }

        async fn allows_attempt(&self, _: &Person, _: &AccessAttempt) -> Result<bool, ReviewError> {
            Ok(false)
        }

        async fn find_namespace(&self, name: &str) -> Result<Option<LiveNamespace>, ReviewError> {
            let uid = self.0.lock().unwrap().ok_or(ReviewError::Unavailable("away".into()))?;
            Ok((name == "vision").then(|| LiveNamespace { uid: uid.into(), created_ms: 0 }))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_mute_ends_with_its_namespace_and_holds_while_nobody_can_be_asked() {
        let of = |namespace: &str, namespace_uid: &str| MuteView {
            namespace: namespace.into(),
            namespace_uid: namespace_uid.into(),
            ..MuteView::default()
        };
        let all = [of("", ""), of("vision", "1"), of("vision", "2"), of("gone", "3")];
        let (cluster, mut looked) = (NamespaceCluster(Mutex::new(None)), NamespaceLook::new());
        let mut in_force = async |uid: Option<&'static str>| {
            *cluster.0.lock().unwrap() = uid;
            look_up_namespaces(&all, &cluster, &mut looked).await;
            let of = all.iter().filter(|mute| is_in_force(mute, &looked));
            let of: Vec<_> = of.map(|mute| mute.namespace_uid.clone()).collect();
            tokio::time::advance(NAMESPACE).await;
            of.concat()
        };
        assert_eq!(in_force(None).await, "123");
        assert_eq!(in_force(Some("1")).await, "1");
        assert_eq!(in_force(None).await, "1", "as it was before");
        assert_eq!(in_force(Some("2")).await, "2");
    }

    #[tokio::test]
    async fn a_mute_is_read_by_plugins_at_once_and_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let journal =
            Journal::open(&folder.path().join("journal.db"), JournalOptions::default()).await.unwrap();
        let shared = SharedValue::default();
        let mutes = StoryMutes::new(journal.clone(), folder.path(), shared.clone());
        let mute = MuteView { namespace: "vision".into(), who: "ada".into(), ..MuteView::default() };
        assert!(mutes.change_mute(&mute, true).await.unwrap());
        assert!(!mutes.change_mute(&mute, true).await.unwrap());
        let text = shared.get().unwrap();
        assert!(String::from_utf8_lossy(&text).contains("vision"));
        let shared = SharedValue::default();
        let again = StoryMutes::new(journal, folder.path(), shared.clone());
        let stopped = CancellationToken::new();
        stopped.cancel();
        again.follow_changes(Duration::from_secs(2), stopped).await.unwrap();
        assert_eq!(shared.get(), Some(text));
        assert_eq!(again.all_mutes().await.unwrap(), std::slice::from_ref(&mute));
        assert!(again.change_mute(&mute, false).await.unwrap());
        assert_eq!(again.all_mutes().await.unwrap(), []);
        std::fs::write(folder.path().join(NAME), "garbage").unwrap();
        let error = again.change_mute(&mute, true).await.unwrap_err().to_string();
        assert!(error.contains("remove the file"), "{error}");
    }
}
