//! HTTP itself: connections, routes, who may come in.

mod body;
pub mod conn;
mod guard;
mod routes;
mod serve;

pub use body::read as read_body;
pub use serve::{Error, Server};
