//! Identifies the user of a request: static tokens, tokens issued to service accounts, and anonymous.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use http::{HeaderMap, HeaderValue};
use serde_json::{Value, json};

use crate::apiserver::cluster::rights::{self, AccessAction};
use crate::apiserver::cluster::shared::SharedCluster;
use crate::apiserver::store::record::key;
use crate::apiserver::values::ident;
use crate::apiserver::values::lock::locked;
use crate::apiserver::values::user::ClusterUser;
use crate::apiserver::wire::error::ApiError;
use crate::apiserver::wire::query::percent_decode;

/// The audience of a token that names none.
pub const DEFAULT_AUDIENCE: &str = "https://kubernetes.default.svc.cluster.local";

/// How many tokens of service accounts are known at a time. The first to expire is forgotten first.
const MAX_ISSUED: usize = 10_000;

/// The default lifetime of an issued token.
const DEFAULT_LIFE_SECONDS: i64 = 3600;

/// A token that is valid from the start.
#[derive(Debug, Clone)]
pub struct TokenUser {
    pub token: String,
    pub user: String,
    pub groups: Vec<String>,
}

#[derive(Clone)]
struct IssuedToken {
    namespace: String,
    name: String,
    /// Valid for this incarnation of the account only; `None` for any.
    uid: Option<String>,
    audiences: Vec<String>,
    expires: i64,
    /// Identifies this token among those of its account, as logs and reviews do.
    id: String,
}

/// The key under which a review names the token, as in a real server.
const CREDENTIAL: &str = "authentication.kubernetes.io/credential-id";

/// The tokens that are valid now.
#[derive(Default)]
pub struct ValidTokens {
    fixed: HashMap<String, ClusterUser>,
    issued: Mutex<HashMap<String, IssuedToken>>,
}

impl ValidTokens {
    pub fn new(users: &[TokenUser]) -> Self {
        let fixed = users.iter().map(|entry| {
            let mut groups = entry.groups.clone();
            if !groups.iter().any(|g| g == "system:authenticated") {
                groups.push("system:authenticated".into());
            }
            (entry.token.clone(), ClusterUser { name: entry.user.clone(), groups, ..ClusterUser::default() })
        });
        ValidTokens { fixed: fixed.collect(), issued: Mutex::default() }
    }
}

/// The user of a request by its `Authorization` header, or else by the token in front of its path.
pub fn authenticate(
    shared: &SharedCluster,
    authorization: Option<&str>,
    path: Option<&str>,
) -> Result<ClusterUser, ApiError> {
    let Some(token) = authorization.and_then(|a| a.strip_prefix("Bearer ")).or(path) else {
        return Ok(ClusterUser::anonymous());
    };
    review(shared, token.trim(), &[]).map(|(user, _)| user).map_err(|_| ApiError::unauthorized())
}

/// The user for whom somebody claims to act, if that is allowed.
pub fn impersonate(
    shared: &SharedCluster,
    user: ClusterUser,
    headers: &HeaderMap,
) -> Result<ClusterUser, ApiError> {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let Some(name) = headers.get("impersonate-user").map(text).filter(|name| !name.is_empty()) else {
        return Ok(user);
    };
    let mut groups: Vec<String> = headers.get_all("impersonate-group").iter().map(text).collect();
    let uid = headers.get("impersonate-uid").map(text).unwrap_or_default();
    let mut extra = BTreeMap::<String, Vec<String>>::new();
    for (header, value) in headers {
        if let Some(key) = header.as_str().strip_prefix("impersonate-extra-") {
            let key = percent_decode(key);
            extra.entry(key).or_default().push(text(value));
        }
    }
    let action = |resource: &str, name: &str| AccessAction {
        verb: "impersonate".into(),
        resource: resource.into(),
        name: name.into(),
        ..AccessAction::default()
    };
    let of_tokens = |action: AccessAction| AccessAction { group: "authentication.k8s.io".into(), ..action };
    let mut asked = vec![action("users", &name)];
    asked.extend(groups.iter().map(|group| action("groups", group)));
    asked.extend(Some(&uid).filter(|uid| !uid.is_empty()).map(|uid| of_tokens(action("uids", uid))));
    for (key, values) in &extra {
        let of_key = |value: &String| AccessAction {
            subresource: key.clone(),
            ..of_tokens(action("userextras", value))
        };
        asked.extend(values.iter().map(of_key));
    }
    for action in asked.iter().filter(|_| shared.options.enforce_rbac) {
        if rights::allowed(shared, &user, action).is_none() {
            let (resource, name) = (&action.resource, crate::apiserver::wire::error::quoted(&action.name));
            let why = format!("{resource} {name} is forbidden: {}", action.refusal(&user));
            return Err(ApiError::new(403, "Forbidden", why));
        }
    }
    groups.push("system:authenticated".into());
    Ok(ClusterUser { name, uid, groups, extra })
}

