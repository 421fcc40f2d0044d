//! How many may ask at once, and for how long each: whoever opens connections and
//! says nothing must not take the files that the gate needs for its journal.
//!
//! A listener for `http`, and nothing of what is asked or answered.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;
use std::task::Poll;
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::AsyncRead;
use tokio::io::AsyncWrite;
use tokio::io::ReadBuf;
use tokio::net::TcpListener;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::Semaphore;
use tokio::time::Sleep;
use tokio::time::sleep;

/// How long nobody is let in after the system refused a connection.
const BREATH: Duration = Duration::from_millis(100);

/// A listener that lets in so many at once.
#[derive(Debug)]
pub(super) struct Door {
    listener: TcpListener,
    places: Arc<Semaphore>,
    lasts: Duration,
}

impl Door {
    /// Lets in `most` at once, each for as long as `lasts`.
    pub(super) fn new(listener: TcpListener, most: usize, lasts: Duration) -> Self {
        Self { listener, places: Arc::new(Semaphore::new(most)), lasts }
    }
}

impl Listener for Door {
    type Io = Visit;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Visit, SocketAddr) {
        let place = Arc::clone(&self.places).acquire_owned().await;
        let place = place.expect("nobody closes the semaphore");
        loop {
            match self.listener.accept().await {
                Ok((stream, from)) => {
                    let until = Box::pin(sleep(self.lasts));
                    return (Visit { stream, until, _place: place }, from);
                }
                // Out of files, or gone again: either may be over soon.
                Err(_) => sleep(BREATH).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends when its time is over.
#[derive(Debug)]
pub(super) struct Visit {
    stream: TcpStream,
    until: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl Visit {
    fn over(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.until.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for Visit {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.over(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Visit {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.over(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;
    use tokio::io::AsyncReadExt;
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[test]
    fn those_who_say_nothing_keep_nobody_out_for_long() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = listener.local_addr().expect("an address");
            let door = Door::new(listener, 2, Duration::from_millis(200));
            let app = Router::new().route("/", get(|| async { "here" }));
            tokio::spawn(async move { axum::serve(door, app).await });
            let mut silent = Vec::new();
            for _ in 0..8 {
                silent.push(TcpStream::connect(address).await.expect("connected"));
            }
            let mut asking = TcpStream::connect(address).await.expect("connected");
            let request = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            asking.write_all(request).await.expect("asked");
            let mut answer = String::new();
            asking.read_to_string(&mut answer).await.expect("answered");
            assert!(answer.ends_with("here"), "{answer}");
            for mut one in silent {
                // Closed, or reset: not kept.
                let mut rest = Vec::new();
                let _ = one.read_to_end(&mut rest).await;
            }
        });
    }
}
