//! Routes about the server and its model.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use text::Specials;

use crate::app::{App, Ready};
use crate::fault::{Fault, Kind};
use crate::http::read_body;
use crate::json::{self, Fields};
use crate::pump::json as ok;
use crate::wire::Wire;

type Shared = State<Arc<App>>;

/// An id in a path, which may be bytes that are no text.
pub type Id = Result<Path<String>, PathRejection>;

/// An id; one that is no text is nobody's.
pub fn named(id: Id) -> String {
    id.map_or_else(|_| String::from(char::REPLACEMENT_CHARACTER), |Path(id)| id)
}

/// `GET /`, `HEAD /`.
pub async fn root() -> &'static str {
    "snug\n"
}

/// `GET /health`.
pub async fn health(State(app): Shared) -> Response {
    let (status, body) = app.health();
    ok(StatusCode::from_u16(status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE), &body)
}

/// `GET /metrics`.
pub async fn metrics(State(app): Shared) -> Response {
    let load = app.loading.get().map(|r| r.backend.load()).unwrap_or_default();
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], app.metrics.text(load)).into_response()
}

/// `GET /v1/models`: OpenAI's list, with the same under the name Codex looks for.
pub async fn models(State(app): Shared) -> Result<Response, Fault> {
    let ready = app.ready()?;
    let f = ready.backend.facts();
    let codex = json!({
        "slug": f.name, "display_name": f.name, "context_window": f.context, "supports_reasoning": ready.reasons(),
    });
    Ok(ok(
        StatusCode::OK,
        &json!({"object": "list", "data": [describe(&app, ready)], "models": [codex],
        "has_more": false, "first_id": f.name, "last_id": f.name}),
    ))
}

/// `GET /v1/models/{id}`.
pub async fn model(State(app): Shared, headers: HeaderMap, id: Id) -> Response {
    let found = || {
        let ready = app.ready()?;
        let f = ready.backend.facts();
        let id = named(id);
        if id != f.name && !f.aliases.contains(&id) {
            let what = format!("there is no model {id:?} here; there is {:?}", f.name);
            return Err(Fault::new(Kind::NotFound, what));
        }
        Ok(ok(StatusCode::OK, &describe(&app, ready)))
    };
    found().unwrap_or_else(|f| Wire::of("/v1/models", &headers).response(&f))
}

fn describe(app: &App, ready: &Ready) -> Value {
    let f = ready.backend.facts();
    let mut capabilities = vec!["completion"];
    if ready.voice.template.is_some() {
        capabilities.extend(["chat", "structured_output"]);
    }
    if ready.voice.calls() {
        capabilities.push("tools");
    }
    if ready.reasons() {
        capabilities.push("reasoning");
    }
    json!({
        "id": f.name, "aliases": f.aliases, "object": "model", "type": "model", "created": app.created,
        "created_at": text::rfc3339(app.created as i64), "owned_by": "snug",
        "display_name": f.name, "architecture": f.architecture, "context_length": f.context,
        "context_window": f.context, "max_model_len": f.context, "trained_context_length": f.trained_context,
        "max_output_tokens": f.context - 1, "vocab_size": f.vocab, "parallel": f.parallel,
        "dialect": ready.voice.dialect.name(), "capabilities": capabilities,
        "input_modalities": ["text"], "output_modalities": ["text"],
    })
}

impl Ready {
    /// Whether it can reason.
    pub fn reasons(&self) -> bool {
        self.voice.template.is_some() && self.voice.dialect.reasoning_end().is_some()
    }
}

/// `GET /v1/plan`.
pub async fn plan(State(app): Shared) -> Result<Response, Fault> {
    Ok(ok(StatusCode::OK, &app.ready()?.backend.plan()))
}

/// `GET /v1/requests`.
pub async fn requests(State(app): Shared) -> Response {
    let load = app.loading.get().map(|r| r.backend.load()).unwrap_or_default();
    let queue = json!({"running": load.running, "waiting": load.waiting, "places": load.places});
    ok(StatusCode::OK, &json!({"requests": app.registry.list(), "ended": app.registry.ended(), "queue": queue}))
}

/// `POST /tokenize`: `{"text" or "content": "...", "add_special": false, "parse_special": true}`.
pub async fn tokenize(State(app): Shared, headers: HeaderMap, body: Body) -> Result<Response, Fault> {
    let map = json::object(&read_body(&app.config, &headers, body).await?)?;
    let ids = blocking(&app, move |ready| {
        let f = Fields::of(&map);
        let text = f.str("content")?.or(f.str("text")?).ok_or_else(|| f.wrong("content", "is missing"))?;
        let parse = f.bool("parse_special")?.unwrap_or(true);
        let specials = if parse { Specials::Parse } else { Specials::Plain };
        let t = &ready.voice.tokenizer;
        let mut ids = t.encode(text, specials)?;
        if f.bool("add_special")?.unwrap_or(false)
            && let (true, Some(bos)) = (t.add_bos(), t.bos())
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        Ok(ids)
    });
    let ids = ids.await?;
    Ok(ok(StatusCode::OK, &json!({"tokens": ids, "count": ids.len()})))
}

/// `POST /detokenize`: `{"tokens": [1, 2], "skip_special": false}`.
pub async fn detokenize(State(app): Shared, headers: HeaderMap, body: Body) -> Result<Response, Fault> {
    let map = json::object(&read_body(&app.config, &headers, body).await?)?;
    let text = blocking(&app, move |ready| {
        let f = Fields::of(&map);
        let given = f.array("tokens")?.ok_or_else(|| f.wrong("tokens", "is missing"))?;
        let vocab = ready.voice.tokenizer.vocab_size();
        let id = |(i, v): (usize, &Value)| {
            let id = v.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| *n < vocab);
            id.ok_or_else(|| f.wrong(&format!("tokens[{i}]"), format_args!("{v} is no token id below {vocab}")))
        };
        let ids = given.iter().enumerate().map(id).collect::<Result<Vec<_>, _>>()?;
        Ok(ready.voice.tokenizer.decode(&ids, f.bool("skip_special")?.unwrap_or(false)))
    });
    let text = text.await?;
    Ok(ok(StatusCode::OK, &json!({"content": text, "text": text})))
}

/// Runs work on texts where it holds up no connection.
///
/// # Errors
/// Its own.
pub async fn blocking<T: Send + 'static>(
    app: &Arc<App>,
    f: impl FnOnce(&Ready) -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    let app = Arc::clone(app);
    let done = tokio::task::spawn_blocking(move || f(app.ready()?)).await;
    done.map_err(|_| Fault::new(Kind::Internal, "the request's reader panicked"))?
}
