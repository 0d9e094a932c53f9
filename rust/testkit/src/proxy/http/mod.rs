//! Purpose: the level that understands requests: HTTP/1.1 from the client, optionally over TLS, and to the server.
//!
//! Flow: name the operation, count, find a `fault` by rule or by `chaos`, pass the request on over the client
//! connection's own connection to the server (`upstream`), spoil the answer.
//!
//! Invariants: path, query, headers and body are passed on as the client sent them, so that its signature stays valid;
//! so are the server's status, headers and body, where no fault is. An answer made here is given when the request has
//! been read to its end, so that a client in the middle of sending hears it and can keep the connection.
//!
//! Failure: a server that cannot be reached, or breaks before its answer, resets the client.
//!
//! Cancel: a request whose client leaves is dropped where it stands, and its connection to the server closed; but for
//! those that are to be late, which go on.
//!
//! Not here: HTTP/2, TLS to the server, requests sent before the answer to the last one.

mod answer;
pub(super) mod chaos;
mod counted;
pub(super) mod fault;
mod upstream;
mod watched;

use self::answer::{Answer, made, regular};
use self::counted::CountedBody;
use self::fault::HttpFault;
use self::upstream::Upstream;
use self::watched::Watched;
use super::Shared;
use super::counters::ProxyCounters;
use super::link::Direction;
use crate::control::Control;
use crate::s3_server::{Operation, Target};
use crate::spoil::{Spoil, SpoiledBody};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::sync::Mutex;
use tokio_rustls::TlsAcceptor;
use tracing::debug;

/// The connection is to end without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the connection is cut")]
struct Cut;

/// Serves one client connection.
pub(super) async fn serve(io: DuplexStream, tls: Option<TlsAcceptor>, control: Arc<Control>, shared: Arc<Shared>) {
    let io = Watched::new(io, Arc::clone(&control));
    match tls {
        None => serve_http(io, control, shared).await,
        Some(acceptor) => match acceptor.accept(io).await {
            Ok(io) => serve_http(io, control, shared).await,
            Err(error) => debug!(%error, "no TLS"),
        },
    }
}

async fn serve_http<Io: AsyncRead + AsyncWrite + Unpin>(io: Io, control: Arc<Control>, shared: Arc<Shared>) {
    let upstream = Mutex::new(Upstream::new(shared.upstream));
    let connection = Arc::new(Connection {
        shared,
        control,
        upstream,
    });
    let service = service_fn(move |request| Arc::clone(&connection).handle(request));
    if let Err(error) = hyper::server::conn::http1::Builder::new()
        .preserve_header_case(true)
        .auto_date_header(false)
        .serve_connection(TokioIo::new(io), service)
        .await
    {
        debug!(%error, "connection ended");
    }
}

/// The body of a request.
type Sent = CountedBody<Incoming>;
/// The body of an answer, as it reaches the client.
type Given = CountedBody<SpoiledBody<Answer>>;

struct Connection {
    shared: Arc<Shared>,
    control: Arc<Control>,
    upstream: Mutex<Upstream<Sent>>,
}

impl Connection {
    fn counters(&self) -> &ProxyCounters {
        &self.shared.counters
    }

