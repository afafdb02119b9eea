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

/// Checks origin and key.
///
/// # Errors
/// [`Kind::Forbidden`] for a page from elsewhere, [`Kind::Unauthorized`] for a missing or wrong key.
pub fn check(config: &Config, method: &Method, path: &str, headers: &HeaderMap) -> Result<(), Fault> {
    if let Some(origin) = headers.get(header::ORIGIN) {
        let origin = origin.to_str().unwrap_or_default();
        if !origin_allowed(config, origin) {
            let what = format!("pages from {origin:?} may not use this server; --cors-origin allows it");
            return Err(Fault::new(Kind::Forbidden, what));
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
