//! Which path is answered by whom, and what all of them have around them.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use super::conn::{Conn, Link};
use super::guard;
use crate::app::App;
use crate::fault::{Fault, Kind};
use crate::pump::json;
use crate::wire::Wire;
use crate::{chat, ids, info, messages, responses};

/// All routes.
pub fn router(app: &Arc<App>) -> Router {
    let routes = Router::new()
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/completions", post(chat::complete))
        .route("/v1/responses", post(responses::create))
        .route("/v1/responses/{id}", get(responses::retrieve).delete(responses::delete))
        .route("/v1/messages", post(messages::create))
        .route("/v1/messages/count_tokens", post(messages::count))
        .route("/v1/models", get(info::models))
        .route("/v1/models/{*id}", get(info::model))
        .route("/v1/plan", get(info::plan))
        .route("/v1/requests", get(info::requests))
        .route("/tokenize", post(info::tokenize))
        .route("/detokenize", post(info::detokenize))
        .route("/health", get(info::health))
        .route("/metrics", get(info::metrics))
        .route("/", get(info::root))
        .fallback(|request: Request| async move {
            let path = request.uri().path();
            let meant = meant(path).map(|p| format!("; perhaps {p} is meant")).unwrap_or_default();
            Wire::of(path, request.headers())
                .response(&Fault::new(Kind::NotFound, format!("there is nothing at {path}{meant}")))
        })
        .method_not_allowed_fallback(|request: Request| async move {
            let (method, path) = (request.method(), request.uri().path());
            Wire::of(path, request.headers())
                .response(&Fault::new(Kind::Method, format!("{path} does not take {method}")))
        })
        .with_state(Arc::clone(app));
    let allowed = Arc::clone(app);
    let origins = AllowOrigin::predicate(move |origin, _| {
        origin.to_str().is_ok_and(|o| guard::origin_allowed(&allowed.config, o))
    });
    let cors = CorsLayer::new()
        .allow_origin(origins)
        .allow_methods([Method::GET, Method::POST, Method::DELETE, Method::HEAD])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([HeaderName::from_static("x-request-id")]);
    routes.layer(cors).layer(from_fn_with_state(Arc::clone(app), around))
}

/// The path that a client with one `/v1` too many or too few in its address wants.
fn meant(path: &str) -> Option<String> {
    const PATHS: [&str; 6] =
        ["/chat/completions", "/completions", "/responses", "/messages", "/messages/count_tokens", "/models"];
    let mut rest = path.trim_end_matches('/');
    while let Some(r) = rest.strip_prefix("/v1") {
        rest = r;
    }
    PATHS.contains(&rest).then(|| format!("/v1{rest}"))
}

/// Names the request, lets it in or not, and notes what became of it. No content is logged.
async fn around(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let id = request_id(&request);
    if let Some(link) = request.extensions().get::<Arc<Link>>().cloned() {
        request.extensions_mut().insert(Conn::new(link, &id));
    }
    // Metrics have one line for a route, not for every path somebody tries.
    let route = request.extensions().get::<MatchedPath>().map_or_else(|| "other".to_owned(), |m| m.as_str().to_owned());
    let wire = Wire::of(&path, request.headers());
    let mut response = match guard::check(&app.config, &method, &path, request.headers()) {
        Ok(()) => next.run(request).await,
        Err(fault) => wire.response(&fault),
    };
    for name in ["x-request-id", "request-id"] {
        if let Ok(value) = HeaderValue::from_str(&id) {
            response.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    let status = response.status().as_u16();
    app.metrics.responded(&route, status);
    tracing::info!(request = id, %method, route, status, ms = begun.elapsed().as_millis() as u64, "request");
    response
}

/// The client's own id if it is harmless, else a new one.
fn request_id(request: &Request) -> String {
    let given = request.headers().get("x-request-id").and_then(|v| v.to_str().ok());
    let harmless =
        |s: &&str| (1..=128).contains(&s.len()) && s.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    given.filter(harmless).map_or_else(|| ids::id("req_"), str::to_owned)
}

impl IntoResponse for Fault {
    /// In OpenAI's form, for routes that have no other.
    fn into_response(self) -> Response {
        Wire::OpenAi.response(&self)
    }
}

impl Wire {
    /// An error in this dialect's form.
    pub fn response(self, fault: &Fault) -> Response {
        let status = StatusCode::from_u16(self.status(fault)).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = json(status, &self.fault(fault));
        if matches!(fault.kind, Kind::Full | Kind::Unavailable) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("2"));
        }
        response
    }
}
