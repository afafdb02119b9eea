//! Bodies: bounded in bytes and in silence.

use axum::body::Body;
use axum::http::{HeaderMap, header};
use http_body_util::BodyExt;
use tokio::time::timeout;

use crate::app::Config;
use crate::fault::{Fault, Kind};

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
                return Err(too_large());
            }
            out.extend_from_slice(data);
        }
    }
}
