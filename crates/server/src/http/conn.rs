//! A connection that tells a client that is gone from one that only has nothing more to say.
//!
//! A client may close its sending half once its request is out and still wait for the answer. On the wire that looks like
//! a client that went away, until something is written. So while a request is being answered the end of input is kept
//! from the HTTP code, and whoever writes the answer is told: it then writes something harmless every now and then, which
//! fails at once if nobody is there.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// What a request knows of its connection.
#[derive(Clone, Debug)]
pub struct Conn {
    link: Arc<Link>,
    request_id: Arc<str>,
}

/// The state of a connection.
#[derive(Debug)]
pub struct Link {
    peer: SocketAddr,
    busy: AtomicUsize,
    half_closed: AtomicBool,
    noticed: Notify,
    reader: Mutex<Option<Waker>>,
}

impl Conn {
    /// A request on a connection.
    pub fn new(link: Arc<Link>, request_id: &str) -> Self {
        Self { link, request_id: request_id.into() }
    }

    /// The request's id.
    pub fn request_id(&self) -> &str {
        &self.request_id
    }

    /// Whether the client said that it will send nothing more; it may also be gone.
    pub fn is_half_closed(&self) -> bool {
        self.link.half_closed.load(Ordering::Acquire)
    }

    /// Waits until [`is_half_closed`](Self::is_half_closed).
    pub async fn half_closes(&self) {
        loop {
            let notified = self.link.noticed.notified();
            if self.is_half_closed() {
                return;
            }
            notified.await;
        }
    }
}

impl Link {
    /// Of a new connection.
    pub fn new(peer: SocketAddr) -> Arc<Self> {
        Arc::new(Self {
            peer,
            busy: AtomicUsize::new(0),
            half_closed: AtomicBool::new(false),
            noticed: Notify::new(),
            reader: Mutex::new(None),
        })
    }

    /// The other end.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// A request is being answered until the result is dropped.
    pub fn answering(self: &Arc<Self>) -> Busy {
        self.busy.fetch_add(1, Ordering::AcqRel);
        Busy(Arc::clone(self))
    }
}

/// A request is being answered.
#[derive(Debug)]
pub struct Busy(Arc<Link>);

impl Drop for Busy {
    fn drop(&mut self) {
        if self.0.busy.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(w) = self.0.reader.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            w.wake();
        }
    }
}

/// A socket that keeps the end of input to itself while a request is being answered.
#[derive(Debug)]
pub struct Io {
    socket: TcpStream,
    link: Arc<Link>,
}

impl Io {
    /// Around a socket.
    pub fn new(socket: TcpStream, link: Arc<Link>) -> Self {
        Self { socket, link }
    }
}

impl AsyncRead for Io {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let (before, room) = (buf.filled().len(), buf.remaining());
        if !self.link.half_closed.load(Ordering::Acquire) {
            match Pin::new(&mut self.socket).poll_read(cx, buf) {
                Poll::Ready(Ok(())) if buf.filled().len() == before && room > 0 => {
                    self.link.half_closed.store(true, Ordering::Release);
                    self.link.noticed.notify_waiters();
                }
                other => return other,
            }
        }
        // The waker is left before the look, so that an answer that ends meanwhile is not missed.
        *self.link.reader.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
        if self.link.busy.load(Ordering::Acquire) > 0 { Poll::Pending } else { Poll::Ready(Ok(())) }
    }
}

impl AsyncWrite for Io {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, buf)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, bufs)
    }
}
