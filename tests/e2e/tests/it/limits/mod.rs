//! Acts of others that would harm the controller: components, files, clients and configurations. Each costs
//! what its bound allows, and nobody else notices.

mod ceiling;
mod clients;
pub mod costly_components;
mod files;
pub mod hostile;
mod large_components;
mod misuse;
mod processors;
mod slow_compiles;
