use std::sync::atomic::Ordering;
use std::time::Duration;

use kubewitness_portal::TlsFiles;

use super::tenants::TenantPortal;
use super::{GuardedPortal, TenantServer};
use crate::PortalAnswer;

pub const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");
pub const OWN: (&str, &str) = ("sec-fetch-site", "same-origin");

pub async fn enter(portal: &GuardedPortal, token: &str, next: &str) -> PortalAnswer {
    portal.ask("POST", "/login", &[FORM, OWN], &format!("token={token}&next={next}")).await
}

/// Returns the cookies as a browser sends them back.
pub fn cookies(answer: &PortalAnswer) -> String {
    let set = answer.headers.get_all("set-cookie").iter().map(|value| value.to_str().unwrap());
    let pairs: Vec<_> = set.map(|text| text.split(';').next().unwrap().to_owned()).collect();
    pairs.join("; ")
}

#[tokio::test]
async fn a_token_opens_a_session_that_ends_with_its_log_out() {
    let portal = GuardedPortal::new();
    let page = portal.get("/login?next=%2Fgaps", &[]).await;
    assert_eq!(page.status, 200);
    assert!(page.text.contains(r#"name="token""#) && page.text.contains(r#"value="/gaps""#));
    assert!(!page.text.contains("aria-label=\"Main\"") && page.text.contains("kubectl create token"));
    let entered = enter(&portal, "red", "%2Fobjects%2Fuid-red").await;
    assert_eq!((entered.status.as_u16(), entered.header("location")), (303, "/objects/uid-red"));
    let set = entered.header("set-cookie");
    for part in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=28800"] {
        assert!(set.contains(part), "{set}");
    }
    // The random part may contain the three letters.
    assert!(!set.contains("Secure") && !set.contains("=red") && !set.contains("red;"), "{set}");
    let cookie = cookies(&entered);
    let home = portal.get("/", &[("cookie", &cookie)]).await;
    assert!(
        home.text.contains("user-red") && home.text.contains("Log out") && home.text.contains("red-train")
    );
    assert!(!home.text.contains("No sign-in"));
    let again = portal.get("/login?next=%2Fgaps", &[("cookie", &cookie)]).await;
    assert_eq!((again.status.as_u16(), again.header("location")), (303, "/gaps"));
    let left = portal.ask("POST", "/logout", &[FORM, OWN, ("cookie", &cookie)], "").await;
    assert_eq!((left.status.as_u16(), left.header("location")), (303, "/login?left=true"));
    assert!(left.header("set-cookie").contains("Max-Age=0"));
    let copy = portal.get("/", &[("cookie", &cookie)]).await;
    assert_eq!((copy.status.as_u16(), copy.header("location")), (303, "/login?next=%2F&ended=true"));
    assert_eq!(portal.get("/api/v1/status", &[("cookie", &cookie)]).await.status, 401);
}

#[tokio::test(start_paused = true)]
async fn a_session_ends_with_its_token_and_is_nothing_to_another_key() {
    let portal = GuardedPortal::new();
    let cookie = cookies(&enter(&portal, "red", "").await);
    assert_eq!(portal.get("/", &[("cookie", &cookie)]).await.status, 200);
    let flipped = if cookie.as_bytes()[40] == b'A' { "B" } else { "A" };
    let altered = format!("{}{flipped}{}", &cookie[..40], &cookie[41..]);
    let large = format!("kubewitness=1.{}", "A".repeat(30 * 1024));
    for other in [altered.as_str(), &large, "kubewitness=1.AAAA", "kubewitness=", "kubewitness=9.x", "a=b"] {
        assert_eq!(portal.get("/", &[("cookie", other)]).await.status, 303, "{other}");
    }
    portal.server.gone.lock().unwrap().insert("red".into());
    tokio::time::advance(Duration::from_secs(11)).await;
    assert_eq!(portal.get("/", &[("cookie", &cookie)]).await.status, 303);
}

#[tokio::test]
async fn another_process_with_the_same_key_knows_the_session() {
    let cookie = cookies(&enter(&GuardedPortal::new(), "red", "").await);
    assert_eq!(GuardedPortal::new().get("/", &[("cookie", &cookie)]).await.status, 200);
}

#[tokio::test]
async fn a_log_out_holds_in_the_next_process_too() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ended-sessions");
    let start = async || {
        let ended = kubewitness_portal::EndedSessions::open(&file).await.unwrap();
        GuardedPortal::that_remembers(ended, TenantPortal::default(), TenantServer::default(), |options| {
            options
        })
    };
    let first = start().await;
    let (left, stays) = (cookies(&enter(&first, "red", "").await), cookies(&enter(&first, "red", "").await));
    first.ask("POST", "/logout", &[FORM, OWN, ("cookie", &left)], "").await;
    let next = start().await;
    assert_eq!(next.get("/api/v1/status", &[("cookie", &left)]).await.status, 401);
    assert_eq!(next.get("/api/v1/status", &[("cookie", &stays)]).await.status, 200);
}

