//! OpenAI's responses.

mod items;
mod parse;
mod render;
pub mod store;
mod tools;

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::json;

use crate::app::App;
use crate::fault::{Fault, Kind};
use crate::http::{conn::Conn, read_body};
use crate::info::{Id, named};
use crate::pump;

pub use parse::request as read;

/// `POST /v1/responses`.
pub async fn create(
    State(app): State<Arc<App>>,
    Extension(conn): Extension<Conn>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Fault> {
    let body = read_body(&app.config, &headers, body).await?;
    let (request, about) = parse::request(&body, &app.store)?;
    let ready = app.arrived().await?;
    let model = request.model.clone().unwrap_or_else(|| ready.backend.facts().name.clone());
    let voice = Arc::clone(&ready.voice);
    let render = render::Responses::new(model, voice, Arc::clone(&app), &request, about);
    pump::answer(&app, request, conn, render).await
}

fn unknown(id: &str) -> Fault {
    Fault::new(
        Kind::NotFound,
        format!("there is no response {id:?}; they are kept until the server ends, at most a few hundred"),
    )
}

/// `GET /v1/responses/{id}`.
pub async fn retrieve(State(app): State<Arc<App>>, id: Id) -> Result<Response, Fault> {
    let id = named(id);
    let kept = app.store.get(&id).ok_or_else(|| unknown(&id))?;
    Ok(pump::json(StatusCode::OK, &kept.response))
}

/// `DELETE /v1/responses/{id}`.
pub async fn delete(State(app): State<Arc<App>>, id: Id) -> Result<Response, Fault> {
    let id = named(id);
    if !app.store.remove(&id) {
        return Err(unknown(&id));
    }
    Ok(pump::json(StatusCode::OK, &json!({"id": id, "object": "response", "deleted": true})))
}
