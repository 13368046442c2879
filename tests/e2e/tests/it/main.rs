//! End to end: the built programs as processes of their own, the real kubectl, and the
//! simulated API server against recordings of a real one.

mod access;
mod browser;
mod clients;
mod cluster;
mod compile;
mod conformance;
mod databases;
mod docs;
mod files;
mod imports;
mod kills;
mod kubectl;
mod letters;
mod live;
mod misuse;
mod outage;
mod playground;
mod receipts;
mod replicas;
mod restart;
mod resync;
mod retention;
mod rules;
mod run;
mod secrets;
mod signals;
mod simulator;
mod sources;
mod stores;
mod streams;
mod support;
mod tls;
mod visibility;
mod workload;
