//! The pure machine behind dispatch: ordered per lane, parallel over lanes.
