//! Anthropic's messages.

mod known;
mod parse;
mod render;

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::json;

use crate::app::App;
use crate::fault::Fault;
use crate::http::{conn::Conn, read_body};
use crate::info::blocking;
use crate::pump;
use crate::wire::Wire;

pub use parse::request as read;

/// `POST /v1/messages`.
pub async fn create(
    State(app): State<Arc<App>>,
    Extension(conn): Extension<Conn>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let body = read_body(&app.config, &headers, body).await?;
        let request = parse::request(&body, &app.config, true)?;
        let ready = app.arrived().await?;
        let model = request.model.clone().unwrap_or_else(|| ready.backend.facts().name.clone());
        pump::answer(&app, request, conn, render::Messages::new(model)).await
    };
    answer.await.unwrap_or_else(|f: Fault| Wire::Anthropic.response(&f))
}

/// `POST /v1/messages/count_tokens`: the prompt's exact length. It needs no place in the queue.
pub async fn count(State(app): State<Arc<App>>, headers: HeaderMap, body: Body) -> Response {
    let answer = async {
        let body = read_body(&app.config, &headers, body).await?;
        let request = parse::request(&body, &app.config, false)?;
        app.arrived().await?;
        let n = blocking(&app, move |ready| Ok(ready.voice.prepare(&request)?.ids.len())).await?;
        Ok(pump::json(StatusCode::OK, &json!({"input_tokens": n})))
    };
    answer.await.unwrap_or_else(|f: Fault| Wire::Anthropic.response(&f))
}
