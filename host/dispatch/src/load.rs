//! Where a dispatcher takes up again: progress, dead letters, what was open, what is unread.

use std::time::Duration;

use kubewitness_core::Seq;
use kubewitness_core::config::OnDeadLetter;
use kubewitness_core::lanes::{LaneOptions, Lanes, holes};
use kubewitness_core::ports::{Backlog, JournalError, Progress, Save};

use crate::interest::Interest;
use crate::reader::{CHUNK, Reader};
use crate::{DispatchError, DispatchOptions};

/// Between tries while the journal can't be read.
const AGAIN: Duration = Duration::from_millis(500);

pub(crate) struct Loaded {
    pub lanes: Lanes,
    pub interest: Interest,
    pub reader: Reader,
}

/// Tries until the journal is there: without it nothing can be handed over rightly.
pub(crate) async fn load_patiently(
    options: &DispatchOptions,
    backlog: &dyn Backlog,
) -> Result<Loaded, DispatchError> {
    loop {
        match load(options, backlog).await {
            Err(JournalError::Unavailable(reason)) => {
                tracing::warn!(plugin = options.plugin, reason, "can't load the progress yet");
                tokio::time::sleep(AGAIN).await;
            }
            other => return other.map_err(DispatchError::Journal),
        }
    }
}

async fn load(options: &DispatchOptions, backlog: &dyn Backlog) -> Result<Loaded, JournalError> {
    let kept = backlog.progress(&options.plugin).await?;
    let newest = *backlog.newest().borrow();
    let (progress, interest) = begin(options, kept, newest)?;
    backlog.save(&options.plugin, Save { progress: progress.clone(), ..Save::default() }).await?;
    let mut lanes = Lanes::new(LaneOptions::new(&options.plugin, &options.delivery), &progress);
    load_letters(options, backlog, &mut lanes).await?;
    for (after, through) in holes(&progress, newest) {
        let unread = interest.count(backlog, after, through).await?;
        lanes.count(through, unread);
    }
    lanes.count(newest, 0);
    Ok(Loaded { reader: Reader::default(), lanes, interest })
}

/// The progress to go on from. It is saved before the first call, so that `now` stays what it
/// was.
fn begin(
    options: &DispatchOptions,
    kept: Option<Progress>,
    newest: Seq,
) -> Result<(Progress, Interest), JournalError> {
    let read =
        kept.as_ref().map_or(0, |progress| progress.above.last().map_or(progress.cursor, |last| last.1));
    if read > newest {
        return Err(JournalError::Fatal(format!(
            "`{}` is at position {read}, but the journal ends at {newest}: it is not the journal that the plugin \
             was handed",
            options.plugin,
        )));
    }
    let interest = Interest::resolve(&options.subscriptions, kept.as_ref(), read, newest);
    let mut progress = kept.unwrap_or_else(|| Progress { cursor: interest.start(), ..Progress::default() });
    progress.start = interest.start();
    progress.sources = interest.starts().to_vec();
    Ok((progress, interest))
}

async fn load_letters(
    options: &DispatchOptions,
    backlog: &dyn Backlog,
    lanes: &mut Lanes,
) -> Result<(), JournalError> {
    let letters = backlog.dead_letters(&options.plugin).await?;
    for letters in letters.chunks(CHUNK) {
        // Only a held lane has to be known before its letter is taken back.
        let states = if options.delivery.on_dead_letter == OnDeadLetter::Hold {
            let seqs: Vec<Seq> = letters.iter().map(|letter| letter.seq).collect();
            backlog.read_at(&seqs).await?
        } else {
            Vec::new()
        };
        for state in &states {
            lanes.hold(state.seq, state.lane());
        }
        for letter in letters {
            if letter.replaying {
                lanes.replay(letter);
            } else {
                lanes.park(letter.seq);
            }
        }
    }
    Ok(())
}
