//! `kubewitness mute` and `kubewitness unmute`.

use anyhow::bail;
use kubewitness_core::views::{MuteRequest, MuteView, MutedView};

use super::super::client::ApiClient;
use super::super::object_name::{
    ObjectName, fetch_story, namespace_or_context as where_it_is, nothing_witnessed_text,
};
use super::dead_letters::login_name;
use crate::cli::{MuteArgs, ZoneArg};
use crate::commands::print::{self, TextTable, clean_line};
use crate::commands::{CommandEnd, CommandResult, UsageError};

pub async fn mute(args: MuteArgs) -> CommandResult {
    order(args, "mute").await
}

pub async fn unmute(args: MuteArgs) -> CommandResult {
    order(args, "unmute").await
}

async fn order(args: MuteArgs, verb: &str) -> CommandResult {
    let MuteArgs { object, namespace, all, list, to, who, query } = args;
    if object.is_empty() && namespace.is_none() && !all && !list {
        return Err(UsageError::error(format!(
            "name what to {verb}: an object such as job/train-7, a namespace with -n, or --all. `--list` shows the mutes"
        )));
    }
    let client = ApiClient::reach_controller(&query.reach).await?;
    if list {
        let none: [(&str, &str); 0] = [];
        let mutes: Vec<MuteView> = client.get("api/v1/mutes", &none).await?;
        print::print_value(query.output, &mutes, |mutes| table(mutes))?;
        return Ok(CommandEnd::Fine);
    }
    let (to, who) = (to.unwrap_or_default(), who.unwrap_or_else(login_name));
    let mut request = MuteRequest { all, to, who, ..MuteRequest::default() };
    if object.is_empty() {
        request.namespace = namespace;
    } else {
        let named = ObjectName::parse_only(&object)?;
        request.uid = match &named {
            ObjectName::Uid(uid) => Some(uid.clone()),
            ObjectName::Object { .. } => {
                let namespace = where_it_is(namespace.as_deref(), &query.reach).await?;
                let story = fetch_story(&client, &named, &namespace, 1).await?;
                let Some(state) = story.states.last() else {
                    bail!(nothing_witnessed_text(&client, &named, &namespace).await?)
                };
                Some(state.object.uid.clone())
            }
        };
    }
    let view: MutedView = client.post_json(&format!("api/v1/{verb}"), &request).await?;
    print::print_value(query.output, &view, |view| text(view, verb))?;
    Ok(CommandEnd::Fine)
}

/// For people: an object, a namespace or everything.
fn mute_scope(mute: &MuteView) -> String {
    let MuteView { uid, object, namespace, .. } = mute;
    match (uid.is_empty(), namespace.is_empty()) {
        (false, true) => clean_line(object).into_owned(),
        (false, false) => format!("{} in {}", clean_line(object), clean_line(namespace)),
        (true, false) => format!("the namespace {}", clean_line(namespace)),
        (true, true) => "everything".to_owned(),
    }
}

fn text(view: &MutedView, verb: &str) -> String {
    let MutedView { changed, mute } = view;
    let whom = match (mute.to.as_str(), verb) {
        ("", "mute") => "nobody is told of it".to_owned(),
        (to, "mute") => format!("{} is not told of it", clean_line(to)),
        ("", _) => "people are told of it".to_owned(),
        (to, _) => format!("{} is told of it", clean_line(to)),
    };
    match (changed, verb) {
        (true, _) => format!("{} is {verb}d: {whom} from now on\n", mute_scope(mute)),
        (false, "mute") => format!("{} was muted already\n", mute_scope(mute)),
        (false, _) => {
            format!("{} was not muted: `kubewitness mute --list` shows what is\n", mute_scope(mute))
        }
    }
}

fn table(mutes: &[MuteView]) -> String {
    if mutes.is_empty() {
        return "there is no mute that you may undo\n".to_owned();
    }
    let mut table = TextTable::new(&["WHAT", "TO", "WHO", "SINCE", "UID"]);
    for mute in mutes {
        let to = if mute.to.is_empty() { "everybody".to_owned() } else { mute.to.clone() };
        table.push_row(vec![
            mute_scope(mute),
            to,
            mute.who.clone(),
            ZoneArg::local_zone().show_text(&mute.at),
            mute.uid.clone(),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_says_what_is_muted_for_whom() {
        let mute = MuteView {
            uid: "u".into(),
            object: "Job/a\u{1b}".into(),
            namespace: "n".into(),
            ..MuteView::default()
        };
        let view =
            |to: &str, changed| MutedView { changed, mute: MuteView { to: to.into(), ..mute.clone() } };
        assert_eq!(text(&view("", true), "mute"), "Job/a· in n is muted: nobody is told of it from now on\n");
        assert_eq!(
            text(&view("ops", true), "unmute"),
            "Job/a· in n is unmuted: ops is told of it from now on\n"
        );
        assert_eq!(text(&view("", false), "mute"), "Job/a· in n was muted already\n");
        assert_eq!(table(&[]), "there is no mute that you may undo\n", "others are not listed");
        let all = MutedView { changed: false, mute: MuteView::default() };
        assert!(text(&all, "unmute").starts_with("everything was not muted"));
    }
}
