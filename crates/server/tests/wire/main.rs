//! The server as clients meet it: over sockets, with a scripted model.

mod access;
mod chunks;
mod fold;
mod history;
mod lifecycle;
mod limits;
mod messages;
mod requests;
mod responses;
mod reuse;
mod rig;
mod streams;
mod tools;