#[tokio::test]
async fn a_token_that_is_none_opens_nothing() {
    let portal = GuardedPortal::new();
    for token in ["", "garbage", "red+x", &"x".repeat(16 * 1024 + 1)] {
        let answer = enter(&portal, token, "").await;
        assert_eq!(answer.status, 401, "{token:.10}");
        assert!(
            answer.headers.get("set-cookie").is_none() && answer.text.contains("does not know this token")
        );
        assert!(token.is_empty() || !answer.text.contains(&format!("value=\"{token}")));
    }
    assert_eq!(enter(&portal, &"x".repeat(70 * 1024), "").await.status, 413);
    portal.server.is_down.store(true, Ordering::SeqCst);
    let answer = enter(&portal, "blue", "").await;
    assert_eq!((answer.status.as_u16(), answer.header("retry-after")), (503, "2"));
}

#[tokio::test]
async fn the_longest_token_takes_several_cookies() {
    let portal = GuardedPortal::new();
    let token = format!("red{}", "x".repeat(16 * 1024 - 3));
    let entered = enter(&portal, &token, "").await;
    assert!(entered.headers.get_all("set-cookie").iter().count() > 4);
    assert_eq!(portal.get("/", &[("cookie", &cookies(&entered))]).await.status, 200);
}

#[tokio::test]
async fn only_the_portals_own_pages_sign_in_and_out() {
    let portal = GuardedPortal::new();
    let cookie = cookies(&enter(&portal, "red", "").await);
    for path in ["/login", "/logout"] {
        for headers in [
            &[FORM][..],
            &[FORM, ("sec-fetch-site", "cross-site")],
            &[FORM, ("sec-fetch-site", "same-site")],
            &[FORM, ("origin", "https://evil.example")],
            &[FORM, ("origin", "null")],
        ] {
            let headers = [headers, &[("cookie", cookie.as_str())]].concat();
            let answer = portal.ask("POST", path, &headers, "token=blue").await;
            assert_eq!(answer.status, 403, "{path} {headers:?}");
            assert!(answer.headers.get("set-cookie").is_none());
        }
        assert_eq!(portal.get(path, &[]).await.status.as_u16(), if path == "/login" { 200 } else { 405 });
    }
    let own = portal.ask("POST", "/login", &[FORM, ("origin", "http://localhost:8787")], "token=red").await;
    assert_eq!(own.status, 303);
    assert_eq!(portal.get("/", &[("cookie", &cookie)]).await.status, 200, "nobody else has ended it");
}

