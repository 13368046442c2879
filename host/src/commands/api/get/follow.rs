//! `get -w`: prints the objects that exist now, then each change, until Ctrl-C or until nobody reads them.
//!
//! The stream opens before the list is asked for, so no change falls between them. A change that the list has
//! already shown is recognized by its position. The stream does not evaluate selectors and indexes: where one is
//! given, each changed object is looked up again.

use std::collections::HashMap;

use anyhow::Result;
use kubewitness_core::views::{ObjectQuery, ObjectView};
use kubewitness_core::{Change, Seq, State};
use serde::Serialize;

use super::query::{GetQuery, concerns, name};
use super::{document, tell_blind};
use crate::cli::GetOutput;
use crate::commands::Ended;
use crate::commands::api::client::{Client, parameters};
use crate::commands::api::live::{Heard, Live};
use crate::commands::print::{self, Table, clean};

/// Rows that decide how wide the columns of the next ones are; a watch may last for days.
const LAID_OUT_BY: usize = 200;

/// One change for programs: the object as a list shows it, and what happened to it.
#[derive(Serialize)]
struct Event<'a> {
    change: Change,
    #[serde(flatten)]
    view: &'a ObjectView,
}

pub(super) async fn follow(client: &Client, asked: &GetQuery) -> Ended {
    print::until_reader_leaves(go_on(client, asked)).await
}

async fn go_on(client: &Client, asked: &GetQuery) -> Ended {
    let mut live = Live::open(client, None).await?;
    let mut shown = Shown::new(client, asked);
    shown.first().await?;
    tell_blind(client, &asked.query).await;
    loop {
        if let Heard::State(state, _) = live.next().await? {
            shown.changed(&state).await?;
        }
    }
}

// ---- what was shown ----------------------------------------------------------------------

struct Shown<'a> {
    client: &'a Client,
    asked: &'a GetQuery,
    table: Table,
    /// Of each object on the screen, its uid and the position of what was shown of it.
    rows: HashMap<String, Seq>,
}

impl<'a> Shown<'a> {
    fn new(client: &'a Client, asked: &'a GetQuery) -> Self {
        Self { client, asked, table: asked.table(), rows: HashMap::new() }
    }

    async fn first(&mut self) -> Result<()> {
        let query = parameters(&self.asked.query);
        let first = self.client.list("api/v1/objects", &query, self.asked.first_page()).await?;
        let mut objects: Vec<ObjectView> = first.rows;
        objects.sort_by_key(|view| view.seq);
        if matches!(self.asked.output, GetOutput::Table | GetOutput::Wide) {
            for view in &objects {
                self.asked.row(&mut self.table, view, Change::Present);
                self.rows.insert(view.object.uid.clone(), view.seq);
            }
            return print::line_of_many(&self.table.render());
        }
        for view in &objects {
            self.show(view, Change::Present).await?;
        }
        Ok(())
    }

    async fn changed(&mut self, state: &State) -> Result<()> {
        let (query, uid) = (&self.asked.query, state.object.uid.as_str());
        let known = self.rows.get(uid).copied();
        if known.is_some_and(|seq| seq >= state.seq) || !concerns(query, &state.source, &state.object) {
            return Ok(());
        }
        let over = matches!(state.change, Change::Gone | Change::Left);
        let phase = query.phase.as_deref();
        let matches = match over {
            // Its end is news to whoever saw it; of others nobody can look labels up any more.
            true => known.is_some() || !is_looked_up(query) && phase.is_none(),
            false if is_looked_up(query) => self.is_found(state).await?,
            false => phase.is_none_or(|phase| state.status.phase.eq_ignore_ascii_case(phase)),
        };
        // What no longer matches is shown once as what it has become.
        if !matches && known.is_none() {
            return Ok(());
        }
        self.show(&ObjectView::from(state), state.change).await?;
        if over || !matches {
            self.rows.remove(uid);
        }
        Ok(())
    }

    async fn is_found(&self, state: &State) -> Result<bool> {
        let asked = ObjectQuery {
            source: Some(state.source.to_string()),
            namespace: Some(state.object.namespace.clone()).filter(|namespace| !namespace.is_empty()),
            name: Some(state.object.name.clone()),
            ..self.asked.query.clone()
        };
        let found: Vec<ObjectView> = self.client.get("api/v1/objects", &parameters(&asked)).await?;
        Ok(found.iter().any(|view| view.object.uid == state.object.uid))
    }

    async fn show(&mut self, view: &ObjectView, change: Change) -> Result<()> {
        self.rows.insert(view.object.uid.clone(), view.seq);
        let text = match self.asked.output {
            GetOutput::Table | GetOutput::Wide => {
                let shown = self.table.len();
                self.asked.row(&mut self.table, view, change);
                let text = self.table.render_from(shown);
                self.table.keep_newest(LAID_OUT_BY);
                text
            }
            GetOutput::Name => format!("{}\n", clean(&name(&view.object))),
            GetOutput::Json | GetOutput::Yaml if self.asked.is_one() && change == Change::Present => {
                let document = document(self.client, view.seq, self.asked.output).await?;
                if self.asked.output == GetOutput::Yaml { format!("---\n{document}") } else { document }
            }
            GetOutput::Json => format!("{}\n", serde_json::to_string(&Event { change, view })?),
            GetOutput::Yaml => format!("---\n{}", print::yaml(&Event { change, view })?),
        };
        print::line_of_many(&text)
    }
}

/// Whether only a look-up tells if an object matches.
fn is_looked_up(query: &ObjectQuery) -> bool {
    query.label_selector.is_some() || query.index.is_some() || query.search.is_some()
}
