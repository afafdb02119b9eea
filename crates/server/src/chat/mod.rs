//! OpenAI's chat completions, and the older completions.

mod complete;
mod parse;
pub mod render;

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;

use crate::app::App;
use crate::fault::Fault;
use crate::http::{conn::Conn, read_body};
use crate::pump;

pub use complete::request as read_completion;
pub use parse::request as read;
pub use parse::{chosen, format, is_providers, leave_out, parsed, reasoning, tool, tool_choice, with_effort};
pub use render::finite;

/// `POST /v1/chat/completions`.
pub async fn create(
    State(app): State<Arc<App>>,
    Extension(conn): Extension<Conn>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Fault> {
    let body = read_body(&app.config, &headers, body).await?;
    let (request, options) = parse::request(&body)?;
    let ready = app.arrived().await?;
    let model = request.model.clone().unwrap_or_else(|| ready.backend.facts().name.clone());
    let voice = Arc::clone(&ready.voice);
    let render = render::Chat::new(model, voice, options);
    pump::answer(&app, request, conn, render).await
}

/// `POST /v1/completions`.
pub async fn complete(
    State(app): State<Arc<App>>,
    Extension(conn): Extension<Conn>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Fault> {
    let body = read_body(&app.config, &headers, body).await?;
    let (request, options) = complete::request(&body)?;
    let ready = app.arrived().await?;
    let model = request.model.clone().unwrap_or_else(|| ready.backend.facts().name.clone());
    let voice = Arc::clone(&ready.voice);
    let render = complete::Completions::new(model, voice, &request, options);
    pump::answer(&app, request, conn, render).await
}
