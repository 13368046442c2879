//! The codes of problems: stable words for programs, while messages may change.
//!
//! Codes are defined only here, so the table is complete. The page `/api` shows it, and
//! `docs/reference/problems.md` is generated from it.

use axum::http::StatusCode;

#[derive(Debug)]
pub(crate) struct ProblemCode {
    pub(crate) name: &'static str,
    pub(crate) status: StatusCode,
    /// The title of all problems with this code; the problem itself has the details.
    pub(crate) title: &'static str,
    pub(crate) about: &'static str,
    pub(crate) remedy: &'static str,
}

macro_rules! codes {
    ($($word:ident = $name:literal $status:ident, $title:literal: $about:literal, $remedy:literal;)*) => {
        $(pub(crate) const $word: &ProblemCode = &ProblemCode {
            name: $name,
            status: StatusCode::$status,
            title: $title,
            about: $about,
            remedy: $remedy,
        };)*

        /// In the order of their statuses. The first of a status is the default for problems with that
        /// status.
        pub(crate) const ALL: &[&ProblemCode] = &[$($word),*];
    };
}

codes! {
    INVALID = "invalid" BAD_REQUEST, "The request is invalid":
        "A parameter or the body has a value that is not taken.",
        "Change what `detail` names and send the request again.";
    UNKNOWN_PARAMETER = "unknown-parameter" BAD_REQUEST, "A parameter is not known":
        "A parameter is not one of this operation, or it is there twice.",
        "Take the parameters that `hint` lists, each once.";
    NOT_WITNESSED = "not-witnessed" BAD_REQUEST, "Nobody watches this":
        "No source has this name, or no source witnesses this kind.",
        "Take a source or a kind that `hint` lists, or add a source to the host's settings.";
    UNAUTHENTICATED = "unauthenticated" UNAUTHORIZED, "The request names no person":
        "People sign in here, and the request has no token, or one that the API server does not know.",
        "Send a token of Kubernetes as `Authorization: Bearer TOKEN`.";
    FORBIDDEN = "forbidden" FORBIDDEN, "This is not allowed":
        "Kubernetes does not give this person the right that the operation takes.",
        "Ask an administrator for the right that `hint` names.";
    FOREIGN_PAGE = "foreign-page" FORBIDDEN, "A page of another site asked for a change":
        "The request's `Origin` or `Sec-Fetch-Site` says that it does not come from the portal.",
        "Open the portal itself and do it there, or use the API without a browser.";
    TOO_WIDE = "too-wide" FORBIDDEN, "The question is about too many namespaces":
        "This person may not look into all namespaces, and there are too many to ask about one by one.",
        "Name one with `namespace`.";
    NOT_FOUND = "not-found" NOT_FOUND, "There is no such thing":
        "There is nothing of this name or position, or nothing that this person may see.",
        "Look at the list that it should be in.";
    METHOD_NOT_ALLOWED = "method-not-allowed" METHOD_NOT_ALLOWED, "The method is not taken":
        "The address does not take this method.",
        "Take the one that the header `Allow` names.";
    CONFLICT = "conflict" CONFLICT, "It is there already":
        "Something of this name or key is there already, and is not what the request asks for.",
        "Take another name, or another key for another request.";
    CHANGED = "changed" CONFLICT, "It has changed since":
        "What the request is about is no longer what the person has seen, so nothing is done.",
        "Look at it again, and send the request again if it is still meant.";
    TOO_LARGE = "too-large" PAYLOAD_TOO_LARGE, "The body is too large":
        "The body of a request has at most 64 KiB.",
        "Send the request in parts.";
    NOT_JSON = "not-json" UNSUPPORTED_MEDIA_TYPE, "The body is not of the right type":
        "The body has another media type than the operation takes.",
        "Send JSON with `Content-Type: application/json`.";
    MISDIRECTED = "misdirected" MISDIRECTED_REQUEST, "The portal is asked by a name that is not its own":
        "A portal that listens on loopback answers to `localhost`, `127.0.0.1` and `[::1]` alone.",
        "Ask for it by one of these names.";
    INVALID_BODY = "invalid-body" UNPROCESSABLE_ENTITY, "The body has not the right fields":
        "The body is JSON, and a field of it is missing, unknown or of another type.",
        "Compare the body with the description of the operation.";
    TOO_MANY = "too-many" TOO_MANY_REQUESTS, "There are too many requests":
        "The API server or the portal takes no more of these requests now.",
        "Try again after the seconds that `Retry-After` names.";
    FAILED = "failed" INTERNAL_SERVER_ERROR, "The portal failed":
        "The portal has a fault. Any status that is not in this table has this code, too.",
        "Look at the controller's log for the reason, and report it.";
    UNAVAILABLE = "unavailable" SERVICE_UNAVAILABLE, "This can't be answered now":
        "The journal or another part that the answer needs does not answer, or there are too many connections.",
        "Try again after the seconds that `Retry-After` names; `/readyz` says whether the controller is well.";
    TIMED_OUT = "timed-out" SERVICE_UNAVAILABLE, "The answer took too long":
        "The portal gives up a request after its time.",
        "Ask for less, such as one namespace or a smaller `limit`.";
    CANNOT_REVIEW = "cannot-review" SERVICE_UNAVAILABLE, "The API server can't be asked":
        "The API server does not say who asks or what they may see, so nothing is shown.",
        "Try again; where `hint` says that the API server refuses, give the controller its role.";
    TOO_MANY_STREAMS = "too-many-streams" SERVICE_UNAVAILABLE, "There are too many live streams":
        "All places for live streams are taken, or all that one person may have.",
        "Close another window of the portal, or start the controller with a larger `--streams`.";
    TOO_MANY_LOGINS = "too-many-logins" SERVICE_UNAVAILABLE, "There are too many one-time logins":
        "All places for one-time logins are taken.",
        "Try again in a minute, or sign in with a token at `/login`.";
}

