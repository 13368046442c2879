//! Faults of our own that are planted to see whether they are found.

/// One at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlantedBug {
    #[default]
    None,
    /// The sink's receipts don't survive the process.
    ForgetsReceipts,
    /// Rows are durable before the receipt for them is.
    ReceiptsApart,
    /// Two states of one object come out of the journal in each other's place.
    SwapsStates,
    /// A state is left out when the journal is read.
    SkipsStates,
    /// A cursor is kept that is one too high.
    CursorAhead,
    /// Progress is kept before the dead letters that belong to it.
    LettersApart,
    /// A letter is taken out when it is taken back, and not when it is done.
    LettersForgotten,
    /// The progress passes states that are owed, and nothing says that they are.
    OwedForgotten,
    /// The checkpoint is on disk before the states that belong to it.
    CheckpointFirst,
    /// One delivered state in some is not counted.
    Miscounts,
    /// States that the mode leaves out are handed over as well.
    IgnoresMode,
    /// A call in some never ends.
    NeverAnswers,
    /// A save that nobody waits for any more is done after those of who came next.
    NeverSettles,
    /// A handle whose last write is in doubt goes on as if nothing were.
    TriesAgain,
}
