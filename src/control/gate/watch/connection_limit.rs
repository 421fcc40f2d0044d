//! Limits the number and duration of HTTP connections: idle clients must not exhaust the
//! file descriptors that the gate needs for its journal, or block health checks.
//!
//! A listener for `http` that knows nothing about requests. At the limit, the oldest
//! connection is closed: a complete request is answered within milliseconds, so
//! connections that stay open are idle.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::yield_now;
use tokio::time::{Instant, Sleep, sleep};

/// Pause in accepting after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// End of a request's head.
const HEAD_END: &[u8] = b"\r\n\r\n";

/// Time limits of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionTimeouts {
    /// Until the head of the first request is complete.
    pub(super) request_head: Duration,
    /// For the whole connection.
    pub(super) total: Duration,
}

/// A listener with a limit of concurrent connections.
#[derive(Debug)]
pub(super) struct ConnectionLimiter {
    listener: TcpListener,
    /// Bounds file descriptors even while closed connections are not dropped yet.
    permits: Arc<Semaphore>,
    max_open: usize,
    open: VecDeque<Weak<CloseSignal>>,
    timeouts: ConnectionTimeouts,
}

impl ConnectionLimiter {
    /// Accepts up to `max_open` concurrent connections with these timeouts.
    pub(super) fn new(
        listener: TcpListener,
        max_open: usize,
        timeouts: ConnectionTimeouts,
    ) -> Self {
        let permits = Arc::new(Semaphore::new(2 * max_open));
        Self { listener, permits, max_open, open: VecDeque::new(), timeouts }
    }

    /// At the limit, closes the oldest connection.
    async fn close_oldest(&mut self) {
        self.open.retain(|it| it.strong_count() != 0);
        if self.open.len() < self.max_open {
            return;
        }
        // Let accepted connections make progress first.
        yield_now().await;
        self.open.retain(|it| it.strong_count() != 0);
        while self.max_open <= self.open.len() {
            if let Some(oldest) = self.open.pop_front().and_then(|it| it.upgrade()) {
                oldest.close();
            }
        }
        yield_now().await;
    }
}

impl Listener for ConnectionLimiter {
    type Io = BoundedConnection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (BoundedConnection, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, from)) => {
                    self.close_oldest().await;
                    let place = Arc::clone(&self.permits).acquire_owned().await;
                    let place = place.expect("the semaphore is never closed");
                    let closing = Arc::new(CloseSignal::default());
                    self.open.push_back(Arc::downgrade(&closing));
                    let (now, ConnectionTimeouts { request_head: asking, total: lasts }) =
                        (Instant::now(), self.timeouts);
                    let until = Box::pin(sleep(asking.min(lasts)));
                    let over = now + lasts;
                    let met = 0;
                    return (
                        BoundedConnection {
                            stream,
                            deadline: until,
                            final_deadline: over,
                            head_end_matched: met,
                            closing,
                            _permit: place,
                        },
                        from,
                    );
                }
                // Out of file descriptors, or the client is gone: both may pass soon.
                Err(_) => sleep(ACCEPT_PAUSE).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A request to close a connection, with the task that waits for it.
#[derive(Debug, Default)]
struct CloseSignal(Mutex<(bool, Option<Waker>)>);

impl CloseSignal {
    fn close(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 = true;
        if let Some(waker) = state.1.take() {
            waker.wake();
        }
    }

    fn is_closed(&self, context: &Context<'_>) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.1 = Some(context.waker().clone());
        state.0
    }
}

/// A connection that closes at its deadline.
#[derive(Debug)]
pub(super) struct BoundedConnection {
    stream: TcpStream,
    deadline: Pin<Box<Sleep>>,
    /// Deadline after the head of the first request.
    final_deadline: Instant,
    /// Length of the matched part of HEAD_END; complete once the head has ended.
    head_end_matched: usize,
    closing: Arc<CloseSignal>,
    _permit: OwnedSemaphorePermit,
}

impl BoundedConnection {
    fn check_deadline(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.closing.is_closed(context) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match self.deadline.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }

