//! How many may ask at once, and for how long each: whoever opens connections and
//! says nothing must not take the files that the gate needs for its journal, nor the
//! answer of whoever asks whether the gate lives.
//!
//! A listener for `http`, and nothing of what is asked or answered. Where all places are
//! taken the oldest connection is closed: a request that comes whole is answered within
//! milliseconds, and what stays open says nothing.

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

/// How long nobody is let in after the system refused a connection.
const BREATH: Duration = Duration::from_millis(100);

/// What ends the head of a request.
const END: &[u8] = b"\r\n\r\n";

/// How long a connection may last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Until the head of its first request is whole.
    pub(super) asking: Duration,
    /// In all.
    pub(super) lasts: Duration,
}

/// A listener that lets in so many at once.
#[derive(Debug)]
pub(super) struct Door {
    listener: TcpListener,
    /// Files are bounded also while closed connections are not gone yet.
    places: Arc<Semaphore>,
    most: usize,
    open: VecDeque<Weak<Closing>>,
    patience: Patience,
}

impl Door {
    /// Lets in `most` at once, each for as long as `patience` says.
    pub(super) fn new(listener: TcpListener, most: usize, patience: Patience) -> Self {
        let places = Arc::new(Semaphore::new(2 * most));
        Self { listener, places, most, open: VecDeque::new(), patience }
    }

    /// Makes room for one more: closes the oldest where there are as many as may be.
    async fn make_room(&mut self) {
        self.open.retain(|it| it.strong_count() != 0);
        if self.open.len() < self.most {
            return;
        }
        // Whoever was let in may speak first.
        yield_now().await;
        self.open.retain(|it| it.strong_count() != 0);
        while self.most <= self.open.len() {
            if let Some(oldest) = self.open.pop_front().and_then(|it| it.upgrade()) {
                oldest.close();
            }
        }
        yield_now().await;
    }
}

impl Listener for Door {
    type Io = Visit;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Visit, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, from)) => {
                    self.make_room().await;
                    let place = Arc::clone(&self.places).acquire_owned().await;
                    let place = place.expect("nobody closes the semaphore");
                    let closing = Arc::new(Closing::default());
                    self.open.push_back(Arc::downgrade(&closing));
                    let (now, Patience { asking, lasts }) = (Instant::now(), self.patience);
                    let until = Box::pin(sleep(asking.min(lasts)));
                    let over = now + lasts;
                    let met = 0;
                    return (Visit { stream, until, over, met, closing, _place: place }, from);
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

/// Whether a connection was told to end, and who waits for it.
#[derive(Debug, Default)]
struct Closing(Mutex<(bool, Option<Waker>)>);

impl Closing {
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

/// A connection that ends when its time is over.
#[derive(Debug)]
pub(super) struct Visit {
    stream: TcpStream,
    until: Pin<Box<Sleep>>,
    /// The end of it, once it has asked.
    over: Instant,
    /// How much of the end of a head was read last; all of it once one was.
    met: usize,
    closing: Arc<Closing>,
    _place: OwnedSemaphorePermit,
}

impl Visit {
    fn over(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.closing.is_closed(context) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match self.until.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }

    /// Looks for the end of the first request's head.
    fn heard(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if self.met == END.len() {
                return;
            }
            self.met = match byte {
                it if *it == END[self.met] => self.met + 1,
                b'\r' => 1,
                _ => 0,
            };
            if self.met == END.len() {
                self.until.as_mut().reset(self.over);
            }
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
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.heard(&buffer.filled()[before..]);
        read
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

    /// Far longer than any test takes: what ends here is ended for another reason.
    const LONG: Duration = Duration::from_secs(600);

    fn within(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(test);
    }

    async fn open(most: usize, patience: Patience) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let door = Door::new(listener, most, patience);
        let app = Router::new().route("/", get(|| async { "here" }));
        tokio::spawn(async move { axum::serve(door, app).await });
        address
    }

    async fn asked(address: SocketAddr) -> String {
        let mut asking = TcpStream::connect(address).await.expect("connected");
        asking.write_all(REQUEST).await.expect("asked");
        let mut answer = String::new();
        asking.read_to_string(&mut answer).await.expect("answered");
        answer
    }

    #[test]
    fn hundreds_of_half_requests_keep_nobody_from_an_answer() {
        within(async {
            // Nothing here ends by time: who asks is answered while all others are open.
            let address = open(64, Patience { asking: LONG, lasts: LONG }).await;
            let mut halves = Vec::new();
            for number in 0..400 {
                let mut half = TcpStream::connect(address).await.expect("connected");
                half.write_all(b"GET /healthz HTTP/1.1\r\nHost: ").await.expect("said");
                halves.push(half);
                if number % 40 == 39 {
                    let answer = asked(address).await;
                    assert!(answer.ends_with("here"), "after {number}: {answer}");
                }
            }
            let answer = asked(address).await;
            assert!(answer.ends_with("here"), "{answer}");
            // The oldest were closed, the last are still waited for.
            let mut rest = Vec::new();
            let _ = halves[0].read_to_end(&mut rest).await;
            let last = halves.last_mut().expect("one");
            last.write_all(b"x\r\nConnection: close\r\n\r\n").await.expect("said");
            let mut answer = String::new();
            last.read_to_string(&mut answer).await.expect("answered");
            assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
        });
    }

    #[test]
    fn half_a_request_is_not_waited_for_and_a_whole_one_is_answered() {
        within(async {
            let asking = Duration::from_millis(200);
            let address = open(64, Patience { asking, lasts: LONG }).await;
            let mut half = TcpStream::connect(address).await.expect("connected");
            half.write_all(b"GET / HTTP/1.1\r\n").await.expect("said");
            let mut whole = TcpStream::connect(address).await.expect("connected");
            whole.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("said");
            let mut rest = Vec::new();
            // Closed, or reset: not kept.
            let _ = half.read_to_end(&mut rest).await;
            // One that has asked may ask again, after the time in which it had to.
            whole.write_all(REQUEST).await.expect("asked again");
            let mut answers = String::new();
            whole.read_to_string(&mut answers).await.expect("answered");
            assert_eq!(answers.matches("here").count(), 2, "{answers}");
        });
    }

    #[test]
    fn those_who_say_nothing_keep_nobody_out_for_long() {
        within(async {
            let lasts = Duration::from_millis(200);
            let address = open(2, Patience { asking: lasts, lasts }).await;
            let mut silent = Vec::new();
            for _ in 0..8 {
                silent.push(TcpStream::connect(address).await.expect("connected"));
            }
            let answer = asked(address).await;
            assert!(answer.ends_with("here"), "{answer}");
            for mut one in silent {
                // Closed, or reset: not kept.
                let mut rest = Vec::new();
                let _ = one.read_to_end(&mut rest).await;
            }
        });
    }
}
