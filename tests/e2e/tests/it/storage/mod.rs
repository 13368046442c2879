//! The journal and the granted databases on each server, over kills, copies and TLS. What a plugin does with its rows
//! is looked at in the tables alone.

pub mod databases;
mod imports;
mod kills;
mod outcomes;
mod place;
mod receipts;
mod stores;
mod tables;
mod tls;
mod turns;
mod unwritable;
