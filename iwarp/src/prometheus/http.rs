//! The HTTP/1.1 responses of an exporter. The application owns the sockets, and may serve connections in
//! threads or in tasks: this module does no I/O.

use std::io;

use super::{CONTENT_TYPE, text};
use crate::verbs::ContextStatus;

/// Maximum number of bytes of a request's header. Prometheus sends a header of some 300 bytes.
const LONGEST_REQUEST: usize = 8192;

/// Returns the first line of a request, or `None` while the request's header is incomplete. `received`
/// contains all bytes that were received on the connection so far.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] if the header is longer than 8192 bytes.
pub fn request_line(received: &[u8]) -> io::Result<Option<String>> {
    let end = received.windows(4).position(|end| end == b"\r\n\r\n");
    if end.unwrap_or(received.len()) > LONGEST_REQUEST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the request is longer than 8192 bytes"));
    }
    Ok(end.map(|end| String::from_utf8_lossy(&received[..end]).lines().next().unwrap_or_default().to_owned()))
}

/// Returns the whole response to the request with this first line. For a GET of `/metrics` or `/`, the
/// response contains the [`text`] of `statuses`. For any other request, `statuses` is not called. The caller
/// closes the connection after the response.
pub fn response(request_line: &str, statuses: impl FnOnce() -> Vec<(u64, ContextStatus)>) -> String {
    let mut words = request_line.split(' ');
    let (method, target) = (words.next(), words.next().unwrap_or_default());
    // The query string is ignored.
    let path = target.split('?').next();
    let (status, body) = match (method, path) {
        (Some("GET"), Some("/metrics" | "/")) => ("200 OK", text(&statuses())),
        (Some("GET"), _) => ("404 Not Found", "the metrics are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed\r\nAllow: GET", "only GET is possible\n".to_owned()),
    };
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::verbs::{Context, ContextConfig};

    /// Returns the status and the body of the response, and whether `statuses` was called.
    fn answer(request: &str) -> (String, String, bool) {
        let context = Context::new(ContextConfig::default()).unwrap();
        let mut is_asked = false;
        let response = response(request, || {
            is_asked = true;
            vec![(0, context.status(Duration::ZERO))]
        });
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        assert_eq!(field("Content-Length: ").parse(), Ok(body.len()));
        assert_eq!((field("Content-Type: "), field("Connection: ")), (CONTENT_TYPE, "close"));
        (field("HTTP/1.1 ").to_owned(), body.to_owned(), is_asked)
    }

    #[test]
    fn metrics_are_at_their_path_and_at_the_root() {
        for target in ["/metrics", "/", "/metrics?name=x"] {
            let (status, body, _) = answer(&format!("GET {target} HTTP/1.1"));
            assert_eq!(status, "200 OK", "{target}");
            assert!(body.contains("\nuwarp_registered_bytes{context=\"0\"} 0\n"), "{body}");
        }
    }

    #[test]
    fn other_requests_ask_no_engine() {
        for (request, wanted) in [
            ("GET /other HTTP/1.1", "404 Not Found"),
            ("GET", "404 Not Found"),
            ("GET /metricsx HTTP/1.1", "404 Not Found"),
            ("POST /metrics HTTP/1.1", "405 Method Not Allowed"),
            ("get /metrics HTTP/1.1", "405 Method Not Allowed"),
            ("", "405 Method Not Allowed"),
        ] {
            let (status, body, is_asked) = answer(request);
            assert_eq!((status.as_str(), is_asked), (wanted, false), "{request}");
            assert_eq!(body.lines().count(), 1, "{body}");
        }
    }

    #[test]
    fn a_request_ends_with_its_header_and_is_bounded() {
        let line = |bytes: &[u8]| request_line(bytes).map_err(|error| error.kind());
        let whole = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        assert_eq!(line(whole), Ok(Some("GET / HTTP/1.1".into())));
        for length in 0..whole.len() {
            assert_eq!(line(&whole[..length]), Ok(None), "{length} bytes");
        }
        assert_eq!(line(&[b'x'; 8193]), Err(io::ErrorKind::InvalidData));
        let late = [&[b'x'; 9000][..], b"\r\n\r\n"].concat();
        assert_eq!(line(&late), Err(io::ErrorKind::InvalidData), "also if it comes at once");
    }
}
