//! Lists whose pages don't fit together.

use anyhow::{Context, ensure};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

use crate::seeds::RowOptions;
use crate::world::PAGE;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_06_a_page_that_expires_starts_the_list_again_without_half_a_checkpoint() {
    let row = RowOptions { sometimes: &["killed within the list"], ..RowOptions::new("row_06") };
    row.run(async |world, marks| {
        world.wire.refuse_streamed_lists();
        world.herd.create_some(8).await?;
        let relist = world.dice.one_in(2);
        if relist {
            world.start_synced().await?;
            world.away().await?;
            for number in 0..8 {
                world.herd.touch(&format!("job-{number}")).await?;
            }
        }
        let pages = world.wire.asked(|asked| asked.is_later_page()).len();
        let gate = world.wire.hold(|asked| asked.is_later_page(), |_| None);
        if relist {
            world.back_expired();
        } else {
            world.start().await?;
        }
        world
            .until("the second page is asked for", |world| {
                world.wire.asked(|asked| asked.is_later_page()).len() > pages
            })
            .await?;
        let before = world.view().checkpoint;
        ensure!(relist || before.is_empty(), "half a list is no checkpoint: {before}");
        if world.dice.one_in(2) {
            marks.when(true, "killed within the list");
            world.kill().await?;
            world.start().await?;
        }
        // The second page now expires as a real one does.
        world.herd.live_on(5).await?;
        world.compact(None);
        if !relist {
            world.listed = (world.server.version(), world.server.version());
        }
        drop(gate);
        world.finish().await?;
        Ok(())
    })
    .await;
}

/// The same continue token, from which its version is taken: the server goes on at the newest.
fn inconsistent(target: &str) -> Option<String> {
    let (start, rest) = target.split_once("continue=")?;
    let (token, more) =
        rest.split_once('&').map_or((rest, String::new()), |(t, more)| (t, format!("&{more}")));
    let token = token.replace("%3D", "=");
    let mut parsed: Value =
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(token.trim_end_matches('=')).ok()?).ok()?;
    parsed["rv"] = Value::from(-1);
    Some(format!("{start}continue={}{more}", URL_SAFE_NO_PAD.encode(parsed.to_string())))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_07_names_that_are_given_anew_between_two_pages_live_on() {
    let row = RowOptions { seeds: 12, sometimes: &["a name ended again"], ..RowOptions::new("row_07_names") };
    row.run(async |world, marks| {
        world.wire.refuse_streamed_lists();
        world.herd.create_some(8).await?;
        world.start_synced().await?;
        world.level().await?;
        world.away().await?;
        let ended: Vec<String> =
            (0..8).filter(|_| world.dice.one_in(2)).map(|n| format!("job-{n}")).collect();
        for name in &ended {
            world.herd.delete(name).await?;
        }
        let before = world.wire.asked(|asked| asked.is_later_page()).len();
        // Of a list that fits one page, the first later page would be one of an old version, and it would be refused.
        let is_one_page = world.herd.live.len() <= PAGE;
        let gate = (!is_one_page).then(|| world.wire.hold(|asked| asked.is_later_page(), inconsistent));
        world.back_expired();
        world
            .until("the second page is asked for, or there is none", |world| match is_one_page {
                true => world.wire.open_watches() > 0,
                false => world.wire.asked(|asked| asked.is_later_page()).len() > before,
            })
            .await?;
        for name in &ended {
            world.herd.create(name).await?;
        }
        let again = ended.first().filter(|_| world.dice.one_in(2));
        marks.when(again.is_some(), "a name ended again");
        if let Some(name) = again {
            world.herd.delete(name).await?;
            world.herd.create(name).await?;
        }
        let steps = world.dice.below(30);
        world.herd.live_on(steps).await?;
        drop(gate);
        // Pages of old versions are left alone.
        world.wire.no_rules();
        world.level().await?;
        for name in ended {
            if world.herd.live.contains_key(&name) {
                world.herd.delete(&name).await?;
            }
        }
        let told = world.finish().await?;
        ensure!(told.gaps.is_empty(), "{:?}", told.gaps);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_07_after_an_inconsistent_page_the_watch_begins_where_the_first_page_was() {
    let row = RowOptions::new("row_07");
    row.run(async |world, _| {
        world.wire.refuse_streamed_lists();
        world.herd.create_some(8).await?;
        let gate = world.wire.hold(|asked| asked.is_later_page(), inconsistent);
        world.start().await?;
        world
            .until("the second page is asked for", |world| {
                !world.wire.asked(|asked| asked.is_later_page()).is_empty()
            })
            .await?;
        let first = world.server.version();
        // Of objects on the first page, on the second, and such as come and go.
        world.herd.live_on(20).await?;
        world.listed = (first, world.server.version());
        drop(gate);
        world.until("it watches", |world| world.view().synced && world.wire.open_watches() > 0).await?;
        let watches = world.wire.asked(|asked| asked.is_watch());
        let watch = watches.last().context("a watch")?;
        ensure!(watch.target.contains(&format!("resourceVersion={first}&")), "{} at {first}", watch.target);
        let told = world.finish().await?;
        ensure!(told.gaps.is_empty(), "{:?}", told.gaps);
        Ok(())
    })
    .await;
}