    /// Searches for the end of the first request's head.
    fn track_request_head(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if self.head_end_matched == HEAD_END.len() {
                return;
            }
            self.head_end_matched = match byte {
                it if *it == HEAD_END[self.head_end_matched] => self.head_end_matched + 1,
                b'\r' => 1,
                _ => 0,
            };
            if self.head_end_matched == HEAD_END.len() {
                self.deadline.as_mut().reset(self.final_deadline);
            }
        }
    }
}

impl AsyncRead for BoundedConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_deadline(context)?;
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.track_request_head(&buffer.filled()[before..]);
        read
    }
}

impl AsyncWrite for BoundedConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_deadline(context)?;
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

    /// Far longer than any test: connections here close for other reasons.
    const LONG: Duration = Duration::from_secs(600);

    fn within(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(test);
    }

    async fn open_server(most: usize, patience: ConnectionTimeouts) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let door = ConnectionLimiter::new(listener, most, patience);
        let app = Router::new().route("/", get(|| async { "here" }));
        tokio::spawn(async move { axum::serve(door, app).await });
        address
    }

    async fn send_request(address: SocketAddr) -> String {
        let mut client = TcpStream::connect(address).await.expect("connected");
        client.write_all(REQUEST).await.expect("sent");
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("received");
        answer
    }

    #[test]
    fn hundreds_of_partial_requests_do_not_block_a_client() {
        within(async {
            // Timeouts play no part here: a new client is served while all others are
            // open.
            let address =
                open_server(64, ConnectionTimeouts { request_head: LONG, total: LONG }).await;
            let mut halves = Vec::new();
            for number in 0..400 {
                let mut half = TcpStream::connect(address).await.expect("connected");
                half.write_all(b"GET /healthz HTTP/1.1\r\nHost: ").await.expect("sent");
                halves.push(half);
                if number % 40 == 39 {
                    let answer = send_request(address).await;
                    assert!(answer.ends_with("here"), "after {number}: {answer}");
                }
            }
            let answer = send_request(address).await;
            assert!(answer.ends_with("here"), "{answer}");
            // The oldest connections are closed, the newest are still open.
            let mut rest = Vec::new();
            let _ = halves[0].read_to_end(&mut rest).await;
            let last = halves.last_mut().expect("one");
            last.write_all(b"x\r\nConnection: close\r\n\r\n").await.expect("sent");
            let mut answer = String::new();
            last.read_to_string(&mut answer).await.expect("received");
            assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
        });
    }

    #[test]
    fn a_partial_request_times_out_and_a_complete_one_is_answered() {
        within(async {
            let asking = Duration::from_millis(200);
            let address =
                open_server(64, ConnectionTimeouts { request_head: asking, total: LONG }).await;
            let mut half = TcpStream::connect(address).await.expect("connected");
            half.write_all(b"GET / HTTP/1.1\r\n").await.expect("sent");
            let mut whole = TcpStream::connect(address).await.expect("connected");
            whole.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("sent");
            let mut rest = Vec::new();
            // Closed or reset, but not kept open.
            let _ = half.read_to_end(&mut rest).await;
            // After a request, a connection may send another one past the head timeout.
            whole.write_all(REQUEST).await.expect("sent again");
            let mut answers = String::new();
            whole.read_to_string(&mut answers).await.expect("received");
            assert_eq!(answers.matches("here").count(), 2, "{answers}");
        });
    }

    #[test]
    fn silent_clients_do_not_block_others_for_long() {
        within(async {
            let lasts = Duration::from_millis(200);
            let address =
                open_server(2, ConnectionTimeouts { request_head: lasts, total: lasts }).await;
            let mut silent = Vec::new();
            for _ in 0..8 {
                silent.push(TcpStream::connect(address).await.expect("connected"));
            }
            let answer = send_request(address).await;
            assert!(answer.ends_with("here"), "{answer}");
            for mut one in silent {
                // Closed or reset, but not kept open.
                let mut rest = Vec::new();
                let _ = one.read_to_end(&mut rest).await;
            }
        });
    }
}