const UNKNOWN: &str = "invalid bearer token";

/// The account of a token, and its valid audiences among the requested ones; without requested audiences,
/// this server itself. An error says why it is invalid, in the words of the real server.
pub fn review(
    shared: &SharedCluster,
    token: &str,
    audiences: &[String],
) -> Result<(ClusterUser, Vec<String>), String> {
    let own = [DEFAULT_AUDIENCE.to_owned()];
    let audiences = if audiences.is_empty() { &own } else { audiences };
    let common = |of: &[String]| of.iter().filter(|a| audiences.contains(a)).cloned().collect::<Vec<_>>();
    if let Some(user) = shared.tokens.fixed.get(token) {
        let common = common(&own);
        return if common.is_empty() { Err(UNKNOWN.to_owned()) } else { Ok((user.clone(), common)) };
    }
    let entry = locked(&shared.tokens.issued).get(token).cloned().ok_or(UNKNOWN)?;
    let refused = |why: String| Err(format!("[{UNKNOWN}, {why}]"));
    if entry.expires <= ident::unix_now() {
        return refused("service account token has expired".into());
    }
    let common = common(&entry.audiences);
    if common.is_empty() {
        return refused(format!(
            "token audiences {:?} is invalid for the target audiences {audiences:?}",
            entry.audiences
        ));
    }
    let accounts = shared.place("", "serviceaccounts", &entry.namespace).map_err(|error| error.message)?;
    let account = shared.store.get(accounts.table, &key(&entry.namespace, &entry.name));
    let now = account.map(|a| a.uid.to_string());
    // The token of an account that was deleted, or created again, is invalid.
    if entry.uid.is_some() && entry.uid != now {
        return refused("service account token has been invalidated".into());
    }
    let mut user = ClusterUser::service_account(&entry.namespace, &entry.name, &now.unwrap_or_default());
    user.extra.insert(CREDENTIAL.into(), vec![format!("JTI={}", entry.id)]);
    Ok((user, common))
}

/// Issues a token to a service account. Returns it with its expiry, in seconds since 1970.
pub fn issue(
    shared: &SharedCluster,
    namespace: &str,
    name: &str,
    uid: Option<String>,
    audiences: Vec<String>,
    seconds: Option<i64>,
) -> (String, i64) {
    let now = ident::unix_now();
    let expires = now + seconds.unwrap_or(DEFAULT_LIFE_SECONDS);
    let token = format!("sa.{namespace}.{name}.{}", shared.random.token());
    let audiences = if audiences.is_empty() { vec![DEFAULT_AUDIENCE.to_owned()] } else { audiences };
    let id = shared.random.uid();
    let entry = IssuedToken { namespace: namespace.into(), name: name.into(), uid, audiences, expires, id };
    shared.store.note(&entry.to_note(&token));
    shared.tokens.take(token.clone(), entry, now);
    (token, expires)
}

impl IssuedToken {
    /// In the form of the store's file, for a server that is killed and started again.
    fn to_note(&self, token: &str) -> Value {
        json!({
            "token": token, "namespace": self.namespace, "name": self.name, "uid": self.uid,
            "audiences": self.audiences, "expires": self.expires, "id": self.id,
        })
    }

    fn from_note(note: &Value) -> Option<(String, Self)> {
        let text = |name: &str| note[name].as_str().map(str::to_owned);
        let audiences = note["audiences"].as_array()?.iter().filter_map(|a| a.as_str().map(str::to_owned));
        let entry = IssuedToken {
            namespace: text("namespace")?,
            name: text("name")?,
            uid: text("uid"),
            audiences: audiences.collect(),
            expires: note["expires"].as_i64()?,
            id: text("id")?,
        };
        Some((text("token")?, entry))
    }
}

impl ValidTokens {
    /// Restores the tokens that were issued before a restart.
    pub fn restore(&self, notes: &[Value]) {
        for (token, entry) in notes.iter().filter_map(IssuedToken::from_note) {
            self.take(token, entry, ident::unix_now());
        }
    }

    fn take(&self, token: String, entry: IssuedToken, now: i64) {
        let mut issued = locked(&self.issued);
        if issued.len() >= MAX_ISSUED {
            issued.retain(|_, entry| entry.expires > now);
            let first = issued.iter().min_by_key(|(_, e)| e.expires).map(|(token, _)| token.clone());
            if let Some(first) = first.filter(|_| issued.len() >= MAX_ISSUED) {
                issued.remove(&first);
            }
        }
        issued.insert(token, entry);
    }
}
