//! The one TLS back end of every client.

/// Installs ring as rustls' provider, once; every place that makes a client
/// calls this first, because tests have no `main` that could.
pub fn install() {
    // An error says that it is installed already, which is what is wanted.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
