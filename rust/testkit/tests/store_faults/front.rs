//! A server between the store and the embedded server, that answers in its place or changes its answers.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use alluvium_store::{
    ObjectStore,
    layer::{Policies, metrics::StoreMetrics, stack},
    s3::S3Store,
};
use alluvium_testkit::s3_server::{S3Server, TlsMode};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::{config, server};

/// What happens to a request.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Answered without the store.
    Answer(String),
    /// Answered with this head and a body without end.
    Endless(&'static str),
    /// Passed on; the answer is changed.
    Change(fn(String) -> String),
}

/// What happens to the next requests whose first line begins with `method` and has `contains` in it.
struct Rule {
    method: &'static str,
    contains: &'static str,
    times: usize,
    act: Act,
}

#[derive(Default)]
pub(crate) struct Shared {
    rules: Mutex<Vec<Rule>>,
    /// The heads of requests.
    seen: Mutex<Vec<String>>,
    /// Bytes that were taken of endless bodies.
    pub(crate) endless: AtomicUsize,
}

pub(crate) struct Front {
    pub(crate) server: S3Server,
    pub(crate) store: Arc<dyn ObjectStore>,
    /// The same without its layers.
    pub(crate) base: Arc<S3Store>,
    pub(crate) shared: Arc<Shared>,
    listening: tokio::task::JoinHandle<()>,
}

impl Drop for Front {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

impl Front {
    pub(crate) async fn start(policies: Policies) -> Self {
        let server = server(TlsMode::Off).await;
        let upstream = server.endpoint().trim_start_matches("http://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let shared = Arc::new(Shared::default());
        let of_task = Arc::clone(&shared);
        let listening = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (shared, upstream) = (Arc::clone(&of_task), upstream.clone());
                // A client that leaves is no failure of the test.
                tokio::spawn(async move { serve(stream, &shared, &upstream).await.ok() });
            }
        });
        let mut config = config(&endpoint);
        config.read_timeout = config.read_timeout.min(policies.attempt_timeout);
        let base = Arc::new(S3Store::open(config).await.expect("an open store"));
        Front {
            store: stack(Arc::clone(&base) as _, policies, Arc::new(StoreMetrics::default())),
            base,
            server,
            shared,
            listening,
        }
    }

    /// The only rule from now on.
    pub(crate) fn rule(&self, method: &'static str, contains: &'static str, times: usize, act: Act) {
        self.shared.rules.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.also(method, contains, times, act);
        self.seen();
    }

    /// One more rule, behind the others.
    pub(crate) fn also(&self, method: &'static str, contains: &'static str, times: usize, act: Act) {
        let mut rules = self.shared.rules.lock().unwrap_or_else(PoisonError::into_inner);
        rules.push(Rule {
            method,
            contains,
            times,
            act,
        });
    }

    /// The heads of the requests since the last look.
    pub(crate) fn seen(&self) -> Vec<String> {
        std::mem::take(&mut *self.shared.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn count(&self, method: &str) -> usize {
        let seen = self.seen();
        seen.iter().filter(|line| line.starts_with(method)).count()
    }
}

async fn serve(mut stream: TcpStream, shared: &Shared, upstream: &str) -> io::Result<()> {
    let mut request = Vec::new();
    let mut piece = vec![0; 1 << 16];
    let end = loop {
        if let Some(end) = request.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        let count = stream.read(&mut piece).await?;
        if count == 0 {
            return Ok(());
        }
        request.extend_from_slice(&piece[..count]);
    };
    let head = String::from_utf8_lossy(&request[..end]).into_owned();
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let ours = name.eq_ignore_ascii_case("content-length");
        ours.then(|| value.trim().parse::<usize>().expect("a length"))
    });
    while request.len() < end + length.unwrap_or(0) {
        let count = stream.read(&mut piece).await?;
        request.extend_from_slice(&piece[..count]);
    }
    let first = head.lines().next().expect("a request line").to_owned();
    let act = {
        let mut rules = shared.rules.lock().unwrap_or_else(PoisonError::into_inner);
        rules
            .iter_mut()
            .find(|rule| first.starts_with(rule.method) && first.contains(rule.contains) && rule.times > 0)
            .map(|rule| {
                rule.times -= 1;
                rule.act.clone()
            })
    };
    shared
        .seen
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(head.clone());
    match act {
        Some(Act::Answer(answer)) => stream.write_all(answer.as_bytes()).await?,
        Some(Act::Endless(head)) => {
            stream.write_all(head.as_bytes()).await?;
            loop {
                stream.write_all(&[b' '; 1 << 12]).await?;
                shared.endless.fetch_add(1 << 12, Ordering::Relaxed);
            }
        }
        Some(Act::Change(change)) => {
            let answer = pass_on(upstream, &head, &request[end..]).await?;
            let answer = change(String::from_utf8(answer).expect("a text"));
            stream.write_all(answer.as_bytes()).await?;
        }
        None => {
            let answer = pass_on(upstream, &head, &request[end..]).await?;
            stream.write_all(&answer).await?;
        }
    }
    stream.shutdown().await
}

async fn pass_on(upstream: &str, head: &str, body: &[u8]) -> io::Result<Vec<u8>> {
    let mut server = TcpStream::connect(upstream).await?;
    let head = head.replacen("\r\n", "\r\nConnection: close\r\n", 1);
    server.write_all(head.as_bytes()).await?;
    server.write_all(body).await?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer).await?;
    Ok(answer)
}

pub(crate) fn answer(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}")
}

pub(crate) fn error_document(code: &str) -> String {
    format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>no</Message></Error>")
}