#[tokio::test]
async fn nobody_is_sent_to_another_site() {
    let portal = GuardedPortal::new();
    for evil in [
        "https%3A%2F%2Fevil.example",
        "%2F%2Fevil.example",
        "%2F%5Cevil.example",
        "%2Flogin",
        "javascript%3A1",
    ] {
        assert_eq!(enter(&portal, "red", evil).await.header("location"), "/", "{evil}");
        let page = portal.get(&format!("/login?next={evil}"), &[]).await.text;
        assert!(page.contains(r#"name="next" value="/""#), "{evil}");
    }
    let asked = portal.get("//evil.example/?a=b", &[]).await;
    assert_eq!(asked.header("location"), "/login?next=%2F");
    let deep = portal.get("/?kind=Job&namespace=red", &[]).await;
    assert_eq!(deep.header("location"), "/login?next=%2F%3Fkind%3DJob%26namespace%3Dred");
}

#[tokio::test]
async fn who_follows_a_link_from_elsewhere_is_asked_again_by_the_portal_itself() {
    let portal = GuardedPortal::new();
    let answer = portal.get("/objects/uid-red", &[("sec-fetch-site", "cross-site")]).await;
    let there = "0;url=/login?next=%2Fobjects%2Fuid%2Dred";
    assert_eq!((answer.status.as_u16(), answer.header("refresh")), (200, there));
    assert!(!answer.text.contains("red-train"));
    let cookie = cookies(&enter(&portal, "red", "").await);
    let then = portal.get(&there[6..], &[OWN, ("cookie", &cookie)]).await;
    assert_eq!((then.status.as_u16(), then.header("location")), (303, "/objects/uid-red"));
    assert_eq!(portal.get("/objects/uid-red", &[OWN]).await.status, 303);
    assert_eq!(portal.get("/api/v1/status", &[("sec-fetch-site", "cross-site")]).await.status, 401);
}

#[tokio::test]
async fn over_https_the_cookie_is_for_https_alone() {
    let tls = TlsFiles { certificate: "none".into(), key: "none".into() };
    let portal = GuardedPortal::with(TenantServer::default(), |options| kubewitness_portal::PortalOptions {
        tls: Some(tls),
        ..options
    });
    let set = enter(&portal, "red", "").await;
    assert!(
        set.header("set-cookie").starts_with("__Host-kubewitness=")
            && set.header("set-cookie").ends_with("; Secure")
    );
    assert_eq!(portal.get("/", &[("cookie", &cookies(&set))]).await.status, 200);
}

#[tokio::test]
async fn behind_a_proxy_that_has_tls_the_cookie_is_for_https_alone() {
    let portal = GuardedPortal::new();
    let headers = [FORM, OWN, ("origin", "https://localhost:8787")];
    let set = portal.ask("POST", "/login", &headers, "token=red&next=").await;
    assert!(set.header("set-cookie").starts_with("__Host-kubewitness="));
    assert!(set.header("set-cookie").ends_with("; Secure"), "{}", set.header("set-cookie"));
    assert_eq!(portal.get("/", &[("cookie", &cookies(&set))]).await.status, 200);
}

/// A code for the owner of this token.
async fn code(portal: &GuardedPortal, token: &str) -> String {
    let authorization = format!("Bearer {token}");
    let answer = portal.ask("POST", "/api/v1/login", &[("authorization", &authorization)], "").await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(answer.json()["good_for_seconds"], 60);
    answer.json()["code"].as_str().unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn a_one_time_login_signs_in_once_and_for_a_minute() {
    let portal = GuardedPortal::new();
    let first = code(&portal, "red").await;
    assert!(!first.starts_with("red") && !first.ends_with("red") && first.len() > 40);
    let body = format!("code={first}");
    let entered = portal.ask("POST", "/login/once", &[FORM, OWN], &body).await;
    assert_eq!((entered.status.as_u16(), entered.header("location")), (303, "/"));
    assert!(entered.header("set-cookie").contains("HttpOnly; SameSite=Strict"));
    let home = portal.get("/", &[("cookie", &cookies(&entered))]).await;
    assert!(home.text.contains("user-red") && home.text.contains("Log out"));
    for again in [
        portal.ask("POST", "/login/once", &[FORM, OWN], &body).await,
        portal.get(&format!("/login/once?{body}"), &[]).await,
    ] {
        assert_eq!((again.status.as_u16(), again.header("location")), (303, "/login?used=true"));
        assert!(again.headers.get("set-cookie").is_none());
    }
    assert!(portal.get("/login?used=true", &[]).await.text.contains("used already"));

    let late = code(&portal, "red").await;
    tokio::time::advance(Duration::from_secs(60)).await;
    let answer = portal.get(&format!("/login/once?code={late}"), &[]).await;
    assert_eq!(answer.header("location"), "/login?used=true");
    for wrong in ["", "?code=", "?code=garbage", "?code=%00"] {
        let answer = portal.get(&format!("/login/once{wrong}"), &[]).await;
        assert_eq!(answer.header("location"), "/login?used=true", "{wrong}");
    }
}

#[tokio::test]
async fn a_one_time_login_asks_first_and_names_the_person_whoever_brings_the_address() {
    let portal = GuardedPortal::new();
    let code = code(&portal, "red").await;
    let body = format!("code={code}");
    for headers in [
        &[FORM][..],
        &[FORM, ("sec-fetch-site", "cross-site"), ("origin", "null")],
        &[FORM, ("origin", "null")],
        &[FORM, ("sec-fetch-site", "cross-site"), ("origin", "https://evil.example")],
        &[FORM, ("origin", "https://evil.example")],
    ] {
        let asked = portal.ask("POST", "/login/once", headers, &body).await;
        assert_eq!((asked.status.as_u16(), asked.header("set-cookie")), (200, ""), "{headers:?}");
        assert!(asked.text.contains("Sign in as user-red") && asked.text.contains(&code), "{}", asked.text);
    }
    // `none`: the person typed the address, or opened a link of a mail.
    for site in ["cross-site", "same-site", "", "none", "same-origin"] {
        let asked = portal.get(&format!("/login/once?{body}"), &[("sec-fetch-site", site)]).await;
        assert_eq!((asked.status.as_u16(), asked.header("set-cookie")), (200, ""), "{site}");
    }
    // The person continues from our own page.
    let entered = portal.ask("POST", "/login/once", &[FORM, OWN], &body).await;
    assert_eq!((entered.status.as_u16(), entered.header("location")), (303, "/"));
    assert_eq!(portal.get("/", &[("cookie", &cookies(&entered))]).await.status, 200);
    let again = portal.ask("POST", "/login/once", &[FORM, OWN], &body).await;
    assert_eq!((again.header("location"), again.header("set-cookie")), ("/login?used=true", ""));
    let asked = portal.ask("POST", "/login/once", &[FORM], &body).await;
    assert_eq!(asked.header("location"), "/login?used=true");
}

#[tokio::test(start_paused = true)]
async fn a_one_time_login_takes_a_token_that_is_still_good_and_a_host_of_the_portal() {
    let portal = GuardedPortal::new();
    let cookie = cookies(&enter(&portal, "red", "").await);
    for headers in [&[][..], &[("authorization", "Bearer garbage")], &[("cookie", cookie.as_str()), OWN]] {
        let answer = portal.ask("POST", "/api/v1/login", headers, "").await;
        assert!([401, 403, 421].contains(&answer.status.as_u16()), "{headers:?} {}", answer.status);
        assert!(!answer.text.contains("good_for_seconds"), "{}", answer.text);
    }
    let code = code(&portal, "red").await;
    let address = format!("/login/once?code={code}");
    let mut request = crate::request("GET", &address).body(axum::body::Body::empty()).unwrap();
    request.headers_mut().insert("host", "evil.example".parse().unwrap());
    let elsewhere = crate::ask(&portal.router, request).await;
    assert_eq!((elsewhere.status.as_u16(), elsewhere.header("set-cookie")), (421, ""));
    portal.server.gone.lock().unwrap().insert("red".into());
    tokio::time::advance(Duration::from_secs(11)).await;
    let ended = portal.get(&address, &[]).await;
    assert_eq!((ended.header("location"), ended.header("set-cookie")), ("/login?ended=true", ""));
}

#[tokio::test]
async fn where_nobody_signs_in_there_is_no_code() {
    let portal = crate::portal(crate::fake::FakeViews::default());
    let request = crate::request("POST", "/api/v1/login").body(axum::body::Body::empty()).unwrap();
    let answer = crate::ask(&portal, request).await;
    assert_eq!(answer.json(), serde_json::json!({"code": "", "good_for_seconds": 0}));
    assert_eq!(crate::get(&portal, "/login/once?code=x").await.status, 404);
}
