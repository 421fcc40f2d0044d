//! Shared parts of the HTTP clients: addresses that hide passwords when displayed, and answers
//! with a size limit.
//!
//! It knows no particular server and parses no answer.

use std::fmt;

use reqwest::{Response, Url};

/// A server's address as the user wrote it. It may contain a password or a key, which messages and
/// debug output never display.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerAddress(String);

impl ServerAddress {
    /// The full address, for connecting.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<T: Into<String>> From<T> for ServerAddress {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.trim();
        let has_scheme = text.contains("://") || text.starts_with("unix:");
        // Without a scheme, a user name would be parsed as one.
        let full = if has_scheme { text.to_owned() } else { format!("http://{text}") };
        match Url::parse(&full) {
            Ok(url) => f.write_str(strip_credentials(url).as_str().trim_end_matches('/')),
            Err(_) => f.write_str("(no address)"),
        }
    }
}

impl fmt::Debug for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An address without its credentials: a password, a key.
pub(super) fn strip_credentials(mut url: Url) -> Url {
    // These calls fail if the URL's scheme has no credentials.
    let _ = (url.set_username(""), url.set_password(None));
    url.set_query(None);
    url.set_fragment(None);
    url
}

/// Why an answer was not read completely.
pub(super) enum ResponseBodyError {
    /// It is longer than the limit.
    TooLong,
    /// The connection failed.
    ConnectionLost(reqwest::Error),
}

/// The whole answer, unless it is longer than this many bytes.
pub(super) async fn read_body(
    mut response: Response,
    most: usize,
) -> Result<Vec<u8>, ResponseBodyError> {
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(ResponseBodyError::ConnectionLost)? {
        if most < body.len() + piece.len() {
            return Err(ResponseBodyError::TooLong);
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_displayed_without_credentials() {
        for (written, shown) in [
            ("http://me:secret@head:8265/prefix?key=secret#secret", "http://head:8265/prefix"),
            ("me:secret@head:8265", "http://head:8265"),
            ("ftp://me:secret@head", "ftp://head"),
            ("unix:/run/slurmrestd.sock", "unix:/run/slurmrestd.sock"),
            ("http://me:secret@[x", "(no address)"),
            ("", "(no address)"),
        ] {
            let address = ServerAddress::from(written);
            assert_eq!((address.to_string(), address.as_str()), (shown.to_owned(), written));
            assert_eq!(format!("{address:?}"), shown);
        }
    }
}
