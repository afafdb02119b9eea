//! Bodies: bounded in bytes and in silence.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use http_body_util::BodyExt;
use tokio::time::timeout;

use crate::app::Config;
use crate::fault::{Fault, Kind};

/// Throws away what comes of a body, within bounds: most clients send all of it before they read the answer, and one who
/// is hung up on meanwhile never sees why.
async fn drain(body: &mut Body) {
    /// Most bytes, longest time, longest silence.
    const BYTES: usize = 64 << 20;
    const TIME: Duration = Duration::from_secs(5);
    const SILENCE: Duration = Duration::from_millis(300);
    let all = async {
        let mut seen = 0;
        while let Ok(Some(Ok(frame))) = timeout(SILENCE, body.frame()).await {
            seen += frame.data_ref().map_or(0, bytes::Bytes::len);
            if seen > BYTES {
                return;
            }
        }
    };
    // Whatever is left then, the answer goes out.
    let _ = timeout(TIME, all).await;
}

/// Reads a request's body.
///
/// # Errors
/// Too large, compressed, too slow or broken off.
pub async fn read(config: &Config, headers: &HeaderMap, mut body: Body) -> Result<Vec<u8>, Fault> {
    let too_large =
        || Fault::new(Kind::TooLarge, format!("the body is larger than the {} bytes allowed", config.max_body));
    if let Some(coding) = headers.get(header::CONTENT_ENCODING).filter(|c| *c != "identity") {
        let what = format!("content-encoding {coding:?} is not understood; send the body as it is");
        return Err(Fault::new(Kind::MediaType, what));
    }
    let said = headers.get(header::CONTENT_LENGTH).and_then(|l| l.to_str().ok()?.parse::<u64>().ok());
    if said.is_some_and(|n| n > config.max_body as u64) {
        // One that waits for leave to send gets none.
        if !headers.contains_key(header::EXPECT) {
            drain(&mut body).await;
        }
        return Err(too_large());
    }
    let mut out = Vec::with_capacity(said.unwrap_or(0).min(1 << 20) as usize);
    loop {
        let slow = |_| Fault::new(Kind::Slow, "the body did not arrive in time");
        let frame = match timeout(config.patience, body.frame()).await.map_err(slow)? {
            None => return Ok(out),
            Some(frame) => frame.map_err(|e| Fault::invalid(format!("the body broke off: {e}")))?,
        };
        if let Some(data) = frame.data_ref() {
            if out.len() + data.len() > config.max_body {
                drop(out);
                drain(&mut body).await;
                return Err(too_large());
            }
            out.extend_from_slice(data);
        }
    }
}