    async fn handle(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Given>, Cut> {
        let target = Target::of(request.method(), request.uri(), request.headers());
        self.counters().request(target.operation);
        let by_rule = self.shared.faults.take(&target);
        let fault = by_rule.or_else(|| self.shared.chaos.take(&target));
        let counted = request.map(|body| CountedBody::new(body, Direction::Up, Arc::clone(&self.shared)));
        let answer = self.answer(counted, target.operation, fault.as_ref()).await?;
        let spoiled = self.spoiled(answer, fault.as_ref());
        Ok(spoiled.map(|body| CountedBody::new(body, Direction::Down, Arc::clone(&self.shared))))
    }

    async fn answer(
        &self,
        request: Request<Sent>,
        operation: Operation,
        fault: Option<&HttpFault>,
    ) -> Result<Response<Answer>, Cut> {
        // Those on the body of an answer are counted when there is a body.
        if let Some(fault) = fault.filter(|fault| !fault.is_on_body()) {
            self.counters().struck(fault.kind());
        }
        match fault {
            Some(error @ (HttpFault::Error { .. } | HttpFault::OkWithError { commit: false, .. })) => {
                drain(request.into_body()).await;
                Ok(made(error))
            }
            Some(error @ HttpFault::OkWithError { commit: true, .. }) => {
                drain(self.pass_on(request).await?.into_body()).await;
                Ok(made(error))
            }
            Some(HttpFault::Stall) => {
                // Only a request that has been read lets the connection notice that its client has left.
                drain(request.into_body()).await;
                std::future::pending().await
            }
            Some(HttpFault::DropRequest { reset }) => Err(self.cut(*reset)),
            Some(HttpFault::DropReply { reset }) => {
                drain(self.pass_on(request).await?.into_body()).await;
                Err(self.cut(*reset))
            }
            Some(HttpFault::Delay { ms }) => {
                tokio::time::sleep(Duration::from_millis(*ms)).await;
                self.pass_on(request).await.map(regular)
            }
            Some(HttpFault::Late { ms }) => self.pass_on_late(request, Duration::from_millis(*ms)).await,
            Some(HttpFault::SlowReply { ms }) => {
                let mut answer = self.pass_on(request).await.map(regular)?;
                // Some servers answer first, and do the work before the end of the body. Objects are too large to keep.
                if operation != Operation::GetObject {
                    answer = answer::collected(answer).await.map_err(|_| self.cut(true))?;
                }
                tokio::time::sleep(Duration::from_millis(*ms)).await;
                Ok(answer)
            }
            Some(HttpFault::TruncateBody { .. } | HttpFault::StallBody { .. } | HttpFault::CorruptBody { .. })
            | None => self.pass_on(request).await.map(regular),
        }
    }

    async fn pass_on(&self, request: Request<Sent>) -> Result<Response<Incoming>, Cut> {
        let sent = self.upstream.lock().await.send(request).await;
        sent.map_err(|error| {
            debug!(%error, "no answer from the server");
            self.cut(true)
        })
    }

    /// What servers do that take a request in before they look at it: it is carried out although its client has left.
    async fn pass_on_late(&self, request: Request<Sent>, pause: Duration) -> Result<Response<Answer>, Cut> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(|_| Cut)?.to_bytes();
        let mut upstream = Upstream::new(self.shared.upstream);
        let answering = tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            let answer = upstream.send(Request::from_parts(head, Full::new(body))).await?;
            answer::collected(regular(answer)).await
        });
        match answering.await {
            Ok(Ok(answer)) => Ok(answer),
            _ => Err(self.cut(true)),
        }
    }

    fn cut(&self, reset: bool) -> Cut {
        if reset {
            self.control.reset_at_end();
        }
        Cut
    }

    fn spoiled(&self, answer: Response<Answer>, fault: Option<&HttpFault>) -> Response<SpoiledBody<Answer>> {
        let length = answer.body().size_hint().exact();
        let at = |position: u64| length.map_or(position, |length| position % length);
        let spoil = match fault {
            // There is nothing to spoil.
            _ if length == Some(0) => Spoil::Nothing,
            Some(HttpFault::TruncateBody { bytes, .. }) => Spoil::Truncate(at(*bytes)),
            Some(HttpFault::StallBody { bytes }) => Spoil::Stall(at(*bytes)),
            Some(HttpFault::CorruptBody { at: position }) => Spoil::Corrupt(at(*position)),
            _ => Spoil::Nothing,
        };
        if let Some(fault) = fault
            && !matches!(spoil, Spoil::Nothing)
        {
            self.counters().struck(fault.kind());
            if let HttpFault::TruncateBody { reset: true, .. } = fault {
                self.control.reset_at_end();
            }
        }
        answer.map(|body| SpoiledBody::new(body, Arc::clone(&self.control), spoil))
    }
}

/// Reads to the end; an error ends it too, as there is nothing more to come then.
async fn drain<Source: Body + Unpin>(mut body: Source) {
    while let Some(Ok(_)) = body.frame().await {}
}