impl ProblemCode {
    /// The default code of a status.
    pub(crate) fn of(status: StatusCode) -> &'static Self {
        ALL.iter().find(|code| code.status == status).unwrap_or(&FAILED)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Write;

    use kubewitness_harness::{GENERATED, cell, reference};

    use super::*;

    #[test]
    fn a_code_has_one_name_and_a_status_that_is_not_in_the_table_is_a_failure() {
        let names: BTreeSet<_> = ALL.iter().map(|code| code.name).collect();
        assert_eq!(names.len(), ALL.len());
        assert!(ALL.is_sorted_by_key(|code| code.status));
        assert_eq!(ProblemCode::of(StatusCode::SERVICE_UNAVAILABLE).name, "unavailable");
        assert_eq!(ProblemCode::of(StatusCode::IM_A_TEAPOT).name, "failed");
    }

    #[test]
    fn the_reference_of_problems_lists_every_code() {
        let mut page = format!(
            "{GENERATED}# Problems\n\nThe API answers each request that it refuses with `application/problem+json` \
             ([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457)). The fields are:\n\n| field | what it holds |\n\
             |---|---|\n\
             | `type` | The address of the code's place on the portal's page `/api`. |\n\
             | `title` | The code in words. It is the same for each problem of this code. |\n\
             | `status` | The status of HTTP. |\n\
             | `detail` | What happened this time, for people. |\n\
             | `hint` | What to do about it, for people. |\n\
             | `code` | A word for programs. It keeps its meaning; new ones may be added. |\n\
             | `error` | `code`, `message` and `hint` once more, for older programs. |\n\n\
             One kind of request gets no such body: bytes that are no HTTP/1.1, or a head that is too large. They are answered by \
             400 or 431 alone.\n\n\
             ## Codes\n\n| code | status | what it means | what to do |\n|---|---|---|---|\n"
        );
        for code in ALL {
            let cells = [code.about, code.remedy].map(cell).join(" | ");
            writeln!(page, "| `{}` | {} | {cells} |", code.name, code.status.as_u16()).unwrap();
        }
        reference("problems.md", &page);
    }
}
