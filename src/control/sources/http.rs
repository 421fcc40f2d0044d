//! What the clients of servers share: addresses that do not show a password,
//! and answers that are not read without end.
//!
//! No server is known here, and no answer understood.

use std::fmt;

use reqwest::{Response, Url};

/// Where a server is, as a person wrote it. It may hold a password or a key;
/// shown, in messages and to debug, it does not.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerAddress(String);

impl ServerAddress {
    /// All of it, for whoever connects.
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
        // Without a scheme, a user's name would pass for one.
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

/// An address without what it may hold besides: a password, a key.
pub(super) fn strip_credentials(mut url: Url) -> Url {
    // These fail where the kind of address has none.
    let _ = (url.set_username(""), url.set_password(None));
    url.set_query(None);
    url.set_fragment(None);
    url
}

/// Why an answer was not read to its end.
pub(super) enum ResponseBodyError {
    /// It is longer than what is taken.
    TooLong,
    /// The connection did not bring it.
    ConnectionLost(reqwest::Error),
}

/// All of an answer, unless it is longer than this many bytes.
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
    fn an_address_is_shown_without_what_lets_somebody_in() {
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
