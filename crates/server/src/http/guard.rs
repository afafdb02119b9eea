//! Who may come in.

use axum::http::{HeaderMap, Method, header};

use crate::app::Config;
use crate::fault::{Fault, Kind};

/// Whether web pages of an origin may use the server: those of this machine, and those that were named.
pub fn origin_allowed(config: &Config, origin: &str) -> bool {
    config.origins.iter().any(|o| o == "*" || o == origin) || is_local(origin)
}

fn is_local(origin: &str) -> bool {
    let Some(host) = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://")) else { return false };
    let without_port = match host.rsplit_once(':') {
        Some((h, port)) if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => h,
        _ => host,
    };
    matches!(without_port, "localhost" | "127.0.0.1" | "[::1]")
}

/// Whether a server for this machine alone may be meant by that host. A page from elsewhere can have its own name lead to
/// this machine, and is then of the same origin as the server; its name stays in `Host`.
fn host_allowed(config: &Config, host: &str) -> bool {
    let name = bare(host);
    let named = |o: &String| o == "*" || o.split_once("://").is_some_and(|(_, h)| bare(h).eq_ignore_ascii_case(name));
    let ip = name.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    name.eq_ignore_ascii_case("localhost")
        || ip.is_ok_and(|ip| ip.is_loopback() || ip == config.listen.ip())
        || config.origins.iter().any(named)
}

/// A host without its port.
fn bare(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((h, port)) if (!h.contains(':') || h.ends_with(']')) && port.bytes().all(|b| b.is_ascii_digit()) => h,
        _ => host,
    }
}

/// Checks host, origin and key.
///
/// # Errors
/// [`Kind::Forbidden`] for a page from elsewhere, [`Kind::Unauthorized`] for a missing or wrong key.
pub fn check(config: &Config, method: &Method, path: &str, headers: &HeaderMap) -> Result<(), Fault> {
    let forbidden = |what: String| Err(Fault::new(Kind::Forbidden, what));
    // With a key nobody comes in by a name alone, and proxies pass names of their own on.
    if config.listen.ip().is_loopback() && config.api_key.is_none() {
        for host in headers.get_all(header::HOST) {
            let host = host.to_str().unwrap_or_default();
            if !host_allowed(config, host) {
                return forbidden(format!(
                    "this server is for this machine, not for {host:?}; --cors-origin with that host, or an --api-key, allows it"
                ));
            }
        }
    }
    let cross = headers.get("sec-fetch-site").is_some_and(|s| s == "cross-site");
    if cross && !headers.contains_key(header::ORIGIN) {
        return forbidden("pages from elsewhere may not use this server".into());
    }
    if let Some(origin) = headers.get(header::ORIGIN) {
        let origin = origin.to_str().unwrap_or_default();
        if !origin_allowed(config, origin) {
            return forbidden(format!("pages from {origin:?} may not use this server; --cors-origin allows it"));
        }
    }
    // Preflights carry no key; whether the server lives is no secret.
    let open = method == Method::OPTIONS || path == "/health" || path == "/";
    match &config.api_key {
        Some(key) if !open && !shown(headers).is_some_and(|k| same(k, key)) => {
            let what = "no valid API key: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`";
            Err(Fault::new(Kind::Unauthorized, what))
        }
        _ => Ok(()),
    }
}

fn shown(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok());
    let bearer = bearer.and_then(|v| v.split_once(' ')).filter(|(s, _)| s.eq_ignore_ascii_case("bearer"));
    bearer.map(|(_, k)| k.trim()).or_else(|| headers.get("x-api-key")?.to_str().ok())
}

/// Compares in a time that does not tell how far two keys agree.
fn same(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |d, (x, y)| d | (x ^ y)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_of_this_machine_and_named_ones_may_come() {
        let config = Config { origins: vec!["https://chat.example".into()], ..Config::default() };
        for (origin, right) in [
            ("http://localhost", true),
            ("http://localhost:3000", true),
            ("https://127.0.0.1:8443", true),
            ("http://[::1]:5173", true),
            ("https://chat.example", true),
            ("http://chat.example", false),
            ("https://evil.example", false),
            ("http://localhost.evil.example", false),
            ("http://localhost:3000.evil.example", false),
            ("null", false),
            ("", false),
        ] {
            assert_eq!(origin_allowed(&config, origin), right, "{origin}");
        }
        assert!(origin_allowed(&Config { origins: vec!["*".into()], ..Config::default() }, "https://evil.example"));
    }

    #[test]
    fn only_hosts_that_mean_this_machine_may_be_asked_for() {
        let may = |config: &Config, host: &str, site: Option<&str>| {
            let mut h = HeaderMap::new();
            h.insert(header::HOST, host.parse().unwrap());
            site.into_iter().for_each(|s| _ = h.insert("sec-fetch-site", s.parse().unwrap()));
            check(config, &Method::POST, "/v1/models", &h).map_err(|f| f.status())
        };
        let usual = Config::default();
        for host in ["localhost", "LocalHost:8080", "127.0.0.1:8080", "127.9.9.9", "[::1]:8080", "[::1]"] {
            assert_eq!(may(&usual, host, None), Ok(()), "{host}");
        }
        for host in
            ["evil.example", "evil.example:8080", "localhost.evil.example", "10.0.0.1", "", "127.0.0.1.nip.example"]
        {
            assert_eq!(may(&usual, host, None), Err(403), "{host}");
        }
        let named = Config { origins: vec!["https://chat.example:8443".into()], ..Config::default() };
        assert_eq!((may(&named, "chat.example", None), may(&named, "other.example", None)), (Ok(()), Err(403)));
        let keyed = Config { api_key: Some("k".into()), ..Config::default() };
        assert_eq!(may(&keyed, "chat.example", None), Err(401), "the key decides");
        let open = Config { listen: ([0, 0, 0, 0], 80).into(), allow_open: true, ..Config::default() };
        assert_eq!(may(&open, "box.lan", None), Ok(()));
        assert_eq!(may(&usual, "localhost", Some("cross-site")), Err(403));
        assert_eq!(may(&usual, "localhost", Some("same-origin")), Ok(()));
    }

    #[test]
    fn a_key_is_taken_in_both_forms_and_no_other_is() {
        let config = Config { api_key: Some("secret".into()), ..Config::default() };
        let may = |name: &'static str, value: &str, path: &str| {
            let mut h = HeaderMap::new();
            h.insert(name, value.parse().unwrap());
            check(&config, &Method::POST, path, &h).map_err(|f| f.status())
        };
        assert_eq!(may("authorization", "Bearer secret", "/v1/models"), Ok(()));
        assert_eq!(may("authorization", "bearer secret", "/v1/models"), Ok(()));
        assert_eq!(may("x-api-key", "secret", "/v1/models"), Ok(()));
        assert_eq!(may("x-api-key", "secre", "/v1/models"), Err(401));
        assert_eq!(may("authorization", "secret", "/v1/models"), Err(401));
        assert_eq!(may("x-nothing", "", "/v1/models"), Err(401));
        assert_eq!(may("x-nothing", "", "/health"), Ok(()));
    }
}
