//! Listens, accepts, and stops in good order.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tower::ServiceExt;

use super::conn::{Io, Link};
use super::routes;
use crate::app::{App, Config, Loading};

/// Largest head of a request in bytes, and most headers.
const MAX_HEAD: usize = 64 << 10;
const MAX_HEADERS: usize = 128;
/// How long the last words of answers that are broken off have to reach their clients.
const TO_TELL: Duration = Duration::from_millis(500);

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Other machines could use it.
    #[error(
        "{0} can be reached from other machines: give an --api-key that clients must show, or say --allow-open if \
         everybody there may use it"
    )]
    Open(SocketAddr),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
}

/// A server that listens.
pub struct Server {
    app: Arc<App>,
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Listens; answers only once [`run`](Self::run) is awaited.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn bind(config: Config, loading: Loading) -> Result<Self, Error> {
        let address = config.listen;
        if !address.ip().is_loopback() && config.api_key.is_none() && !config.allow_open {
            return Err(Error::Open(address));
        }
        let refused = |source| Error::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        Ok(Self { app: Arc::new(App::new(config, loading)), listener, address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is done; then takes no new requests, lets those that are there end for a while, and returns.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let router = routes::router(&self.app);
        let places = Arc::new(Semaphore::new(self.app.config.max_connections));
        let (tell, told) = watch::channel(false);
        let mut connections = JoinSet::new();
        tokio::pin!(stop);
        loop {
            let accepted = tokio::select! {
                () = &mut stop => break,
                Some(_) = connections.join_next() => continue,
                accepted = accept(&self.listener, &places) => accepted,
            };
            let Some((socket, peer, place)) = accepted else { continue };
            let (router, told, patience) = (router.clone(), told.clone(), self.app.config.patience);
            connections.spawn(async move {
                connection(socket, peer, router, patience, told).await;
                drop(place);
            });
        }
        drop(self.listener);
        self.app.stopping.store(true, Ordering::Relaxed);
        tracing::info!(connections = connections.len(), "stopping");
        // Nobody listening means that there are no connections.
        let _ = tell.send(true);
        if !ended(&mut connections, self.app.config.drain).await {
            tracing::warn!("requests did not end in time and are broken off");
            // Their clients are told, which takes a moment.
            self.app.cut_off();
            ended(&mut connections, TO_TELL).await;
        }
        connections.shutdown().await;
    }
}

/// Waits for connections to end, no longer than that; whether all have.
async fn ended(connections: &mut JoinSet<()>, most: Duration) -> bool {
    let all = async { while connections.join_next().await.is_some() {} };
    tokio::time::timeout(most, all).await.is_ok()
}

type Accepted = (TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit);

async fn accept(listener: &TcpListener, places: &Arc<Semaphore>) -> Option<Accepted> {
    let place = Arc::clone(places).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((socket, peer)) => Some((socket, peer, place)),
        Err(e) => {
            // Out of descriptors, most likely: others must end first.
            tracing::warn!(error = %e, "cannot accept a connection");
            tokio::time::sleep(Duration::from_millis(50)).await;
            None
        }
    }
}

async fn connection(
    socket: TcpStream,
    peer: SocketAddr,
    router: Router,
    patience: Duration,
    mut stop: watch::Receiver<bool>,
) {
    // Tokens are small and must not wait for each other.
    let _ = socket.set_nodelay(true);
    let link = Link::new(peer);
    let io = TokioIo::new(Io::new(socket, Arc::clone(&link)));
    let service = service_fn(move |mut request: Request<Incoming>| {
        let (router, busy) = (router.clone(), link.answering());
        request.extensions_mut().insert(Arc::clone(&link));
        async move {
            let response = router.oneshot(request.map(Body::new)).await?;
            Ok::<_, std::convert::Infallible>(response.map(|body| {
                body.map_frame(move |frame| {
                    let _ = &busy;
                    frame
                })
            }))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(patience)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS)
        .serve_connection(io, service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = async { _ = stop.wait_for(|s| *s).await } => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(e) = ended {
        tracing::debug!(%peer, error = %e, "connection ended");
    }
}
